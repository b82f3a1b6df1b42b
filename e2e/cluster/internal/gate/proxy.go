package gate

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/spawn"
)

// keepProxy runs kube-proxy, again and again: it ends itself by design when the Node that it speaks for is deleted.
// It waits for synced, when the API server has let this identity, the proxy's own, read Services.
func keepProxy(state *config.State, synced func()) {
	synced()
	for ; ; time.Sleep(time.Second) {
		fmt.Fprintln(os.Stderr, "kube-proxy ended:", runProxy(state))
	}
}

func runProxy(state *config.State) error {
	group := state.Tree.Daemon("proxy")
	if err := group.Create(); err != nil {
		return err
	}
	log, err := os.OpenFile(state.Path("logs", "proxy.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", "role", "proxy", state.Dir)
	cmd.Args[0], cmd.Stdout, cmd.Stderr = os.Args[0], log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	join, done, err := group.Place(cmd)
	if err != nil {
		return err
	}
	err = spawn.Start(cmd, join)
	done()
	if err != nil {
		return err
	}
	return cmd.Wait()
}
