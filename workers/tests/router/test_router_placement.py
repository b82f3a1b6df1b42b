"""Which pair: tables for the rules, hypothesis for what must never happen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_router.placement import Ask, Candidate, Nowhere, Pair, Tried, culprits, place
from tandem_router.worker import Role, Worker
from tandem_router.workers import Registry


def seen(
    name: str, requests: int = 0, tokens: int = 0, *, shunned: bool = False, ready: bool = True, deleting: bool = False
) -> Candidate:
    role = {"p": Role.PREFILL, "d": Role.DECODE, "b": Role.BOTH}[name[0]]
    return Candidate(Worker(name, f"{name}:8000", f"{name}:8001", role, ready, deleting), requests, tokens, shunned)


NOTHING = Tried()


@pytest.mark.parametrize(
    ("candidates", "tried", "expected"),
    [
        pytest.param([seen("p0"), seen("d0")], NOTHING, ("p0", "d0"), id="one of each"),
        pytest.param(
            [seen("p0", tokens=9), seen("p1", tokens=5), seen("d0")], NOTHING, ("p1", "d0"), id="least to compute"
        ),
        pytest.param([seen("p0"), seen("d0", 3), seen("d1", 2)], NOTHING, ("p0", "d1"), id="fewest requests"),
        pytest.param(
            [seen("d0", 1, 900), seen("d1", 1, 10)], NOTHING, ("", "d1"), id="equal requests: fewer prompt tokens"
        ),
        pytest.param([seen("d0")], NOTHING, ("", "d0"), id="no prefill worker: alone"),
        pytest.param([seen("b0")], NOTHING, ("", "b0"), id="both: alone"),
        pytest.param(
            [seen("b0", 2, 5), seen("b1", 1, 90)], NOTHING, ("", "b1"), id="two both: never a transfer between them"
        ),
        pytest.param(
            [seen("b0", 0, 50), seen("p0", 0, 10)], NOTHING, ("p0", "b0"), id="both as decode, prefill has less"
        ),
        pytest.param(
            [seen("b0", 0, 10), seen("p0", 0, 10)], NOTHING, ("", "b0"), id="both as decode, a tie stays at home"
        ),
        pytest.param([seen("b0", 5), seen("d0", 1)], NOTHING, ("b0", "d0"), id="both as prefill"),
        pytest.param([seen("p0", ready=False), seen("d0")], NOTHING, ("", "d0"), id="prefill not ready"),
        pytest.param(
            [seen("p0"), seen("d0", deleting=True), seen("d1", 9)], NOTHING, ("p0", "d1"), id="decode is being deleted"
        ),
        pytest.param(
            [seen("p0"), seen("d0", shunned=True), seen("d1", 9)], NOTHING, ("p0", "d1"), id="shunned comes last"
        ),
        pytest.param(
            [seen("p0"), seen("d0", shunned=True)], NOTHING, ("p0", "d0"), id="shunned, but there is no other"
        ),
        pytest.param(
            [seen("p0", shunned=True), seen("d0")], NOTHING, ("", "d0"), id="rather alone than with a shunned one"
        ),
        pytest.param(
            [seen("p0"), seen("d0"), seen("d1"), seen("d2")],
            Tried(frozenset({("p0", "d0"), ("p0", "d1")})),
            ("", "d2"),
            id="prefill failed with two: alone",
        ),
        pytest.param(
            [seen("p0", shunned=True), seen("d0")],
            Tried(frozenset({("", "d0")})),
            ("p0", "d0"),
            id="a shunned prefill worker when nothing else is left",
        ),
        pytest.param(
            [seen("p0"), seen("p1"), seen("d0"), seen("d1")],
            Tried(frozenset({("p0", "d0")})),
            ("p1", "d1"),
            id="after a bad pair neither of its workers, if it can be helped",
        ),
        pytest.param(
            [seen("p0"), seen("d0")], Tried(frozenset({("p0", "d0")})), ("", "d0"), id="the only pair is bad: alone"
        ),
        pytest.param(
            [seen("p0"), seen("d0"), seen("d1")],
            Tried(frozenset(), frozenset({"d0"})),
            ("p0", "d1"),
            id="excluded worker",
        ),
    ],
)
def test_the_pair(candidates, tried, expected):
    chosen = place(Ask(10), candidates, tried, turn=0)
    assert isinstance(chosen, Pair)
    assert chosen.key == expected
    assert chosen.decode.name in chosen.reason


@pytest.mark.parametrize(
    ("candidates", "tried", "words"),
    [
        pytest.param([], NOTHING, "0 workers known, ready: none", id="no worker"),
        pytest.param(
            [seen("p0")], NOTHING, "role decode (or both): 1 workers known, ready: p0 (prefill)", id="only prefill"
        ),
        pytest.param([seen("d0", ready=False)], NOTHING, "1 workers known, ready: none", id="not ready"),
        pytest.param(
            [seen("p0"), seen("d0")],
            Tried(frozenset({("p0", "d0"), ("", "d0")})),
            "every pair",
            id="all pairs were tried",
        ),
    ],
)
def test_nowhere_says_what_is_missing(candidates, tried, words):
    answer = place(Ask(10), candidates, tried, turn=0)
    assert isinstance(answer, Nowhere)
    assert answer.role is Role.DECODE
    assert words in answer.reason


@pytest.mark.parametrize(
    ("tried", "served", "guilty"),
    [
        pytest.param([], ("p0", "d0"), set(), id="at once"),
        pytest.param([("p0", "d0")], ("", "d0"), {"p0"}, id="without it it works"),
        pytest.param([("p0", "d0")], ("p1", "d0"), {"p0"}, id="with another prefill worker it works"),
        pytest.param([("p0", "d0")], ("p0", "d1"), {"d0"}, id="with another decode worker it works"),
        pytest.param([("p0", "d0")], ("p1", "d1"), set(), id="one of two, not known which"),
        pytest.param([("p0", "d0"), ("p0", "d1")], ("", "d2"), {"p0"}, id="failed with two"),
        pytest.param([("", "d0")], ("", "d1"), set(), id="alone, and alone elsewhere"),
    ],
)
def test_culprits(tried, served, guilty):
    pair = Pair(seen(served[0]).worker if served[0] else None, seen(served[1]).worker, "")
    assert culprits(Tried(frozenset(tried)), pair) == guilty


def test_cached_tokens_count_against_load():
    workers = [seen("p0", tokens=100), seen("p1", tokens=0), seen("d0")]
    cold = place(Ask(500), workers, NOTHING, 0)
    warm = place(Ask(500, {"p0": 400}), workers, NOTHING, 0)
    assert [cold.key[0], warm.key[0]] == ["p1", "p0"]


def test_ties_go_round():
    workers = [seen("p0"), seen("p1"), seen("d0"), seen("d1"), seen("d2")]
    chosen = [place(Ask(1), workers, NOTHING, turn).key for turn in range(6)]
    assert sorted({d for _, d in chosen}) == ["d0", "d1", "d2"]
    assert sorted({p for p, _ in chosen}) == ["p0", "p1"]


names = st.sampled_from(["p0", "p1", "p2", "d0", "d1", "d2", "b0", "b1"])
candidate = st.builds(
    seen,
    names,
    st.integers(0, 50),
    st.integers(0, 9000),
    shunned=st.booleans(),
    ready=st.booleans(),
    deleting=st.booleans(),
)
crowds = st.lists(candidate, max_size=8, unique_by=lambda c: c.worker.name)
trials = st.builds(
    Tried, st.frozensets(st.tuples(st.one_of(st.just(""), names), names), max_size=6), st.frozensets(names, max_size=2)
)


@given(crowds, trials, st.integers(0, 1000))
def test_never_a_worker_that_cannot(candidates, tried, turn):
    chosen = place(Ask(100), candidates, tried, turn)
    if isinstance(chosen, Nowhere):
        return
    for worker in filter(None, (chosen.prefill, chosen.decode)):
        assert worker.ready
        assert not worker.deleting
        assert worker.name not in tried.workers
    assert chosen.key not in tried.pairs
    assert chosen.decode.role is not Role.PREFILL
    assert chosen.prefill is None or chosen.prefill.role is not Role.DECODE
    assert chosen.prefill != chosen.decode


@given(crowds, st.integers(0, 1000))
def test_somebody_serves_whenever_a_decode_worker_can(candidates, turn):
    able = any(c.worker.can_serve and c.worker.role is not Role.PREFILL for c in candidates)
    assert isinstance(place(Ask(100), candidates, NOTHING, turn), Pair) == able


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(1, 2000), min_size=1, max_size=60))
def test_load_stays_balanced(prefills, decodes, prompts):
    """Requests that all stay open spread evenly; no prefill worker is a whole prompt ahead of another."""
    registry = Registry()
    for worker in [*(f"p{i}" for i in range(prefills)), *(f"d{i}" for i in range(decodes))]:
        registry.put(seen(worker).worker)
    for tokens in prompts:
        registry.begin(registry.choose(Ask(tokens), NOTHING, 0.0), tokens)
    requests = [registry.load(f"d{i}").requests for i in range(decodes)]
    waiting = [registry.load(f"p{i}").prefill_tokens for i in range(prefills)]
    assert max(requests) - min(requests) <= 1
    assert max(waiting) - min(waiting) <= max(prompts)


def of_revision(name: str, revision: str, requests: int = 0, *, ready: bool = True) -> Candidate:
    role = {"p": Role.PREFILL, "d": Role.DECODE, "b": Role.BOTH}[name[0]]
    worker = Worker(name, f"{name}:8000", f"{name}:8001", role, ready, revision=revision)
    return Candidate(worker, requests)


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        pytest.param(
            [of_revision("p0", "old"), of_revision("d0", "old", 9), of_revision("d1", "new")],
            ("p0", "d0"),
            id="a new decode worker without its prefill half waits",
        ),
        pytest.param(
            [of_revision("p0", "old"), of_revision("d0", "old", 9), of_revision("p1", "new"), of_revision("d1", "new")],
            ("p1", "d1"),
            id="both halves are up: it serves, with its own kind",
        ),
        pytest.param(
            [of_revision("p0", "old"), of_revision("p1", "new"), of_revision("d1", "new")],
            ("p1", "d1"),
            id="the old half that is left is left alone",
        ),
        pytest.param(
            [of_revision("p0", "old"), of_revision("d1", "new")],
            ("", "d1"),
            id="no revision is whole: a decode worker does the whole job",
        ),
        pytest.param(
            [of_revision("p0", "old"), of_revision("d0", "old", 9), of_revision("b1", "new")],
            ("", "b1"),
            id="one that does both is whole by itself",
        ),
        pytest.param(
            [of_revision("p0", "old"), of_revision("d0", "old"), of_revision("p1", "new"),
             of_revision("d1", "new", ready=False)],
            ("p0", "d0"),
            id="a half that is not ready does not count",
        ),
    ],
)  # fmt: skip
def test_revisions_serve_as_pairs(candidates, expected):
    choice = place(Ask(10), candidates, NOTHING, 0)
    assert isinstance(choice, Pair)
    assert choice.key == expected
