package ops

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"tandem.dev/e2e/cluster/internal/cgroup"
	"tandem.dev/e2e/cluster/internal/config"
	"tandem.dev/e2e/cluster/internal/control"
)

// Status prints what runs and what it holds in memory; the error says what is not as it should be.
func Status(dir string, to io.Writer) error {
	state, unlock, err := open(dir)
	if err != nil {
		return err
	}
	defer unlock()
	table := tabwriter.NewWriter(to, 0, 4, 2, ' ', 0)
	defer table.Flush()
	fmt.Fprintln(table, "PART\tSTATE\tPROCESSES\tMEMORY (MiB)")
	var wrong []string
	total := 0
	for _, part := range append(control.Parts, control.Proxy) {
		total += line(table, part.Name, state.Tree.Daemon(part.Name), &wrong)
	}
	total += line(table, Gate, state.Tree.Daemon(Gate), &wrong)
	for _, node := range state.Nodes {
		total += line(table, nodePrefix+node.Name, state.Tree.Kubelet(node.Name), &wrong)
		pods(table, state, node)
	}
	fmt.Fprintf(table, "all but pods\t\t\t%d\n", total>>10)
	return verdict(state, wrong)
}

func line(table io.Writer, name string, group cgroup.Group, wrong *[]string) (kib int) {
	pids := group.Procs()
	word := "runs"
	if len(pids) == 0 {
		word = "DEAD"
		*wrong = append(*wrong, name)
	}
	kib = memory(pids)
	fmt.Fprintf(table, "%s\t%s\t%d\t%d\n", name, word, len(pids), kib>>10)
	return kib
}

func pods(table io.Writer, state *config.State, node config.Node) {
	own := map[int]bool{}
	for _, pid := range state.Tree.Kubelet(node.Name).Procs() {
		own[pid] = true
	}
	var pids []int
	for _, pid := range state.Tree.Node(node.Name).Procs() {
		if !own[pid] {
			pids = append(pids, pid)
		}
	}
	fmt.Fprintf(table, "  its pods\t\t%d\t%d\n", len(pids), memory(pids)>>10)
}

// memory is the processes' proportional share in KiB: pages that several map, such as this binary's, count once.
func memory(pids []int) (kib int) {
	for _, pid := range pids {
		file, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			if fields := strings.Fields(lines.Text()); len(fields) == 3 && fields[0] == "Pss:" {
				n, _ := strconv.Atoi(fields[1])
				kib += n
			}
		}
		file.Close()
	}
	return kib
}

func verdict(state *config.State, wrong []string) error {
	if len(wrong) > 0 {
		return fmt.Errorf("not running: %s (logs in %s)", strings.Join(wrong, ", "), state.Path("logs"))
	}
	c, err := client(state)
	if err != nil {
		return err
	}
	for _, node := range state.Nodes {
		if err := nodeReady(context.Background(), c, node.Name); err != nil {
			return err
		}
	}
	return nil
}
