"""The search against weighing every plan, and what must hold whatever the sizes are."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.plan.calibrate import Fit
from tandem_operator.plan.candidates import Step, candidates
from tandem_operator.plan.desk import Desk
from tandem_operator.plan.facts import Device, Limits, RebalanceMode, Role, Slo, Target
from tandem_operator.plan.gallop import downhill, first, last
from tandem_operator.plan.predict import Load, Model
from tandem_operator.plan.search import Bar, Region, Search
from tests.plan.examples import SMOL, pool

SURE = Fit((1.0, 1.0, 1.0), ((1e-3,) * 3,) * 3, 9)
MODEL = Model(SURE, SURE, 64)
SLOW = Device("slow", 1e12, 1e9 * 16, 40e9, 12.5e9, 1.0)
FAST = Device("fast", 2e12, 1e9 * 16, 80e9, 12.5e9, 1.9)


def limits_of(most=(8, 8), devices=(SLOW, SLOW), **changes):
    pools = (
        pool(low=1, high=most[0], device=devices[0]),
        pool("decode", Role.DECODE, 1, most[1], device=devices[1]),
    )
    return replace(Limits(Slo(1500, 40, 90), RebalanceMode.AUTO, pools, role_flips=True), **changes)


def every(desk, now, flips):
    """All plans that the step allows, each weighed."""
    step = Step(99, 99, flips)
    return [desk.weigh(t, now) for t in candidates(desk.limits, now, step)]


def whole(limits):
    return Region(tuple(p.minimum for p in limits.pools), tuple(p.maximum for p in limits.pools))


@st.composite
def cases(draw, devices=((SLOW, SLOW), (FAST, FAST))):
    limits = limits_of(
        (draw(st.integers(2, 7)), draw(st.integers(2, 7))),
        draw(st.sampled_from(devices)),
        role_flips=draw(st.booleans()),
        budget_gpus=draw(st.none() | st.integers(4, 12)),
    )
    load = Load(draw(st.floats(0.2, 12)), draw(st.sampled_from([64.0, 512.0, 2000.0])), 0.0, draw(st.floats(2, 200)))
    load = load._replace(computed_tokens=load.prompt_tokens, arrival_cv2=draw(st.none() | st.floats(0.5, 4)))
    now = Target({"prefill": 1, "decode": 1}, 1, 1)
    return limits, load, now, draw(st.integers(0, 4))


@settings(deadline=None, max_examples=80)
@given(cases())
def test_the_cheapest_plan_is_the_one_that_weighing_all_finds(case):
    limits, load, now, flips = case
    desk = Desk(limits, SMOL, load, MODEL, limits.slo)
    bar = Bar(sure=0.9)
    good = [o for o in every(desk, now, flips) if o.sure >= 0.9]
    found = Search(desk, now, flips).cheapest(whole(limits), bar)
    assert (found is None) is (not good)
    if found:
        best = min(good, key=lambda o: (round(o.cost, 6), o.change))
        assert found.cost == pytest.approx(best.cost)
        assert found.change == best.change


@settings(deadline=None, max_examples=60)
@given(cases())
def test_the_closest_plan_is_the_one_that_weighing_all_finds(case):
    limits, load, now, flips = case
    desk = Desk(limits, SMOL, load, MODEL, limits.slo)
    plans = every(desk, now, flips)
    found = Search(desk, now, flips).closest(whole(limits))
    if not plans:
        assert found is None
        return
    best = min(plans, key=lambda o: (-round(o.sure, 2), round(o.forecast.overload, 2)))
    assert found.rating.sure >= best.sure - 0.02
    if best.sure < 0.01:
        assert found.rating.overload <= 1.05 * best.forecast.overload + 0.01


@settings(deadline=None, max_examples=60)
@given(cases(devices=((FAST, SLOW), (SLOW, FAST))))
def test_of_two_device_types_the_plan_is_good_and_never_much_dearer(case):
    """A slow device in a fast role breaks the order that the search relies on: nothing wrong may come of it."""
    limits, load, now, flips = case
    desk = Desk(limits, SMOL, load, MODEL, limits.slo)
    good = [o for o in every(desk, now, flips) if o.sure >= 0.9]
    found = Search(desk, now, flips).cheapest(whole(limits), Bar(sure=0.9))
    if found:
        assert desk.weigh(Search(desk, now, flips).target(found), now).sure >= 0.9
        assert found.cost <= 1.35 * min(o.cost for o in good) + 1e-9
    elif good:
        assert min(o.cost for o in good) > 0.8 * max(o.cost for o in every(desk, now, flips))


@given(st.integers(-20, 20), st.integers(0, 30), st.integers(-60, 60), st.integers(-60, 60))
def test_galloping_finds_the_edge(low, size, edge, hint):
    high = low + size
    expected = max(edge, low) if edge <= high else None
    assert first(lambda x: x >= edge, low, high, hint) == expected
    assert last(lambda x: x <= edge, low, high, hint) == (min(edge, high) if edge >= low else None)


@given(st.integers(-20, 20), st.integers(0, 60), st.integers(-90, 90), st.integers(0, 60))
def test_downhill_ends_at_the_bottom(low, size, bottom, start):
    high = low + size
    found = downhill(lambda x: abs(x - bottom), min(low + start, high), low, high)
    assert found == min(max(bottom, low), high)
