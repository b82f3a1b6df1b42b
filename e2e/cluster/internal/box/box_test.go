package box

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindCommand(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{
		filepath.Join(first, "text"):  0o644, // not a program: the search goes on
		filepath.Join(second, "text"): 0o755,
	} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PATH=/nowhere", "PATH=" + first + ":" + second}
	if got, err := FindCommand("text", env); err != nil || got != filepath.Join(second, "text") {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := FindCommand("/a/path", env); err != nil || got != "/a/path" {
		t.Errorf("a path is taken as it is, got %q, %v", got, err)
	}
	if _, err := FindCommand("gone", env); err == nil || !strings.Contains(err.Error(), second) {
		t.Errorf("the refusal should name the PATH: %v", err)
	}
}

func TestPlaceFor(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	if err := placeFor(outside, filepath.Join(root, "a/b")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(root, "a/b")); err != nil || !info.IsDir() {
		t.Errorf("a folder should have a folder as its place: %v", err)
	}
	file := filepath.Join(outside, "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := placeFor(file, filepath.Join(root, "c/d")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(root, "c/d")); err != nil || info.IsDir() {
		t.Errorf("a file should have a file as its place: %v", err)
	}
}
