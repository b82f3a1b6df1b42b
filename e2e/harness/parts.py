"""Parts of the one-machine cluster's control plane, as a fault meets them: frozen, killed, started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from e2e.harness.cluster import Cluster
from e2e.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUPS = Path("/sys/fs/cgroup")


def directory_of(cluster: Cluster) -> Path:
    """Its folder; RuntimeError for a cluster that KUBECONFIG names, whose parts are not ours."""
    if cluster.directory is None:
        raise RuntimeError("parts of the control plane are the one-machine cluster's; KUBECONFIG names another")
    return cluster.directory.resolve()


def process_of(directory: Path, part: str) -> int:
    """The process that is a part (etcd, apiserver, manager, scheduler) of the cluster in this folder."""
    words = [b"role", part.encode(), str(directory.resolve()).encode()]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes().split(b"\0")[1:4] == words:
                return int(process.name)
    raise LookupError(f"no process is the {part} of {directory}")


@contextlib.contextmanager
def frozen(*processes: int) -> Iterator[None]:
    """They hold their connections and answer nobody while the body runs."""
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def start_again(cluster: Cluster, part: str) -> None:
    """Kill a part, and start it as `cluster up` does: in the cluster's network, control groups, and log."""
    directory = directory_of(cluster)
    old = process_of(directory, part)
    groups = (Path("/proc") / str(old) / "cgroup").read_text().splitlines()
    os.kill(old, signal.SIGKILL)
    until(f"{part} is gone", lambda: not Path(f"/proc/{old}/cwd").exists(), 20)
    netns = Path("/run/netns", (directory / "netns").read_text().strip())
    command = ["nsenter", f"--net={netns}", str(cluster.binary), "role", part, str(directory)]
    with (directory / "logs" / f"{part}.log").open("ab") as log:
        new = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, "GOGC": "50"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    for line in groups:  # `cluster down` ends whoever is in its groups
        _, controllers, path = line.split(":", 2)
        members = CGROUPS / controllers.removeprefix("name=") / path.lstrip("/") / "cgroup.procs"
        if members.exists():
            members.write_text(f"{new.pid}\n")


def inside(cluster: Cluster, *command: str, seconds: float = 30) -> str:
    """Run a command in the cluster's network namespace; raise CalledProcessError where it fails."""
    name = (directory_of(cluster) / "netns").read_text().strip()
    done = subprocess.run(
        ["ip", "netns", "exec", name, *command], capture_output=True, text=True, timeout=seconds, check=True
    )
    return done.stdout


def process_in_pod(pod: dict[str, Any], word: str) -> int:
    """The machine's process behind a pod's first container whose command line has this word."""
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("//")[2]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            group, words = (process / "cgroup").read_text(), (process / "cmdline").read_bytes()
            if f"/{container[:16]}" in group and word.encode() in words:
                return int(process.name)
    raise LookupError(f"no process with {word!r} in pod {pod['metadata']['name']}")
