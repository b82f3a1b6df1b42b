package box

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Become makes this process the container's. It returns only on an error, which the runtime reads from the report file.
func Become() {
	unix.CloseOnExec(reportFD)
	report := os.NewFile(reportFD, "report")
	if err := become(); err != nil {
		fmt.Fprint(report, err)
		os.Exit(128)
	}
}

func become() error {
	spec, err := readSpec()
	if err != nil {
		return fmt.Errorf("read the container's description: %w", err)
	}
	if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	root, err := buildRoot(spec)
	if err != nil {
		return err
	}
	if err := pivot(root); err != nil {
		return err
	}
	return runCommand(spec)
}

// pivot makes root the root and drops the machine's.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// Both to the same folder: the old root then lies on top of the new one, and unmounting it uncovers the new.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root filesystem: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root filesystem: %w", err)
	}
	return os.Chdir("/")
}

func runCommand(spec *Spec) error {
	path, err := FindCommand(spec.Argv[0], spec.Env)
	if err != nil {
		return err
	}
	if err := os.Chdir(spec.Dir); err != nil {
		return fmt.Errorf("workingDir: %w", err)
	}
	if spec.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("forbid new privileges: %w", err)
		}
	}
	if err := spec.User.assume(); err != nil {
		return err
	}
	if err := syscall.Exec(path, spec.Argv, spec.Env); err != nil {
		return fmt.Errorf("exec %q: %w", path, err)
	}
	return nil
}

func (u User) assume() error {
	if err := syscall.Setgroups(u.Groups); err != nil {
		return fmt.Errorf("set groups %v: %w", u.Groups, err)
	}
	if err := syscall.Setgid(u.GID); err != nil {
		return fmt.Errorf("set group %d: %w", u.GID, err)
	}
	if err := syscall.Setuid(u.UID); err != nil {
		return fmt.Errorf("set user %d: %w", u.UID, err)
	}
	return nil
}

// FindCommand looks a command up in the PATH of env, as seen from the calling thread's root.
func FindCommand(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := Getenv(env, "PATH")
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", &exec.Error{Name: name, Err: fmt.Errorf("no such command in the container's PATH %s", path)}
}

// Getenv is the value of a variable in a list of NAME=value; the last one counts.
func Getenv(env []string, name string) string {
	value := ""
	for _, entry := range env {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			value = v
		}
	}
	return value
}
