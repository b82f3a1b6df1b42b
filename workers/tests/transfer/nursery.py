"""`python -m workers.tests.transfer.nursery`: has everything imported, and forks a worker for each line of its input.

A worker that is to be killed a hundred times would otherwise spend most of its life on importing torch. Every worker
ends with the nursery.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
GONE_WITHIN_S = 60.0
STOPPED_WITHIN_S = 10.0


@dataclass(frozen=True)
class Forked:
    """A worker process, as far as tests use `subprocess.Popen`."""

    pid: int

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """SIGSTOP, until it holds: before one of the threads has taken the signal, the others go on."""
        self.send_signal(signal.SIGSTOP)
        end = time.monotonic() + STOPPED_WITHIN_S
        while not all(is_stopped(thread) for thread in Path(f"/proc/{self.pid}/task").glob("*/stat")):
            assert time.monotonic() < end, f"process {self.pid} does not stop"
            time.sleep(0.001)

    def poll(self) -> int | None:
        return None if Path(f"/proc/{self.pid}").exists() else -1

    def wait(self, within_s: float = GONE_WITHIN_S) -> int:
        end = time.monotonic() + within_s
        while self.poll() is None:
            assert time.monotonic() < end, f"process {self.pid} does not end"
            time.sleep(0.01)
        return -1


def is_stopped(stat: Path) -> bool:
    """A thread that is gone does nothing either."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in "TtZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Nursery:
    """The process that forks."""

    def __init__(self, log: Path, *within: str, **environment: str) -> None:
        """`within`: a command that runs what follows it."""
        with log.open("wb") as err:
            self._process = subprocess.Popen(
                [*within, sys.executable, "-m", "workers.tests.transfer.nursery"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, cwd=Path(__file__).parents[3],
                env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **environment},
            )  # fmt: skip

    def fork(self, flags: list[str], environment: dict[str, str], log: Path) -> Forked:
        self._process.stdin.write(json.dumps({"flags": flags, "environment": environment, "log": str(log)}) + "\n")
        self._process.stdin.flush()
        return Forked(int(self._process.stdout.readline()))

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(GONE_WITHIN_S)


def become_worker(order: dict) -> None:
    """In the child; never returns."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (out, 2)):
        os.dup2(number, target)
    os.environ.update(order["environment"])
    sys.argv = ["tandem-worker", *order["flags"]]
    code = 1
    try:
        from workers.tests.transfer.watched import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        if code and (trouble := sys.exc_info())[0] is not None:
            sys.excepthook(*trouble)
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    import workers.tests.transfer.watched  # noqa: F401 - the point of it all

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who has died is gone at once
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            become_worker(json.loads(line))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
