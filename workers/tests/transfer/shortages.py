"""What a worker runs out of in the middle of a transfer, for real, and what its client then hears.

docs/reference/kills.md is made of the same rows.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tandem_worker.transfer.backends import NAMES
from workers.tests.transfer.arranged import Facts
from workers.tests.transfer.ends import RETRY, SERVED, Client, D, P, Row
from workers.tests.transfer.gate import Hold

CGROUPS = Path("/sys/fs/cgroup")
PATIENT = Facts(patient=True)  # whoever waits at the gate says nothing meanwhile
# Blocks of 32 KiB and more are the kernel's at once, so a limit is met by the next one, not by some later one.
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(32 << 10), "MALLOC_TOP_PAD_": "0"}
FLAGS = ("--chunk-tokens", "512")  # so that a pass needs such blocks
SPARE = 64 << 10  # of address space: for stacks, which would end in SIGSEGV
# In a mount namespace of its own, for the workers alone: what they share, UCX's part too, lies on a small file system.
MOUNTED = 'mount -t tmpfs -o size=32m small "$0" && mount --bind "$0" /dev/shm && exec "$@"'


@dataclass(frozen=True)
class Shortage:
    """`victim`: who runs short, while the two are in `row`; `says`: what its log then has."""

    what: str
    victim: str
    row: Row
    says: str = ""

    @property
    def client(self) -> Client:
        """What it hears."""
        return self.row.prefill_dies


def waiting(name: str, decode: D, prefill: P, client: Client, only: tuple[str, ...], *held: tuple[str, str]) -> Row:
    return Row(name, decode, prefill, tuple(Hold(*one, "wait") for one in held), client, facts=PATIENT, only=only)


ASKING = waiting("open, asking", D.OPEN, P.ASKING, RETRY, NAMES, ("D", "ticket"))
NO_WAY = "asked, the way of pages not agreed on"
APART = waiting(NO_WAY, D.ASKED, P.ASKING, SERVED, ("shm", "mooncake"), ("P", "lend"))
ROOMY = waiting(NO_WAY, D.ASKED, P.ASKING, SERVED, ("nixl",), ("P", "lend"))  # UCX often has what it needs already
# `first` may overtake the pages or not: with both held it makes no difference to where the two are.
SENDING = waiting("open, sending", D.OPEN, P.SENDING, SERVED, NAMES, ("P", "chunk"), ("P", "first"))
KILLED = waiting("open, asking", D.OPEN, P.ASKING, RETRY, ("tcp",), ("D", "ticket"))

SHORTAGES = (
    Shortage("address space", "p", ASKING, "can't allocate memory"),
    Shortage("address space", "d", APART, "pages travel over tcp"),
    Shortage("address space", "d", ROOMY),
    Shortage("disk", "d", SENDING),
    Shortage("memory", "p", KILLED),
)


def in_a_mount_namespace(directory: Path) -> tuple[str, ...]:
    """The command that runs what follows it there; none where this machine has none."""
    within = ("unshare", "-Urm", "sh", "-c", MOUNTED, str(directory))
    tried = subprocess.run([*within, "true"], capture_output=True, check=False, timeout=60)
    return () if tried.returncode else within


@contextlib.contextmanager
def no_address_space(pid: int) -> Iterator[None]:
    status = Path(f"/proc/{pid}/status").read_text()
    used = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) << 10
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (used + SPARE, before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_AS, before)


@contextlib.contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """Not one byte more goes there."""
    path = directory / "full"
    with path.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert os.statvfs(directory).f_bavail == 0
    yield
    path.unlink()


def memory_group() -> Path | None:
    """A new group of processes under our own whose memory can be bounded; None: we may not make one."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        root = CGROUPS / "memory" if controllers == "memory" else CGROUPS
        group = root / path.lstrip("/") / f"tandem-{os.getpid()}"
        if controllers in {"", "memory"}:
            with contextlib.suppress(OSError):
                group.mkdir()
                if (group / limit_of(group)).exists():
                    return group
                group.rmdir()
    return None


def limit_of(group: Path) -> str:
    return "memory.max" if (group / "cgroup.controllers").exists() else "memory.limit_in_bytes"


@contextlib.contextmanager
def bounded_memory(pid: int, group: Path) -> Iterator[None]:
    """What it has it keeps; of what it asks for from now on it gets one page, and then it is killed.

    One page, since a pass that gives each block back before it asks for the next one may do with few.
    """
    try:
        (group / limit_of(group)).write_text(str(resource.getpagesize()))
        (group / "cgroup.procs").write_text(str(pid))
        yield
        counts = group / ("memory.events" if limit_of(group) == "memory.max" else "memory.oom_control")
        assert re.search(r"oom_kill [1-9]", counts.read_text()), counts.read_text()
    finally:
        group.rmdir()
