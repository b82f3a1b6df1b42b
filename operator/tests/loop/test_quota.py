"""ResourceQuotas: what a namespace has no more of is not planned with; nobody is asked where nothing grows."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta

import pytest

from tandem_operator.edges.errors import ApiError
from tandem_operator.loop.fleet import Look
from tandem_operator.loop.quota import cap_by
from tandem_operator.plan.facts import RoleUse, Target
from tests.plan.examples import FRESH, SMOL, prompt_window

from .conftest import KIND
from .test_passes import REF, condition, converge, replicas

GPU = "nvidia.com/gpu"


def quota(hard, used, name="gpus", key=f"requests.{GPU}", **spec):
    status = {"hard": {key: hard}, "used": {key: used}}
    return {"metadata": {"name": name, "namespace": REF.namespace}, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("quotas", "gpus"),
    [
        pytest.param([], None, id="none"),
        pytest.param([quota("8", "5")], 7, id="three are left beside the four"),
        pytest.param([quota("8", "5"), quota("6", "5", "tighter")], 5, id="the tightest"),
        pytest.param([quota("4", "9")], 4, id="overdrawn: nothing is taken back"),
        pytest.param([quota("4", "4")], 4, id="used up"),
        pytest.param([quota("8", "5", key="pods")], None, id="of something else"),
        pytest.param([quota("8", "5", scopes=["BestEffort"])], None, id="of some pods alone"),
        pytest.param([quota("8", "5", scopeSelector={"matchExpressions": []})], None, id="of a priority class"),
        pytest.param([quota("2k", "1999")], 5, id="round thousands"),
        pytest.param([quota("8Gi", "5")], None, id="no count"),
        pytest.param([quota(8, 5)], None, id="no string"),
        pytest.param([quota("9" * 40, "5")], None, id="an endless one"),
        pytest.param([{"metadata": {"name": "new", "namespace": "serving"}}], None, id="not counted yet"),
    ],
)
def test_what_a_quota_leaves(quotas, gpus):
    cap = cap_by(quotas, GPU, held=4, floor=4)
    assert (cap and cap.gpus) == gpus
    assert cap is None or (cap.reason, "ResourceQuota" in cap.why) == ("QuotaExhausted", True)


def starving(now):
    """One prefill worker that misses its target for a minute and more, and prompts that pile up."""
    target = Target({"prefill": 1, "decode": 2}, 1, 2)
    piled = (RoleUse(1.0, 1000.0, None, 2.0 * n, 1000.0 * n) for n in range(30))
    times = [now - timedelta(seconds=15 * n) for n in reversed(range(30))]
    use = {"rps": 4.0, "ttft_ms": 4200, "attainment": 0.2}
    return tuple(prompt_window(at, target, prefill=p, **use) for at, p in zip(times, piled, strict=True))


async def under_load(api, world):
    """A look that wants more workers, at a decision of an hour ago."""
    now = datetime.now(UTC)
    item = copy.deepcopy(api.find(KIND, "chat"))
    item["status"]["decision"]["at"] = (now - timedelta(hours=1)).isoformat()
    api.store(KIND, item)
    world.fleet._looks = {REF: Look(FRESH, starving(now), SMOL, at=now, number=1)}
    await converge(api, world)


def gpus(api):
    return sum(count for name, count in replicas(api).items() if name != "chat-router")


@pytest.mark.parametrize(
    ("left", "grows"),
    [
        pytest.param(None, 2, id="no quota: as its pools allow"),
        pytest.param(5, 2, id="enough is left"),
        pytest.param(1, 1, id="one is left"),
        pytest.param(0, 0, id="none is left"),
    ],
)
async def test_growth_stops_at_the_quota(api, start, edit, left, grows):
    edit(lambda spec: spec.update(rebalance={"roleFlips": False}))
    world = await start()
    await converge(api, world)
    before = gpus(api)
    if left is not None:
        api.store("ResourceQuota", quota(str(before + left), str(before)))
    await under_load(api, world)
    assert gpus(api) - before == grows
    limited = condition(api, "ScalingLimited")
    assert (limited["reason"] == "QuotaExhausted") == (left in {0, 1}), limited
    if left == 0:
        assert limited["message"] == f"ResourceQuota gpus has {before} of requests.{GPU}, and {before} are in use"


async def test_a_new_resource_begins_within_the_quota(api, start):
    api.store("ResourceQuota", quota("2", "0"))
    await converge(api, await start())
    assert replicas(api) == {"chat-prefill": 1, "chat-decode": 1, "chat-router": 1}, "initial is 2, the minimum is 1"


async def test_nobody_asks_where_nothing_grows(api, start):
    world = await start()
    await converge(api, world)
    before = api.lists.count(("ResourceQuota", False))
    assert before > 0, "the first target was more than none"
    await converge(api, world)
    assert api.lists.count(("ResourceQuota", False)) == before


async def test_quotas_that_cannot_be_read_hold_nobody_up(api, start, monkeypatch, caplog):
    async def refused(kind, *_args, **_more):
        raise ApiError("Forbidden", f"cannot list {kind}")
        yield

    world = await start()
    others = {"ResourceQuota": refused}
    monkeypatch.setattr(api, "pages", lambda kind, *a, of=api.pages, **k: others.get(kind, of)(kind, *a, **k))
    await converge(api, world)
    assert replicas(api)["chat-decode"] == 2
    assert "quotas of namespace serving cannot be read" in caplog.text
