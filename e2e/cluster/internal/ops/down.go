package ops

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/netspace"
)

// kept is what outlives a cluster in its folder.
var kept = map[string]bool{"logs": true, "lock": true}

// Down ends a cluster, or what is left of one, and removes all of it but its logs. Twice is fine.
func Down(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		fmt.Println("already down")
		return nil
	}
	dir, err := resolve(dir)
	if err != nil {
		return err
	}
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	state, err := config.ReadState(dir)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Println("already down")
		return nil
	}
	if err != nil {
		return err
	}
	if err := end(state); err != nil {
		return fmt.Errorf("not all of the cluster is gone, run `cluster down` again: %w", err)
	}
	fmt.Println("down")
	return nil
}

// end works from what the kernel knows, not from what processes would say: any of them may be dead already.
func end(state *config.State) error {
	if err := state.Tree.All().Kill(15 * time.Second); err != nil {
		return err
	}
	// Mounts and the pods' namespaces were the nodes' own and are gone with them.
	if err := netspace.Delete(state.ID()); err != nil {
		return err
	}
	if err := state.Tree.All().Remove(); err != nil {
		return err
	}
	return clear(state.Dir)
}

// clear empties the folder; the state goes last, so that a clear cut short is found again.
func clear(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if kept[entry.Name()] || path == config.StateFile(dir) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return os.Remove(config.StateFile(dir))
}
