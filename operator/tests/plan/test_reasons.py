"""Each reason that the planner can give is on the reference page, and the page has no other."""

import re
from pathlib import Path

from tandem_operator.api.decision_reasons import DECISION_REASONS

SOURCE = Path(__file__).parents[2] / "tandem_operator"
DECIDES = ("decide", "bounds", "guards", "moves", "stuck", "slack", "study", "ahead", "shared")
SAYS = tuple(f"plan/{name}.py" for name in DECIDES)
# Whose reasons it repeats.
JUDGES = (*SAYS, "plan/judge.py", "loop/modes.py", "edges/prometheus.py", "edges/errors.py", "loop/fleet.py")
NAMES = {reason.name for reason in DECISION_REASONS}


def words(*files):
    """String literals in CamelCase."""
    text = "".join((SOURCE / file).read_text() for file in files)
    return set(re.findall(r'"([A-Z][a-z]+(?:[A-Z][a-z]+)*)"', text))


def test_every_reason_is_explained():
    assert words(*SAYS) <= NAMES


def test_every_explained_reason_is_given():
    prometheus = {name for name in NAMES if name.startswith("Prometheus")}  # "Prometheus" + what the edge reports
    assert NAMES - prometheus <= words(*JUDGES)
    assert {name.removeprefix("Prometheus") for name in prometheus} <= words(*JUDGES)


def test_each_stands_once():
    assert len(NAMES) == len(DECISION_REASONS)
