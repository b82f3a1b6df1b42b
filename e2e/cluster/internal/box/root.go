package box

import (
	"fmt"
	"os"
	"path/filepath"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// buildRoot mounts the container's root filesystem and everything in it; the result is not yet the root.
func buildRoot(spec *Spec) (string, error) {
	root, err := overlay(spec.Scratch)
	if err != nil {
		return "", err
	}
	// The kept paths come after the volumes: one of them, at /tmp say, may cover the repository.
	steps := []func(string, *Spec) error{hideMachine, mountSystem, mountDevices, mountVolumes, keepPaths, openToUsers}
	for _, step := range steps {
		if err := step(root, spec); err != nil {
			return "", err
		}
	}
	if spec.ReadOnlyRoot {
		if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return "", fmt.Errorf("make the root filesystem read-only: %w", err)
		}
	}
	return root, nil
}

// overlay puts a writable layer, in memory, over the machine's files: containers see them and change only their own.
func overlay(scratch string) (string, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", fmt.Errorf("keep mounts to this container: %w", err)
	}
	if err := unix.Mount("tmpfs", scratch, "tmpfs", 0, "mode=755"); err != nil {
		return "", fmt.Errorf("mount the container's own layer: %w", err)
	}
	upper, work, root := filepath.Join(scratch, "upper"), filepath.Join(scratch, "work"), filepath.Join(scratch, "root")
	for _, dir := range []string{upper, work, root} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
	}
	options := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", upper, work)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		return "", fmt.Errorf("mount an overlay over /: %w", err)
	}
	return root, nil
}

// hideMachine gives the container empty folders where an image would have them empty.
func hideMachine(root string, _ *Spec) error {
	for dir, mode := range map[string]string{"/tmp": "mode=1777", "/run": "mode=755"} {
		if err := unix.Mount("tmpfs", filepath.Join(root, dir), "tmpfs", 0, mode); err != nil {
			return fmt.Errorf("mount an empty %s: %w", dir, err)
		}
	}
	return nil
}

// keepPaths shows folders that the overlay does not: it stops at mount points, and hideMachine covers some.
func keepPaths(root string, spec *Spec) error {
	for _, path := range spec.Keep {
		if err := bind(root, Mount{From: path, To: path, ReadOnly: true}); err != nil {
			return err
		}
	}
	return nil
}

func mountSystem(root string, spec *Spec) error {
	// A new PID namespace needs a new /proc: this process is already its first.
	if err := unix.Mount("proc", filepath.Join(root, "proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("/sys", filepath.Join(root, "sys"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return bind(root, Mount{From: spec.ResolvConf, To: "/etc/resolv.conf"})
}

// mountDevices makes a /dev of the container's own: the kubelet's termination log is a file in it.
func mountDevices(root string, spec *Spec) error {
	dev := filepath.Join(root, "dev")
	if err := unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount /dev: %w", err)
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := bind(root, Mount{From: "/dev/" + name, To: "/dev/" + name}); err != nil {
			return err
		}
	}
	links := map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	return bind(root, Mount{From: spec.Shm, To: "/dev/shm"})
}

func mountVolumes(root string, spec *Spec) error {
	for _, m := range spec.Mounts {
		if err := bind(root, m); err != nil {
			return err
		}
	}
	return nil
}

// openToUsers lets users other than root pass through to the repository and its Python, for this container only.
func openToUsers(root string, spec *Spec) error {
	if spec.User.UID == 0 {
		return nil
	}
	for _, path := range filepath.SplitList(Getenv(spec.Env, "PATH")) {
		real, err := filepath.EvalSymlinks(filepath.Join(path, "python3"))
		if err != nil {
			continue
		}
		for _, p := range []string{path, filepath.Dir(real)} {
			if err := openAbove(root, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func openAbove(root, path string) error {
	for dir := path; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		inside := filepath.Join(root, dir)
		info, err := os.Stat(inside)
		if err != nil || info.Mode()&0o001 != 0 {
			continue
		}
		if err := os.Chmod(inside, info.Mode().Perm()|0o011); err != nil {
			return fmt.Errorf("let the container's user pass %s: %w", dir, err)
		}
	}
	return nil
}

// bind mounts a folder or a file at a path inside root; symbolic links on the way there stay inside root.
func bind(root string, m Mount) error {
	target, err := securejoin.SecureJoin(root, m.To)
	if err != nil {
		return fmt.Errorf("mount at %s: %w", m.To, err)
	}
	if err := placeFor(m.From, target); err != nil {
		return fmt.Errorf("mount at %s: %w", m.To, err)
	}
	if err := unix.Mount(m.From, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.From, m.To, err)
	}
	if !m.ReadOnly {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", m.To, err)
	}
	return nil
}

// placeFor makes a folder or an empty file at target, whichever from is.
func placeFor(from, target string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(target, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}
