package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"tandem.dev/e2e/cluster/internal/box"
)

const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// spec says how a container's box is made, from what the kubelet and the image ask for.
func (r *Runtime) spec(c *container) (*box.Spec, error) {
	mounts, err := r.mounts(c)
	if err != nil {
		return nil, err
	}
	security := c.config.GetLinux().GetSecurityContext()
	user := userOf(security)
	dir := c.config.WorkingDir
	if dir == "" {
		dir = "/"
	}
	return &box.Spec{
		Hostname:     r.hostname(c.sandbox),
		Scratch:      c.scratch,
		Keep:         r.keep(),
		Shm:          c.sandbox.shm(),
		ResolvConf:   c.sandbox.resolvConf(),
		Mounts:       mounts,
		Argv:         append(slices.Clone(c.config.Command), c.config.Args...),
		Env:          r.env(c, user),
		Dir:          dir,
		User:         user,
		ReadOnlyRoot: security.GetReadonlyRootfs(),
		NoNewPrivs:   security.GetNoNewPrivs(),
	}, nil
}

func (r *Runtime) hostname(s *sandbox) string {
	if name := s.config.GetHostname(); name != "" {
		return name
	}
	return r.options.Node.Name
}

func userOf(security *runtimeapi.LinuxContainerSecurityContext) box.User {
	user := box.User{UID: int(security.GetRunAsUser().GetValue()), GID: int(security.GetRunAsGroup().GetValue())}
	for _, group := range security.GetSupplementalGroups() {
		user.Groups = append(user.Groups, int(group))
	}
	return user
}

// env is the container's own, the image's below it, and PATH and HOME for who sets none.
func (r *Runtime) env(c *container, user box.User) []string {
	home := "/root"
	if user.UID != 0 {
		home = "/tmp" // such a user has no folder of its own, and programs want to write somewhere
	}
	env := []string{"PATH=" + filepath.Join(r.options.Root, ".venv/bin") + ":" + usualPath, "HOME=" + home}
	image := r.options.Images[c.image]
	for _, name := range sortedKeys(image.Env) {
		env = put(env, name, image.Env[name])
	}
	for _, pair := range c.config.Envs {
		env = put(env, pair.Key, string(pair.Value))
	}
	return env
}

// put sets a variable once: a program that meets a name twice may take either.
func put(env []string, name, value string) []string {
	env = slices.DeleteFunc(env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	return append(env, name+"="+value)
}

// mounts are the image's own paths and then what the kubelet hands over, in its order.
func (r *Runtime) mounts(c *container) ([]box.Mount, error) {
	var mounts []box.Mount
	image := r.options.Images[c.image]
	for _, to := range sortedKeys(image.Paths) {
		from := filepath.Join(r.options.Root, image.Paths[to])
		if _, err := os.Stat(from); err != nil {
			return nil, fmt.Errorf("image %q wants %s at %s: %w", c.image, image.Paths[to], to, err)
		}
		mounts = append(mounts, box.Mount{From: from, To: to, ReadOnly: true})
	}
	for _, m := range c.config.Mounts {
		from, err := filepath.EvalSymlinks(m.HostPath)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.ContainerPath, err)
		}
		mounts = append(mounts, box.Mount{From: from, To: m.ContainerPath, ReadOnly: m.Readonly})
	}
	return mounts, nil
}

// keep lists the folders that commands come from and that a container would not see otherwise: those below another
// mount point than /, and those below a folder that it gets empty.
func (r *Runtime) keep() []string {
	mounted := mountPoints()
	python, _ := filepath.EvalSymlinks(filepath.Join(r.options.Root, ".venv/bin/python3"))
	var kept []string
	for _, path := range []string{r.options.Root, filepath.Dir(filepath.Dir(python))} {
		if path != "/" && path != "." && path != "/usr" && isHidden(path, mounted) {
			kept = append(kept, path)
		}
	}
	return kept
}

func isHidden(path string, mounted []string) bool {
	for _, above := range append(mounted, "/tmp", "/run") {
		if above != "/" && (path == above || strings.HasPrefix(path, above+"/")) {
			return true
		}
	}
	return false
}

func mountPoints() []string {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	var points []string
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, fields[4])
		}
	}
	return points
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
