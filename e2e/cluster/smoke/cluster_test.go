//go:build smoke

// Package smoke brings a cluster up for real and tries what tests elsewhere rely on.
package smoke

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const apiPort = "26443"

var (
	repo       = absolute("../../..")
	dir        = filepath.Join(repo, "build/cluster-smoke")
	binary     = filepath.Join(repo, "build/bin/cluster")
	kubeconfig = filepath.Join(dir, "kubeconfig")
)

func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		panic(err)
	}
	return abs
}

func run(name string, args ...string) (string, error) { return runWith("", name, args...) }

// runWith returns what the command wrote to its output; the error has what it wrote besides.
func runWith(input, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdin = strings.NewReader(input)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, out.String(), errOut.String())
	}
	return out.String(), nil
}

func must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := run(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return must(t, "kubectl", args...)
}

func cluster(args ...string) (string, error) { return run(binary, append(args, "--dir", dir)...) }

func apply(t *testing.T, file string, replace ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	manifest := strings.NewReplacer(replace...).Replace(string(text))
	if _, err := runWith(manifest, "kubectl", "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// eventually asks again and again until the answer has want in it.
func eventually(t *testing.T, within time.Duration, want string, ask func() (string, error)) {
	t.Helper()
	began := time.Now()
	for {
		got, err := ask()
		if err == nil && strings.Contains(got, want) {
			t.Logf("%q after %.1f s", want, time.Since(began).Seconds())
			return
		}
		if time.Since(began) > within {
			t.Fatalf("waited %s for %q, got %q (error: %v)", within, want, got, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// field asks for a part of an object by its JSON path.
func field(object, path string) func() (string, error) {
	return func() (string, error) { return run("kubectl", "get", object, "-o", "jsonpath={"+path+"}") }
}

func TestMain(m *testing.M) {
	_, _ = cluster("down")
	began := time.Now()
	out, err := cluster("up", "--config", "testdata/cluster.yaml", "--port", apiPort)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Printf("%s(%.1f s)\n", out, time.Since(began).Seconds())
	code := m.Run()
	if _, err := cluster("down"); err != nil {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}
