import pytest

from tandem_operator.simulate.published import fleets, ours
from tandem_operator.simulate.published.costs import Point
from tandem_operator.simulate.published.splitwise import LLAMA, Link


@pytest.mark.parametrize(
    ("design", "price", "power"),
    [
        pytest.param(fleets.BASELINE_H100, 1.0, 1.0, id="the base"),
        pytest.param(fleets.BASELINE_A100, 0.81, 0.99, id="a fifth cheaper at the same power"),
        pytest.param(fleets.SPLITWISE_AA, 0.81, 0.99, id="the same split"),
        pytest.param(fleets.SPLITWISE_HA, 0.93, 0.99, id="two kinds"),
        pytest.param(fleets.SPLITWISE_HHCAP, 1.15, 0.99, id="capped decode machines"),
    ],
)
def test_designs_of_equal_power(design, price, power):
    base = fleets.BASELINE_H100
    assert (design.price / base.price, design.power / base.power) == pytest.approx((price, power), abs=0.006)


@pytest.mark.parametrize(
    ("carries", "found"),
    [
        pytest.param(0, None, id="not even the first"),
        pytest.param(10, 10, id="the first"),
        pytest.param(37, 30, id="between two"),
        pytest.param(99, 50, id="all"),
    ],
)
@pytest.mark.parametrize("near", [None, 10, 30, 50, 77])
def test_the_highest_rate_within_the_slo(monkeypatch, carries, found, near):
    monkeypatch.setattr(fleets, "poisson", lambda azure, rate, seconds: rate)

    class Rules:
        def meets_slo(self, design, arrivals):
            return arrivals <= carries

    assert fleets.highest_rate(Rules(), fleets.BASELINE_A100, None, range(10, 51, 10), 60, near) == found


@pytest.mark.parametrize(
    ("design", "moved", "counts"),
    [
        pytest.param(fleets.SPLITWISE_AA, -10, "35P+35D", id="more decode"),
        pytest.param(fleets.SPLITWISE_AA, 30, None, id="a pool would be empty"),
        pytest.param(fleets.SPLITWISE_HA, -10, None, id="two kinds cannot change places"),
        pytest.param(fleets.BASELINE_A100, -10, None, id="colocated"),
    ],
)
def test_moving_machines(design, moved, counts):
    got = design.moved(moved)
    assert (got and got.counts) == counts


@pytest.mark.parametrize(
    ("best", "counts", "rate"),
    [
        pytest.param(25, "25P+45D", 50, id="two moves towards decode"),
        pytest.param(45, "45P+25D", 50, id="none"),
        pytest.param(55, "55P+15D", 50, id="one towards prompts"),
    ],
)
def test_the_best_split(monkeypatch, best, counts, rate):
    monkeypatch.setattr(fleets, "poisson", lambda azure, rate, seconds: rate)

    class Rules:
        def meets_slo(self, design, arrivals):
            return arrivals <= 50 - abs(design.prompt.count - best)

    got, carried = fleets.best_split(Rules(), fleets.SPLITWISE_AA, None, range(10, 101, 10), 60)
    assert (got.counts, carried) == (counts, rate)


def test_our_rules_come_one_at_a_time():
    points = [Point(p, b, 128, 1e-4 * p * b, 0.02 + 1e-4 * b) for p, b in ((128, 1), (512, 1), (512, 2), (512, 8))]
    table = {("llama2-70b", hardware, 8): points for hardware in (fleets.A100, fleets.H100, fleets.CAPPED)}
    plain, context, gqa, contention, sheets = ours.changes(table, LLAMA)
    assert plain.costs[fleets.A100].step(4, 9) != context.costs[fleets.A100].step(4, 9)
    assert gqa.shape.room == pytest.approx(8 * context.shape.room), "8 of 64 heads have keys and values"
    assert (gqa.link, contention.link.is_shared) == (Link(), True)
    assert sheets.costs[fleets.H100].step(1, 0)[0] < sheets.costs[fleets.A100].step(1, 0)[0]
