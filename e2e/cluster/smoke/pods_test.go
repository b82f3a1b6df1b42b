//go:build smoke

package smoke

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const page = "from a config map"

func webPod(t *testing.T) string {
	t.Helper()
	return kubectl(t, "get", "pod", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}")
}

func get(url string) func() (string, error) {
	return func() (string, error) {
		response, err := http.Get(url)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return string(body), err
	}
}

func TestWeb(t *testing.T) {
	apply(t, "web.yaml")
	apply(t, "caller.yaml")
	kubectl(t, "rollout", "status", "deployment/web", "--timeout=60s")
	kubectl(t, "wait", "--for=condition=Ready", "pod/caller", "--timeout=60s")
	pod := webPod(t)
	ip := kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")
	clusterIP := kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")

	t.Run("logs and environment", func(t *testing.T) {
		if got := kubectl(t, "logs", pod); !strings.Contains(got, "word=sesame ip="+ip+" image=yes") {
			t.Fatalf("log is %q", got)
		}
	})
	t.Run("logs follow", func(t *testing.T) { followLogs(t, pod) })
	t.Run("exec with input and exit code", func(t *testing.T) {
		out, err := runWith("typed", "kubectl", "exec", "-i", pod, "--", "sh", "-c", "cat; exit 7")
		if out != "typed" || err == nil || !strings.Contains(err.Error(), "exit code 7") {
			t.Fatalf("got %q, %v", out, err)
		}
	})
	t.Run("image's own files", func(t *testing.T) { kubectl(t, "exec", pod, "--", "test", "-e", "/smoke/web.yaml") })
	t.Run("port-forward", func(t *testing.T) { portForward(t, pod) })
	t.Run("published port", func(t *testing.T) { eventually(t, 10*time.Second, page, get("http://127.0.0.1:28080/hello.txt")) })
	for what, host := range map[string]string{"pod": ip + ":8000", "cluster IP": clusterIP, "name": "web", "full name": "web.default.svc.cluster.local"} {
		t.Run("a pod calls another by "+what, func(t *testing.T) {
			eventually(t, 10*time.Second, page, func() (string, error) { return call(host) })
		})
	}
	t.Run("from inside the namespace", func(t *testing.T) {
		name := strings.TrimSpace(read(t, filepath.Join(dir, "netns")))
		must(t, "ip", "netns", "exec", name, "python3", "-c", fetch("http://"+clusterIP+"/hello.txt"))
	})
	t.Run("user, init container, read-only root", callerIsConfined)
	t.Run("API from a pod", func(t *testing.T) { callAPI(t) })
	t.Run("CPU limit", func(t *testing.T) { cpuLimit(t, pod) })
}

func fetch(url string) string {
	return "import urllib.request as u; print(u.urlopen('" + url + "', timeout=5).read().decode())"
}

func call(host string) (string, error) {
	return run("kubectl", "exec", "caller", "--", "python3", "-c", fetch("http://"+host+"/hello.txt"))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func followLogs(t *testing.T, pod string) {
	cmd := exec.Command("timeout", "3", "kubectl", "logs", "-f", pod)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	out, _ := cmd.Output() // ends by its own timeout
	if n := strings.Count(string(out), "GET /hello.txt"); n < 2 {
		t.Fatalf("%d probes in the followed log: %q", n, out)
	}
}

func portForward(t *testing.T, pod string) {
	cmd := exec.Command("kubectl", "port-forward", pod, "28081:8000")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	eventually(t, 15*time.Second, page, get("http://127.0.0.1:28081/hello.txt"))
}

func callerIsConfined(t *testing.T) {
	got := kubectl(t, "exec", "caller", "--", "sh", "-c", "id -u; cat /scratch/file; touch /x 2>&1; python3 -c 'print(6*7)'; echo $HOME")
	for _, want := range []string{"1234", "from init", "Read-only file system", "42"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
}

// callAPI uses what any in-cluster client uses: the service's address from the environment, the mounted token and authority.
func callAPI(t *testing.T) {
	script := `
import os, ssl, urllib.request
base = "/var/run/secrets/kubernetes.io/serviceaccount/"
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
for host in (url, "https://kubernetes.default.svc"):
    request = urllib.request.Request(host + "/api/v1/namespaces/default/pods", headers={"Authorization": "Bearer " + open(base + "token").read()})
    try:
        print(urllib.request.urlopen(request, context=ssl.create_default_context(cafile=base + "ca.crt")).status)
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
`
	got := kubectl(t, "exec", "caller", "--", "python3", "-c", script)
	if strings.Count(got, "403") < 2 || !strings.Contains(got, "system:serviceaccount:default:default") {
		t.Fatalf("RBAC should know and refuse this service account: %q", got)
	}
	kubectl(t, "create", "clusterrolebinding", "smoke-view", "--clusterrole=view", "--serviceaccount=default:default")
	eventually(t, 10*time.Second, "200\n200", func() (string, error) { return run("kubectl", "exec", "caller", "--", "python3", "-c", script) })
}

// cpuLimit burns for a while in a container of 0.3 CPUs and looks at what it got.
func cpuLimit(t *testing.T, pod string) {
	script := "import time; a, b = time.time(), time.process_time()\nwhile time.time() < a + 3: pass\nprint('ok' if time.process_time() - b < 1.3 else 'too much', time.process_time() - b)"
	if got := kubectl(t, "exec", pod, "--", "python3", "-c", script); !strings.HasPrefix(got, "ok") {
		t.Fatalf("3 s at 0.3 CPUs gave %s s of CPU time", got)
	}
}

func TestUnwell(t *testing.T) {
	apply(t, "unwell.yaml")
	status := ".status.containerStatuses[0]"
	for _, c := range []struct{ pod, path, want string }{
		{"sick", status + ".restartCount", "1"},
		{"stranger", status + ".state.waiting", "ErrImagePull"},
		{"stranger", status + ".state.waiting", "ImagePullBackOff"},
		{"silent", status + ".state.waiting.message", "sets `command`"},
		{"stray", status, "no such command in the container's PATH"},
		{"greedy", status + ".state.terminated.reason", "OOMKilled"},
		{"crash", status + ".lastState.terminated.exitCode", "3"},
		{"crash", status + ".state.waiting.reason", "CrashLoopBackOff"},
	} {
		t.Run(c.pod+" "+c.want, func(t *testing.T) { eventually(t, 60*time.Second, c.want, field("pod/"+c.pod, c.path)) })
	}
	if got := kubectl(t, "logs", "--previous", "crash"); !strings.Contains(got, "last words") {
		t.Errorf("the log of the run before is %q", got)
	}
	kubectl(t, "delete", "pod", "crash", "sick", "stranger", "silent", "greedy", "stray", "--timeout=60s")
}

func TestGraceful(t *testing.T) {
	out := t.TempDir()
	apply(t, "graceful.yaml", "OUT", out)
	eventually(t, 30*time.Second, "ready", func() (string, error) { return run("kubectl", "logs", "graceful") })
	began := time.Now()
	kubectl(t, "delete", "pod", "graceful", "--timeout=60s")
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("deletion took %s: it waited for the whole grace period", took)
	}
	for _, file := range []string{"hook", "asked"} {
		if _, err := os.Stat(filepath.Join(out, file)); err != nil {
			t.Error(err)
		}
	}
	if pids, _ := run("pgrep", "-f", "sleep 7654"); pids != "" {
		t.Errorf("the pod's children run on: %s", pids)
	}
}
