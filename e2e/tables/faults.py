"""The fault table: what the resource says while something is wrong, and that it ends as it would have without.

`python -m e2e.tables.faults` writes docs/reference/faults.md; `--check` exits 1 where it is not current.
"""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.harness.kube import REPO
from e2e.tables.fault_cases import FAULTS, Fault, nothing
from e2e.tables.fields import Effects, base, changes, effects, settled
from e2e.tables.kills import STORIES, Story, ends_of
from e2e.tables.memory import Case
from e2e.tables.page import main, table
from e2e.tables.watching import Watch
from tandem_operator.loop.refs import Outcome

PAGE, COMMAND = "docs/reference/faults.md", "python -m e2e.tables.faults"
SUITES = tuple(
    f"e2e/tests/test_{name}.py"
    for name in (
        *("faults", "kills", "outages", "clock", "operators", "access", "authorizer", "watches", "fuzzed", "drains"),
        *("fields_followed", "scheduled", "verdicts", "rollouts", "operations", "upgrades", "rdma_nodes", "oldest"),
    )
)


@dataclass(frozen=True, slots=True)
class Healed:
    """What came of one fault."""

    name: str
    outcome: str  # how a pass ended meanwhile
    said: str  # Ready, and Reconciling or Stalled, meanwhile
    differs: tuple[str, ...]  # what was otherwise afterwards than without the fault
    idle_writes: int  # of two more passes
    ends: str


async def try_fault(fault: Fault) -> Healed:
    """Inject, look, take away, look again."""
    expected = await undisturbed(fault)
    case, watch = await begun(fault)
    fault.before(case)
    if watch and fault.way:
        watch.way = fault.way
    fault.inject(case)
    outcome = await case.one_pass() if fault.sees else None
    said = words_of(case)
    fault.heal(case)
    if fault.restarts:
        await case.restart()
    found, _ = await settled(case)
    before = len(case.kube.writes)
    for _ in range(2):
        await case.one_pass()
    name = type(outcome).__name__ if outcome is not None else "none"
    idle = len(case.kube.writes) - before
    return Healed(fault.name, name, said, changes(expected, found), idle, fault.ends)


async def undisturbed(fault: Fault) -> Effects:
    """The end without the fault."""
    case, _ = await begun(fault)
    fault.before(case)
    fault.instead(case)
    return effects(case, await settle_twice(case))


async def begun(fault: Fault) -> tuple[Case, Watch | None]:
    """A resource that runs, with what is past carried out; it is watched where the fault is one of events."""
    case = Case(base())
    await settled(case)
    watch = Watch(case) if fault.way else None
    if fault.past is not nothing:
        fault.past(case)
        await settled(case)
    return case, watch


async def settle_twice(case: Case) -> Outcome:
    """As `settled` leaves a case."""
    await case.converge()
    case.touch()
    return await case.converge()


def words_of(case: Case) -> str:
    """Ready's status, and what is wrong or under way."""
    ready = case.condition("Ready") or {"status": "Unknown"}
    more = [f"{kind}/{c['reason']}" for kind in ("Reconciling", "Stalled") if (c := case.condition(kind))]
    return ", ".join([f"Ready {ready['status']}", *more])


async def try_all() -> tuple[list[Healed], list[tuple[Story, list[tuple[str, ...]]]]]:
    """Every fault, and every story killed after each of its writes."""
    return [await try_fault(fault) for fault in FAULTS], [(story, await ends_of(story)) for story in STORIES]


def page(faults: Sequence[Healed], killed: Sequence[tuple[Story, list[tuple[str, ...]]]]) -> str:
    """All tables."""
    rows = [(f.name, f.outcome, f.said, f.ends if not f.differs else ", ".join(f.differs)) for f in faults]
    deaths = [(s.name, str(len(ends)), "the same" if not any(ends) else "DIFFERS") for s, ends in killed]
    real = [(path, name) for path in SUITES for name in names_of(path)]
    return (
        f"# What happens when something is wrong\n\n<!-- Made by `{COMMAND}`: every row is run. -->\n\n"
        "The end: children, status and what the planner is told, once the fault is over, beside a resource that had "
        "none. After it two idle passes write\nnothing.\n\n"
        f"{table(('fault', 'a pass meanwhile', 'the resource meanwhile', 'the end'), rows)}\n\n"
        "## The operator is killed after each write\n\nOne run for each number of writes, the process started "
        "anew.\n\n"
        f"{table(('story', 'kills', 'the end'), deaths)}\n\n## On a real control plane\n\n"
        "Run by these tests on the one-machine cluster.\n\n"
        f"{table(('file', 'what is shown'), real)}\n"
    )


def names_of(path: str) -> list[str]:
    """The tests of a file as sentences."""
    tree = ast.parse((REPO / path).read_text(encoding="utf-8"))
    found = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [name.removeprefix("test_").replace("_", " ") for name in found if name.startswith("test_")]


if __name__ == "__main__":
    sys.exit(main(PAGE, COMMAND, lambda: page(*asyncio.run(try_all()))))
