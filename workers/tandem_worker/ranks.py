"""The other ranks of a tensor-parallel worker: processes that this one starts, and that end with it, or it with them.

A rank reads its orders' first line from stdin, as JSON; when stdin closes, the worker is gone and so is the rank.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tandem_worker.engine import EngineError, EngineSettings, load_model
from tandem_worker.engine.memory import mapped
from tandem_worker.engine.parallel import follow, join
from tandem_worker.engine.ranked import pages_of_rank

LOG = logging.getLogger("tandem_worker.ranks")
END_S: Final = 10.0  # for all of them: what is left of a pod's grace once the worker has drained
FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of ranks 1 and up; none without tensor parallelism."""

    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def lost(self) -> str:
        """What to say of one that has ended, which none does while the worker lives; "": none has."""
        for number, process in enumerate(self.processes, 1):
            if (code := process.poll()) is not None:
                return f"rank {number} of {len(self.processes) + 1} has ended with code {code}"
        return ""

    def end(self, *, told: bool = True) -> None:
        """They end by themselves when `told` to stop, else when stdin closes; those that do not are killed."""
        for process in self.processes:
            if process.stdin is not None and not told:
                process.stdin.close()
        until = time.monotonic() + END_S
        for process in self.processes:
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_S)


def start_ranks(model: Path, sizes: EngineSettings, memory: int) -> tuple[Ranks, str]:
    """Start them, and where to meet them. They load their shares while this process loads its own.

    `memory`: the descriptor of all ranks' pages (ranked.py), which they inherit.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    ranks = Ranks()
    for number in range(1, sizes.tensor_parallel):
        process = subprocess.Popen(
            [sys.executable, "-m", "tandem_worker.ranks"], stdin=subprocess.PIPE, pass_fds=(memory,)
        )
        ranks.processes.append(process)
        orders = {"model": str(model), "sizes": asdict(sizes), "rank": number, "address": address, "memory": memory}
        if process.stdin is not None:
            process.stdin.write(json.dumps(orders).encode() + b"\n")
            process.stdin.flush()
    return ranks, address


def main() -> None:
    """One rank's life. Exit codes: 0 told to stop, 1 the others are gone, 2 its share cannot be loaded."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Unbuffered: a thread that sits in a buffer's lock is an error when the interpreter ends.
    orders = json.loads(open(0, "rb", buffering=0, closefd=False).readline())  # noqa: SIM115 (a descriptor)
    threading.Thread(target=_end_with_the_worker, name="stdin", daemon=True).start()
    sizes = EngineSettings(**orders["sizes"])
    try:
        model = load_model(Path(orders["model"]), sizes, orders["rank"])
        pages = pages_of_rank(model, sizes, orders["rank"], mapped(orders["memory"]))
        join(orders["rank"], sizes, orders["address"])
        follow(model.decoder, pages)
    except EngineError as error:
        LOG.error("%s", error)  # noqa: TRY400 (the sentence is the whole story)
        sys.exit(2)
    except RuntimeError as error:  # torch's word for a peer that is gone
        LOG.error("rank %d ends: %s", orders["rank"], str(error).partition("\n")[0])  # noqa: TRY400
        os._exit(FAILED)


def _end_with_the_worker() -> None:
    while os.read(0, 4096):
        pass
    os._exit(FAILED)


if __name__ == "__main__":
    main()
