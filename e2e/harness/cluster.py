"""The one-machine cluster, or the one that KUBECONFIG names."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.harness.kube import REPO, Kube

BINARY = REPO / "build/bin/cluster"
OLDEST = REPO / "build/bin/cluster-1.35"  # the same on the oldest Kubernetes that is supported
CONFIG = REPO / "e2e/cluster/local.yaml"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that is up; `directory` is None for one that KUBECONFIG names (it is then not ours to end)."""

    kube: Kube
    directory: Path | None
    binary: Path = BINARY

    def command(self, *args: str, seconds: float = 120) -> str:
        """Run a command of the one-machine cluster on this cluster."""
        if self.directory is None:
            raise RuntimeError(f"cluster {args[0]} is for the one-machine cluster; KUBECONFIG names another")
        return _run(self.binary, *args, "--dir", str(self.directory), seconds=seconds)

    def down(self) -> None:
        """End the one-machine cluster; a cluster of KUBECONFIG stays."""
        if self.directory is not None:
            self.command("down")


def up(directory: Path, port: int = 16443, config: Path = CONFIG, binary: Path = BINARY) -> Cluster:
    """Start the one-machine cluster (seconds), or take the one that KUBECONFIG names."""
    if given := os.environ.get("KUBECONFIG"):
        return Cluster(Kube(Path(given)), None)
    options = {"--dir": directory, "--config": config, "--port": port, "--root": REPO}
    _run(binary, "up", *(str(word) for option in options.items() for word in option), seconds=180)
    return Cluster(Kube(directory / "kubeconfig"), directory, binary)


def found(directory: Path) -> Cluster:
    """The cluster that an earlier `up` left there."""
    return Cluster(Kube(directory / "kubeconfig"), directory)


def leftovers(directory: Path) -> list[str]:
    """Processes, mounts and network namespaces that still belong to the cluster; empty after a clean end."""
    mark = re.compile(re.escape(str(directory)) + r"(?![^/\s])")  # and of no folder whose name only begins like it
    mounts = Path("/proc/mounts").read_text().splitlines()
    left = [f"mount {line.split()[1]}" for line in mounts if mark.search(line)]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark.search(words) and re.search(r"bin/cluster\b", words):
            left.append(f"process {process.parent.name}: {words[:120]}")
    netns = directory / "netns"
    name = netns.read_text().strip() if netns.exists() else ""
    if name and Path("/run/netns", name).exists():
        left.append(f"network namespace {name}")
    return left


def _run(binary: Path, *args: str, seconds: float) -> str:
    done = subprocess.run(
        [str(binary), *args],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        cwd=REPO,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise RuntimeError(f"cluster {' '.join(args)}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
