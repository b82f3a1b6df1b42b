"""The table of kills: whoever dies or stops in a KV transfer, what its client hears, and what is left (nothing).

`python -m e2e.tables.transfer_kills` writes docs/reference/kills.md from the tests' own rows; `--check` exits 1 where
it is not current. The tests hold each row to what it says.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from e2e.tables.page import main, table
from tandem_worker.transfer.backends import NAMES
from workers.tests.transfer.ends import PASSED, ROWS, STOPS, Row, rows_of
from workers.tests.transfer.shortages import SHORTAGES

PAGE, COMMAND = "docs/reference/kills.md", "python -m e2e.tables.transfer_kills"
BEGIN = f"""# Whoever dies in the middle of a KV transfer

<!-- Made by `{COMMAND}` from the rows of workers/tests/transfer/ends.py, which the tests run. -->

D is the decode worker, P the prefill worker; states and words are those of [transfer.md](transfer.md). A stream is
asked of D, the two are brought to the row's states, and then one of them dies. Each row ends with: what the client
heard is what the row says, within 60 s, and its tokens are the first of those that one worker alone gives; whoever
lives holds no page, no ticket and no request; the dead one comes back at the same address, the same request and a new
one are served by the pair, with the same tokens, and then nobody holds anything.
"""
KILLS = """
## kill -9, and the connection cut

`workers/tests/transfer/test_kills.py`: real processes, kill -9 of either one, in each row, on each of its backends
({count} kills; those in mid-page once more with the connection cut). `test_ends.py`: the connection cut in each row,
both workers in one process. A state without a row on a backend fails a test. A client of D that dies sees its
connection end: the router in front of it answers for that. In mid-page: half of a frame has come (`tcp`); or P was
stopped, and then D was told to fetch. There D's end takes P along where NIXL reads over TCP: P's CPU answers, and UCX
calls a reader that has gone meanwhile fatal. P comes back as D does; with a card that reads nobody answers.
"""
STOPPED = """
## SIGSTOP and SIGCONT

`test_kills.py`: stopped for longer than its lease (set to 6 s) and than a silence may last (5 s), then continued. "In
mid-page" stops D while its own read is under way, or P while it is read from.
"""
SHORT = """
## Nothing left

`test_shortages.py`: a worker that has served before runs short in the middle of a transfer (its next page or message
waits meanwhile). *Address space*: `prlimit --as` at what it has. *Disk*: the file system of `--transfer-dir` and
/dev/shm is full for both. *Memory*: its cgroup gives it no more, and the kernel kills it, which is kill -9. Nobody
holds anything at the end of a row, and once there is enough again the pair serves. What is not there at the start is
said at the start (`test_full.py`); a memory file is all there from then on, so that no page of it is a SIGBUS later.
"""


def kills(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line a row."""
    return [
        (
            row.name,
            str(row.decode),
            str(row.prefill or "–"),
            "all" if len(row.only) == len(NAMES) else ", ".join(row.only),
            row.prefill_dies,
            row.decode_dies,
        )
        for row in rows
    ]


def stops() -> list[tuple[str, ...]]:
    """A line a stop."""
    held = "has its pages in quarantine, counted as in use, and has cut P off for good; freed by P's end or SIGCONT"
    return [
        (
            stop.row,
            stop.victim.upper(),
            "holds nothing" + (f"; {', '.join(stop.held)}: {held}" if stop.held else ""),
            next(row.prefill_dies for row in ROWS if row.name == stop.row),
            "holds nothing",
        )
        for stop in STOPS
    ]


def shortages() -> list[tuple[str, ...]]:
    """A line a shortage."""
    return [
        (
            shortage.what,
            "both" if shortage.what == "disk" else shortage.victim.upper(),
            shortage.row.name,
            "all" if len(shortage.row.only) == len(NAMES) else ", ".join(shortage.row.only),
            str(shortage.client),
            shortage.says or "–",
        )
        for shortage in SHORTAGES
    ]


def exceptions() -> list[tuple[str, ...]]:
    """A line a state that does not last."""
    return [(str(state), backend, why) for (state, backend), why in PASSED.items()]


def page() -> str:
    """All tables."""
    count = 2 * len(list(rows_of(*NAMES)))
    dies = ("where it is", "D", "P", "backends", "P dies or the connection is cut: the client", "D dies: the client")
    waits = ("where it is", "stopped", "the other one meanwhile", "the client", "both, once it goes on")
    runs_short = ("of", "who", "where it is", "backends", "the client", "its log")
    return "\n".join(
        [
            BEGIN,
            KILLS.format(count=count).lstrip("\n"),
            table(dies, kills(ROWS)),
            "\nStates that do not last:\n",
            table(("state", "backend", "why"), exceptions()),
            STOPPED,
            table(waits, stops()),
            SHORT,
            table(runs_short, shortages()),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(PAGE, COMMAND, page))
