"""Each peer's formula on examples computed by hand."""

import pytest

from tandem_operator.plan.facts import Slo
from tandem_operator.plan.policies import aibrix, hpa, wva
from tandem_operator.plan.policies.budget import Budget
from tandem_operator.plan.policies.dynamo import throughput_counts
from tandem_operator.plan.policies.kthena import enforce_ratio
from tandem_operator.plan.policies.mooncake import EarlyRejection
from tandem_operator.plan.policies.profile import Profile
from tandem_operator.plan.policies.signals import Traffic

# 1 ms a prompt token; a step of 10 ms and 1 ms a request.
PROFILE = Profile(0.0, 0.001, 0.0, 0.010, 0.001, 0.0, max_batch=64, kv_room_tokens=20_000)


@pytest.mark.parametrize(
    ("current", "value", "measured", "missing", "count"),
    [
        pytest.param(4, 1.05, 4, 0, 4, id="5 % above: within the tolerance"),
        pytest.param(4, 1.5, 4, 0, 6, id="150 % of 4 pods: 6"),
        pytest.param(4, 0.5, 4, 0, 2, id="half: 2"),
        pytest.param(4, None, 0, 4, None, id="no pod reports: nothing is recommended"),
        pytest.param(6, 1.5, 4, 2, 6, id="2 pods start: 0 % for them gives 1.0, within the tolerance"),
        pytest.param(6, 2.0, 4, 2, 8, id="2 pods start, 4 at 200 %: 8/6 = 1.33 of 6"),
        pytest.param(4, 0.5, 2, 2, 3, id="2 are silent: at 100 % they make 0.75 of 4, not 0.5"),
        pytest.param(4, 0.5, 1, 3, 4, id="3 are silent: 3.5/4 = 0.875, 3.5 pods, rounded up"),
        pytest.param(10, 0.95, 1, 9, 10, id="silent pods bring the ratio within the tolerance"),
        pytest.param(3, 1.3, 2, 1, 3, id="a start turns 1.3 into 0.87: it turned round, nothing moves"),
    ],
)
def test_hpa(current, value, measured, missing, count):
    assert hpa.recommend(current, value, measured, missing, target=1.0) == count


@pytest.mark.parametrize(
    ("current", "value", "count"),
    [
        pytest.param(4, 1.05, 4, id="inside 10 %"),
        pytest.param(4, 1.2, 5, id="ceil(4.8)"),
        pytest.param(4, 3.0, 8, id="at most twice"),
        pytest.param(4, 0.6, 3, id="ceil(2.4)"),
        pytest.param(4, 0.1, 2, id="at least half"),
        pytest.param(5, 0.0, 2, id="floor(5/2)"),
    ],
)
def test_aibrix(current, value, count):
    assert aibrix.recommend(current, value, target=1.0) == count


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        pytest.param((2, 2), (2, 2), id="inside"),
        pytest.param((8, 2), (8, 4), id="too many prefill: decode is added, none taken"),
        pytest.param((1, 4), (2, 4), id="too few prefill: prefill is added"),
        pytest.param((12, 2), (12, 6), id="up to the bounds"),
        pytest.param((1, 8), (4, 8), id="half of 8"),
    ],
)
def test_kthena_keeps_the_ratio_in_replicas(asked, got):
    assert enforce_ratio(*asked, 0.5, 2.0, (1, 12), (1, 8)) == got


def test_kthena_takes_prefill_away_where_decode_may_not_grow():
    assert enforce_ratio(12, 2, 0.5, 2.0, (1, 12), (1, 4)) == (8, 4)


@pytest.mark.parametrize(
    ("rate", "prompt", "output", "share", "counts"),
    [
        # 1000 tokens take 1 s: 2.5 a second need 3. B: (50 - 10)/1 = 40, memory 20000/1050 = 19; step 29 ms;
        # one worker ends 19/(100·0.029) = 6.55 a second.
        pytest.param(2.5, 1000, 100, 1.0, (3, 1), id="one decode worker is enough"),
        pytest.param(20.0, 1000, 100, 1.0, (20, 4), id="20/6.55 = 3.05: 4"),
        pytest.param(20.0, 1000, 100, 0.5, (10, 4), id="half of the prompt is cached: prefill halves, decode does not"),
        pytest.param(0.1, 5000, 100, 1.0, (3, 1), id="5 s alone, 2 s wanted: ceil(5/2) at least"),
    ],
)
def test_dynamo_throughput(rate, prompt, output, share, counts):
    assert throughput_counts(PROFILE, Traffic(rate, prompt, output, share), Slo(2000, 50, 99)) == counts


@pytest.mark.parametrize(
    ("least", "most", "now", "asked", "got"),
    [
        pytest.param(None, 12, (2, 2), (3, 3), (3, 3), id="fits: 2·3 + 2·3 = 12"),
        pytest.param(None, 8, (2, 2), (3, 3), (2, 2), id="full: growth waits"),
        pytest.param(None, 8, (2, 2), (1, 3), (1, 3), id="a full budget still lets one go for another"),
        pytest.param(None, 7, (2, 1), (1, 4), (1, 2), id="opposing, cut: both move"),
        pytest.param(8, 8, (2, 2), (1, 2), (1, 2), id="pinned: the lower edge gives way by one worker"),
        pytest.param(8, 8, (2, 2), (1, 1), (1, 2), id="... but not by two"),
    ],
)
def test_dynamo_budget_keeps_directions(least, most, now, asked, got):
    assert Budget(2, 2, least, most).fit(now, asked) == got


@pytest.mark.parametrize(
    ("most", "asked", "got"),
    [
        pytest.param(12, (6, 6), (3, 3), id="half of everything"),
        pytest.param(12, (8, 2), (4, 2), id="in proportion: floor(8·12/20) = 4"),
        pytest.param(2, (2, 2), (0, 0), id="not even one of each fits: refused"),
    ],
)
def test_dynamo_budget_clamps_in_proportion(most, asked, got):
    assert Budget(2, 2, most=most).clamp(*asked) == got


@pytest.mark.parametrize(
    ("replicas", "kv", "queue", "step"),
    [
        pytest.param(2, 0.5, 1.0, 0, id="one worker would be at 0.5·2 = 1.0"),
        pytest.param(3, 0.4, 0.0, -1, id="0.4·3/2 = 0.6: 0.2 spare"),
        pytest.param(3, 0.5, 0.0, 0, id="0.5·3/2 = 0.75: 0.05 spare"),
        pytest.param(2, 0.75, 0.0, 1, id="0.05 spare"),
        pytest.param(2, 0.2, 2.5, 1, id="2.5 of 5 wait: 2.5 spare"),
        pytest.param(1, 0.0, 0.0, 0, id="the last one stays"),
    ],
)
def test_wva_saturation(replicas, kv, queue, step):
    assert wva.saturation(replicas, kv, queue) == step


@pytest.mark.parametrize(
    ("waiting", "running", "admitted"),
    [
        pytest.param(900, 10, True, id="0.9 + 1.0 s of 2 s, step 21 ms of 50"),
        pytest.param(1100, 10, False, id="2.1 s"),
        pytest.param(0, 19, True, id="20 of 1000 tokens just fit"),
        pytest.param(0, 20, False, id="one more does not"),
    ],
)
def test_mooncake_rejects_early(waiting, running, admitted):
    assert EarlyRejection(PROFILE, Slo(2000, 50, 99)).admits(1000, waiting, running, 1000.0) is admitted
