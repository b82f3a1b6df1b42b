"""The fleet observer: one question for all, each resource at its own interval, a bounded history."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tandem_operator.edges.errors import PrometheusError
from tandem_operator.edges.prometheus import Facts
from tandem_operator.loop.fleet import HISTORY, Fleet, Subject, backend_of
from tandem_operator.loop.refs import Ref
from tandem_operator.plan.facts import Answer, Slo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SLO = Slo(500, 40, 95)
FAST, SLOW = Subject(Ref("ns", "fast"), SLO, 5), Subject(Ref("ns", "slow"), SLO, 15)


class Source:
    """Answers with `reading`, or raises it."""

    def __init__(self, reading):
        self.reading, self.asked = reading, 0

    async def ask(self):
        self.asked += 1
        if isinstance(self.reading, Exception):
            raise self.reading
        return self.reading


def facts(**numbers):
    return Facts({(name, ""): value for name, value in {"up": 2.0, "arrivals": 1.0, **numbers}.items()})


def all_up():
    return {("ns", "fast"): facts(), ("ns", "slow"): facts()}


async def test_each_at_its_own_interval_and_one_question_for_all():
    source = Source(all_up())
    fleet = Fleet(source, 60)
    seen = [await fleet.observe([FAST, SLOW], NOW + timedelta(seconds=s)) for s in (0, 2, 5, 10, 15)]
    assert seen == [[FAST.ref, SLOW.ref], [], [FAST.ref], [FAST.ref], [FAST.ref, SLOW.ref]]
    assert source.asked == 4
    assert [len(fleet.look(s.ref).history) for s in (FAST, SLOW)] == [4, 2]
    assert fleet.look(FAST.ref).number == 4


async def test_the_history_is_bounded_and_ordered():
    fleet = Fleet(Source(all_up()), 60)
    for i in range(HISTORY + 10):
        await fleet.observe([FAST], NOW + timedelta(seconds=5 * i))
    times = [window.at for window in fleet.look(FAST.ref).history]
    assert len(times) == HISTORY
    assert times == sorted(times)
    assert times[-1] == NOW + timedelta(seconds=5 * (HISTORY + 9))


@pytest.mark.parametrize(("interval", "down_window"), [(5, 0), (5, 300), (5, 3600), (15, 300), (60, 3600)])
async def test_the_history_spans_the_scale_down_window(interval, down_window):
    subject = Subject(FAST.ref, SLO, interval, down_window)
    assert subject.windows * 0.9 * interval >= down_window, "even when every look is as early as a look may be"


async def test_an_outage_keeps_the_history_and_says_so():
    source = Source(all_up())
    fleet = Fleet(source, 60)
    await fleet.observe([FAST], NOW)
    source.reading = PrometheusError("Unreachable", "no answer")
    assert await fleet.observe([FAST], NOW + timedelta(seconds=5)) == [FAST.ref]
    look = fleet.look(FAST.ref)
    assert (look.metrics.answer, look.metrics.reason) == (Answer.NO, "PrometheusUnreachable")
    assert len(look.history) == 1
    assert look.number == 2, "a blind look is judged too"


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        pytest.param({}, "NoSamples", id="absent"),
        pytest.param({("ns", "fast"): facts(up=0.0)}, "NoSamples", id="targets down"),
        pytest.param({("ns", "fast"): facts(arrivals=0.0)}, "NoTraffic", id="idle"),
    ],
)
async def test_absent_down_and_idle_are_three_things(reading, reason):
    fleet = Fleet(Source(reading), 60)
    await fleet.observe([FAST], NOW)
    assert fleet.look(FAST.ref).metrics.reason == reason
    assert len(fleet.look(FAST.ref).history) == (1 if reason == "NoTraffic" else 0)


async def test_a_resource_that_is_gone_is_forgotten():
    fleet = Fleet(Source(all_up()), 60)
    await fleet.observe([FAST, SLOW], NOW)
    await fleet.observe([SLOW], NOW + timedelta(seconds=15))
    assert fleet.look(FAST.ref).number == 0


async def test_nobody_to_ask_for_asks_nothing():
    source = Source(all_up())
    assert await Fleet(source, 60).observe([], NOW) == []
    assert source.asked == 0


@pytest.mark.parametrize(
    ("arrivals", "judged"),
    [
        pytest.param(0.0, [*range(11), *range(14, 23), 24, 32], id="idle: when time may decide"),
        pytest.param(1.0, list(range(HISTORY)), id="the same load: until all windows say it"),
    ],
)
async def test_the_same_again_is_judged_where_a_judgement_may_differ(arrivals, judged):
    fleet = Fleet(Source({("ns", "slow"): facts(arrivals=arrivals)}), 60)
    subject = Subject(SLOW.ref, SLO, 15, down_window_s=300, moments=(120,))
    news = [await fleet.observe([subject], NOW + timedelta(seconds=15 * i)) for i in range(HISTORY + 10)]
    assert [i for i, found in enumerate(news) if found] == judged
    look = fleet.look(SLOW.ref)
    assert look.number == HISTORY + 10
    assert look.history[-1].at == NOW + timedelta(seconds=15 * (HISTORY + 9)), "seen, though not judged"


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param(lambda source: setattr(source, "reading", {("ns", "fast"): facts(arrivals=2.0)}), id="traffic"),
        pytest.param(lambda source: setattr(source, "reading", PrometheusError("Unreachable", "")), id="an outage"),
        pytest.param(lambda source: setattr(source, "reading", {}), id="targets gone"),
    ],
)
async def test_what_interrupts_idleness_is_news_and_so_is_its_end(meanwhile):
    idle = {("ns", "fast"): facts(arrivals=0.0)}
    source = Source(idle)
    fleet = Fleet(source, 60)
    for i in range(7):
        await fleet.observe([FAST], NOW + timedelta(seconds=5 * i))
    meanwhile(source)
    assert await fleet.observe([FAST], NOW + timedelta(seconds=35)) == [FAST.ref]
    assert fleet.look(FAST.ref).metrics.reason != "NoTraffic"
    source.reading = idle
    assert await fleet.observe([FAST], NOW + timedelta(seconds=40)) == [FAST.ref]
    assert fleet.look(FAST.ref).metrics.reason == "NoTraffic"


async def test_another_target_reads_the_same_figures_anew():
    source = Source({("ns", "fast"): facts(arrivals=0.0)})
    fleet = Fleet(source, 60)
    await fleet.observe([FAST], NOW)
    source.reading = {("ns", "fast"): facts(arrivals=0.0)}
    await fleet.observe([FAST], NOW + timedelta(seconds=5))
    first, second = fleet.look(FAST.ref).history
    assert first.prefill is second.prefill, "kept once"
    await fleet.observe([replace(FAST, slo=Slo(100, 10, 50))], NOW + timedelta(seconds=10))
    assert fleet.look(FAST.ref).history[-1].prefill is not first.prefill


@pytest.mark.parametrize(
    ("backends", "copied", "expected"),
    [
        ({}, None, None),
        ({"nixl": 1.0}, None, "nixl"),
        ({"nixl": 1.0}, 0.0, "nixl"),
        ({"nixl": 1.0}, 1e6, "tcp"),
        ({"nixl": 1.0, "tcp": 1.0}, 0.0, "tcp"),
        ({"shm": 1.0, "nixl": 0.0}, 0.0, "shm"),
    ],
)
def test_tcp_does_not_hide_behind_rdma(backends, copied, expected):
    seen = {("backend", name): value for name, value in backends.items()}
    assert backend_of(Facts(seen if copied is None else {**seen, ("copied", ""): copied})) == expected
