"""Before pages are registered with an RDMA card: may this process lock as much memory as they need?

No pod spec can raise the limit, and the symptom comes far from here: a queue pair that "cannot allocate memory".
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

STATUS: Final = Path("/proc/self/status")
IPC_LOCK: Final = 14  # the capability's bit
UNLIMITED: Final = -1


def memlock_problem(mode: str, limit: int, *, may_lock: bool, wanted: int) -> str | None:
    """What to say of a limit in bytes; None where there is no RDMA, or the limit does not matter.

    `may_lock`: CAP_IPC_LOCK is in effect, so that no limit counts. A pod may have been given it and lack it still: a
    process that is not root does not get a capability by asking for it.
    """
    if not mode or may_lock or limit in {UNLIMITED, resource.RLIM_INFINITY} or limit >= wanted:
        return None
    return (
        f"a transport over RDMA ({mode}) has to register {wanted >> 20} MiB of pages, and this process may lock "
        f"{limit >> 10} KiB (RLIMIT_MEMLOCK), CAP_IPC_LOCK not being in effect: raise LimitMEMLOCK of the nodes' "
        "container runtime"
    )


def may_lock(status: str) -> bool:
    """Is CAP_IPC_LOCK in effect, by the text of /proc/self/status?"""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value.strip(), 16) >> IPC_LOCK & 1)
    return False


def look(mode: str, wanted: int) -> str | None:
    """The problem of this process, None where there is none."""
    if not mode:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return memlock_problem(mode, limit, may_lock=may_lock(STATUS.read_text(encoding="ascii")), wanted=wanted)
