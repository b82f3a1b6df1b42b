"""`python -m tandem_worker.transfer.page [--check]`: the tables of docs/reference/transfer.md, as the code has them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tandem_worker.transfer import link, peers, push, signs, ticket
from tandem_worker.transfer.base import Fence
from tandem_worker.transfer.table import Table, Word
from tandem_worker.transfer.wire import Message, Prefill

PAGE: Final = Path("docs/reference/transfer.md")
BLOCK: Final = re.compile(r"(<!-- made: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rows(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    table = [heads, ["---"] * len(heads), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


def words(kind: type[Word], timers: Mapping[Any, Any]) -> str:
    """Each name and what it means; of states also what bounds them."""
    if not timers:
        return rows(["", "means"], ([f"**{word}**", word.says] for word in kind))
    bounds = {state: f"{timer.limit} → {timer.event}" for state, timer in timers.items()}
    return rows(["", "means", "bounded by"], ([f"**{word}**", word.says, bounds.get(word, "–")] for word in kind))


def moves(table: Table[Any, Any, Any]) -> str:
    """Every pair that the table knows; states with the same outcome share a line."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for (state, event), move in table.moves.items():
        then = "–" if move.then is state else str(move.then)
        lines.setdefault((str(event), then, ", ".join(move.acts) or "–"), []).append(str(state))
    return rows(
        ["in", "event", "then", "does"],
        ([", ".join(states), event, then, acts] for (event, then, acts), states in lines.items()),
    )


def fences() -> str:
    """What proves for each fence that nothing can land any more."""
    proofs = {fence: [str(event) for event in ticket.Event if event in ticket.FENCES[fence]] for fence in Fence}
    return rows(["fence", "besides P's `quiet` or `failed`"], ([f, ", ".join(p) or "–"] for f, p in proofs.items()))


def messages() -> str:
    """Who may say what, and the event that it is to whom it is said."""
    heard: list[tuple[type[Message], str, str]] = [(Prefill, "D", "begins a request")]
    heard += [(kind, "D", str(event)) for kind, event in push.HEARD.items()]
    heard += [(kind, "P", str(event)) for kind, event in ticket.HEARD.items()]
    return rows(
        ["message", "from", "is the event"],
        ([f"`{kind.__struct_config__.tag}`", side, event] for kind, side, event in heard),
    )


def waits() -> str:
    """Waits of a connection and of the prefill side; those of tickets stand beside their states."""
    silence = signs.SILENT_PINGS * signs.PING_EVERY_S
    closed = "the connection is closed: P stops, D frees or quarantines, the client is told"
    return rows(
        ["wait", "limit", "then"],
        [
            ["connect", f"{peers.CONNECT_S:.0f} s", "503, `x-tandem-retry: pair`"],
            ["handshake", f"{link.HANDSHAKE_S:.0f} s", "503, `x-tandem-retry: pair`"],
            ["any byte from the peer (both ping every second)", f"{silence:.0f} s", closed],
            ["P: for any `taken` while pages are under way", f"{signs.TAKEN_S:.0f} s", closed],
            ["P: for the answer to `ticket?`", f"{push.ANSWER_S:.0f} s", "`failed`"],
            ["P: for room at D", f"{push.ASK_TRIES} × {ticket.RETRY_MS} ms", "`failed`"],
        ],
    )


def blocks() -> dict[str, str]:
    """Name → content of every block that is made."""
    return {
        "ticket-states": words(ticket.State, ticket.TABLE.timers),
        "ticket-events": words(ticket.Event, {}),
        "ticket-moves": moves(ticket.TABLE),
        "ticket-acts": words(ticket.Act, {}),
        "push-states": words(push.State, push.TABLE.timers),
        "push-events": words(push.Event, {}),
        "push-moves": moves(push.TABLE),
        "push-acts": words(push.Act, {}),
        "messages": messages(),
        "fences": fences(),
        "waits": waits(),
    }


def fill(text: str) -> str:
    """The page with every block made anew. Raises KeyError for a block that nobody makes."""
    made = blocks()
    return BLOCK.sub(lambda found: found[1] + made[found["name"]] + found[3], text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; the exit status says whether the page is current."""
    parser = argparse.ArgumentParser(prog="python -m tandem_worker.transfer.page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where the page is not current")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository's root (default: the current folder)")
    options = parser.parse_args(arguments)
    path = options.root / PAGE
    text = path.read_text(encoding="utf-8")
    filled = fill(text)
    if not options.check:
        path.write_text(filled, encoding="utf-8")
        return 0
    if filled != text:
        sys.stderr.write(f"not current: {PAGE}; run `make crds`\n")
    return int(filled != text)


if __name__ == "__main__":
    sys.exit(main())
