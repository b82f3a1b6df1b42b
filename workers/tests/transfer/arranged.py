"""A worker that is kept in a state: words of its engine that it does not hear, room that it does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tandem_worker.engine import Shortage
from tandem_worker.transfer import signs
from tandem_worker.transfer.signs import SILENT_PINGS
from tandem_worker.transfer.ticket import LEASE_S


@dataclass(frozen=True)
class Facts:
    """What is otherwise than usual."""

    deaf: str = ""  # a word of the prefill worker's engine that is not heard: the push stays where it is
    full: bool = False  # the decode worker has no room
    lease_s: float = 0.0  # of its tickets; 0: as always
    patient: bool = False  # a silent peer is not taken for dead


USUAL = Facts()


def arrange(node: Any, engine: Any, facts: Facts) -> None:
    """From now on; what was arranged before holds no more."""
    for owner, names in ((node.prefill, ("on_head", "on_done")), (engine, ("reserve",))):
        for name in names:
            owner.__dict__.pop(name, None)
    if facts.deaf:
        setattr(node.prefill, facts.deaf, lambda *words: None)
    if facts.full:
        engine.reserve = lambda *words: Shortage(1, 0)
    node.decode._lease_s = facts.lease_s or LEASE_S
    signs.SILENT_PINGS = 10**6 if facts.patient else SILENT_PINGS


def states(node: Any, engine: Any) -> dict[str, list[str]]:
    """Of everything that is under way here, by side."""
    committed = ["committed"] * engine.stats().running
    tickets = [str(pull.ticket.state) for pull in node.decode._by_request.values()]
    return {"decode": tickets or committed, "prefill": [str(push.state) for push in node.prefill._pushes.values()]}
