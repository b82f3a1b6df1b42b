"""How much memory the cluster and everything in it takes."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def resident_mib(directory: Path) -> int:
    """Proportional set size of the control plane and of all pods' processes, MiB (shared pages count once)."""
    return sum(_pss_kib(process) for process in _with_children(_in_namespace(directory))) // 1024


def _in_namespace(directory: Path) -> set[int]:
    """Processes of the control plane and the nodes: those in the cluster's own network namespace."""
    wanted = Path("/run/netns", (directory / "netns").read_text().strip()).stat().st_ino
    found = set()
    for process in PROC.glob("[0-9]*"):
        try:
            if (process / "ns/net").stat().st_ino == wanted:
                found.add(int(process.name))
        except OSError:
            continue  # it ended while we looked
    return found


def _with_children(roots: set[int]) -> set[int]:
    """The same and all that they started: a pod's processes have a namespace of their own, and a node as parent."""
    children: dict[int, list[int]] = {}
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, left = set[int](), list(roots)
    while left:
        process = left.pop()
        if process not in found:
            found.add(process)
            left += children.get(process, [])
    return found


def _pss_kib(process: int) -> int:
    try:
        rollup = (PROC / str(process) / "smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
