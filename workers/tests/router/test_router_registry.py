"""Pods and watch events into workers, and what is outstanding on them."""

from __future__ import annotations

import json

import msgspec
import pytest

from tandem_router.discovery import ApiRefusedError, ExpiredError, apply, backoff_s
from tandem_router.placement import Ask, Pair, Tried
from tandem_router.pods import Pod, WatchEvent, worker_of
from tandem_router.worker import Role, Worker
from tandem_router.workers import Registry
from workers.tests.router.standins import pod

READY = Worker("w", "10.0.0.1:8000", "10.0.0.1:8001", Role.DECODE, ready=True)


# As the API server writes it.
BOOKMARK = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {"resourceVersion": "99", "creationTimestamp": None, "labels": None},
    "spec": {"containers": None},
    "status": {},
}


def event(kind: str, thing: dict) -> WatchEvent:
    return msgspec.json.decode(json.dumps({"type": kind, "object": thing}), type=WatchEvent)


def without_status(thing: dict) -> dict:
    return {**thing, "status": {}}


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        pytest.param(pod("w"), READY, id="ready"),
        pytest.param(
            pod("w", "prefill"), Worker("w", "10.0.0.1:8000", "10.0.0.1:8001", Role.PREFILL, True), id="prefill"
        ),
        pytest.param(
            pod("w", ready=False), Worker("w", "10.0.0.1:8000", "10.0.0.1:8001", Role.DECODE, False), id="not ready"
        ),
        pytest.param(
            pod("w", deleting=True),
            Worker("w", "10.0.0.1:8000", "10.0.0.1:8001", Role.DECODE, True, True),
            id="deleting",
        ),
        pytest.param(without_status(pod("w")), Worker("w", "", "", Role.DECODE, False), id="no address yet"),
        pytest.param(
            pod("w", ip="fd00::1"), Worker("w", "[fd00::1]:8000", "[fd00::1]:8001", Role.DECODE, True), id="IPv6"
        ),
        pytest.param(pod("w", None), None, id="no role label"),
        pytest.param(pod("w", "boss"), None, id="a role that we do not know"),
    ],
)
def test_pod_to_worker(thing, expected):
    assert worker_of(msgspec.json.decode(json.dumps(thing), type=Pod)) == expected


@pytest.mark.parametrize(
    ("events", "expected", "version"),
    [
        pytest.param([("ADDED", pod("w", version="5"))], {"w": "decode"}, "5", id="added"),
        pytest.param(
            [("ADDED", pod("w")), ("MODIFIED", pod("w", "prefill", version="6"))], {"w": "prefill"}, "6", id="flip"
        ),
        pytest.param([("ADDED", pod("w")), ("DELETED", pod("w", version="7"))], {}, "7", id="deleted"),
        pytest.param(
            [("ADDED", pod("w")), ("MODIFIED", pod("w", None, version="8"))], {}, "8", id="role label taken away"
        ),
        pytest.param([("MODIFIED", pod("w"))], {"w": "decode"}, "1", id="modified before it was known"),
        pytest.param([("DELETED", pod("w"))], {}, "1", id="deleted before it was known"),
        pytest.param(
            [("ADDED", pod("w")), ("BOOKMARK", BOOKMARK)],
            {"w": "decode"},
            "99",
            id="bookmark",
        ),
        pytest.param(
            [("ADDED", pod("w")), ("ODD", pod("v", version="9"))], {"w": "decode"}, "9", id="unknown kind of event"
        ),
    ],
)
def test_watch_events(events, expected, version):
    registry = Registry()
    last = ""
    for kind, thing in events:
        last = apply(event(kind, thing), registry)
    assert {w.name: w.role.value for w in registry.workers} == expected
    assert last == version


@pytest.mark.parametrize(
    ("code", "expected"),
    [pytest.param(410, ExpiredError, id="expired"), pytest.param(500, ApiRefusedError, id="any other")],
)
def test_error_events(code, expected):
    with pytest.raises(expected):
        apply(event("ERROR", {"kind": "Status", "code": code, "reason": "Expired", "message": "too old"}), Registry())


def test_a_list_is_the_whole_truth():
    registry = Registry()
    registry.put(READY)
    registry.replace([Worker("v", "a:1", "a:2", Role.BOTH, True)])
    assert [w.name for w in registry.workers] == ["v"]


def test_only_a_change_rings():
    rings = []
    registry = Registry(lambda: rings.append(1))
    registry.put(READY)
    registry.put(READY)
    registry.remove("w")
    registry.remove("w")
    assert len(rings) == 2


def test_a_share_is_given_back_once_and_outlives_its_worker():
    registry = Registry()
    prefill = Worker("p", "p:1", "p:2", Role.PREFILL, True)
    registry.replace([READY, prefill])
    share = registry.begin(Pair(prefill, READY, ""), 30)
    assert (registry.load("w").requests, registry.load("p").prefill_tokens) == (1, 30)
    share.prefilled()
    share.prefilled()
    assert (registry.load("w").requests, registry.load("p").prefill_tokens) == (1, 0)
    registry.remove("w")
    registry.put(READY)  # a new pod of that name starts from nothing
    share.end()
    share.end()
    assert registry.load("w").requests == 0


def shunned_at(registry: Registry, now: float) -> bool:
    """Whether the first worker of two is avoided."""
    return all(registry.choose(Ask(1), Tried(), now).decode.name == "other" for _ in range(4))


def test_penalty_doubles_and_is_forgiven():
    registry = Registry()
    registry.replace([READY, Worker("other", "o:1", "o:2", Role.DECODE, True)])
    now = 100.0
    for length in (2, 4, 8, 16, 30, 30):
        registry.penalise("w", now)
        registry.penalise("w", now + 0.1)  # others that were refused in the same moment do not double it
        assert shunned_at(registry, now + length - 0.01)
        now += length
        assert not shunned_at(registry, now)
    registry.forgive("w")
    registry.penalise("w", now)
    assert not shunned_at(registry, now + 2)


def test_serving_counts_by_role():
    registry = Registry()
    registry.replace(
        [READY, Worker("p", "p:1", "p:2", Role.PREFILL, False), Worker("b", "b:1", "b:2", Role.BOTH, True)]
    )
    assert registry.serving() == {Role.PREFILL: 0, Role.DECODE: 1, Role.BOTH: 1}


@pytest.mark.parametrize(("turns", "seconds"), [(0, 0), (1, 0), (2, 0.25), (3, 0.5), (4, 1), (9, 30), (500, 30)])
def test_backoff_is_bounded(turns, seconds):
    assert backoff_s(turns) == seconds
