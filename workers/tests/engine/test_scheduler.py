"""The scheduler as a table: what is there, what runs next."""

import pytest

from tandem_worker.engine.scheduler import MAX_ASKED, Bounds, Decoding, Prefilling, StepPlan, plan_step

BOUNDS = Bounds(chunk_tokens=100, max_batch=4)


def decode(name: str, age: int = 0, *, page: bool = False, priority: int = 0) -> Decoding:
    return Decoding(name, age, page, priority)


def job(name: str, left: int, need: int = 1, age: int = 9, *, started: bool = False) -> Prefilling:
    return Prefilling(name, age, left, 0 if started else need, started)


def half(name: str, left: int, ticket: str, need: int = 1) -> Prefilling:
    return Prefilling(name, 9, left, need, started=False, ticket=ticket)


@pytest.mark.parametrize(
    ("decoding", "queue", "free", "expected"),
    [
        pytest.param([], [], 9, StepPlan(), id="nothing to do"),
        pytest.param([decode("a"), decode("b")], [], 9, StepPlan(decode=("a", "b")), id="all decode together"),
        pytest.param([], [job("p", 250)], 9, StepPlan(prefill=(("p", 100),)), id="a long prompt goes by chunks"),
        pytest.param(
            [decode("a")], [job("p", 250)], 9,
            StepPlan(decode=("a",), prefill=(("p", 100),)), id="decode beside a chunk",
        ),
        pytest.param(
            [], [job("p", 40), job("q", 30), job("r", 50)], 9,
            StepPlan(prefill=(("p", 40), ("q", 30), ("r", 30))), id="short prompts share a chunk",
        ),
        pytest.param([], [job("p", 40, need=10), job("q", 30)], 9, StepPlan(), id="no overtaking when pages are short"),
        pytest.param(
            [decode("a"), decode("b")], [job("p", 40, need=2)], 3, StepPlan(decode=("a", "b")),
            id="each decode keeps a spare page",
        ),
        pytest.param(
            [decode("a"), decode("b")], [job("p", 40, need=2)], 4, StepPlan(decode=("a", "b"), prefill=(("p", 40),)),
            id="and what is left may start",
        ),
        pytest.param(
            [decode(name) for name in "abcd"], [job("p", 40)], 99,
            StepPlan(decode=tuple("abcd")), id="no seat: no start",
        ),
        pytest.param(
            [decode(name) for name in "abcd"], [half("p", 40, "granted")], 99,
            StepPlan(decode=tuple("abcd"), prefill=(("p", 40),)), id="a prefill half needs no seat",
        ),
        pytest.param(
            [decode("a", 1, page=True), decode("b", 2, page=True)], [], 1, StepPlan(preempt=("b",)),
            id="the youngest gives way",
        ),
        pytest.param(
            [decode("a", 1, page=True, priority=1), decode("b", 2, page=True)], [], 1, StepPlan(preempt=("a",)),
            id="the less urgent gives way, young or old",
        ),
        pytest.param(
            [decode("a", 1, page=True)], [job("p", 50, age=2, started=True)], 0, StepPlan(preempt=("p",)),
            id="a younger prefill gives way to a decode",
        ),
        pytest.param([decode("a", 1, page=True)], [], 0, StepPlan(preempt=("a",)), id="alone, it waits itself"),
        pytest.param([], [half("p", 40, "unasked")], 9, StepPlan(ask=("p",)), id="the head asks for its ticket"),
        pytest.param(
            [], [half("p", 40, "asked"), job("q", 30)], 9, StepPlan(prefill=(("q", 30),)),
            id="who waits for a ticket is passed over",
        ),
        pytest.param(
            [], [*(half(f"s{at}", 40, "deferred") for at in range(MAX_ASKED)), half("p", 40, "unasked")], 9,
            StepPlan(ask=("p",)), id="who has no room at its decode worker holds nobody up",
        ),
        pytest.param(
            [], [half("p", 150, "granted"), half("q", 90, "unasked"), half("r", 10, "unasked")], 9,
            StepPlan(prefill=(("p", 100),), ask=("q",)), id="tickets are asked for two chunks ahead, no further",
        ),
    ],
)  # fmt: skip
def test_next_step(decoding, queue, free, expected):
    assert plan_step(decoding, queue, free, BOUNDS) == expected


def test_tickets_asked_for_are_bounded():
    queue = [half(f"p{at}", 1, "unasked") for at in range(50)]
    assert len(plan_step([], queue, 99, BOUNDS).ask) == MAX_ASKED
    stuck = [half(f"p{at}", 1, "asked") for at in range(MAX_ASKED)]
    assert plan_step([], [*stuck, *queue], 99, BOUNDS).ask == ()
