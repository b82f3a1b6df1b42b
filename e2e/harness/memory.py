"""How much memory the cluster and everything in it takes."""

from __future__ import annotations

from pathlib import Path


def resident_mib(directory: Path) -> int:
    """Proportional set size of all processes in the cluster, MiB (shared pages count once)."""
    netns = Path("/run/netns", (directory / "netns").read_text().strip())
    wanted = netns.stat().st_ino
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns/net").stat().st_ino != wanted:
                continue
            rollup = (process / "smaps_rollup").read_text()
        except OSError:
            continue  # it ended while we looked
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total // 1024
