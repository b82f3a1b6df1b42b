"""A flipped worker that is lost comes back in its pool's home role, and is relabelled until the target stands again."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Ref
from tandem_operator.loop.resync import fill_cache
from tests.loop.passes import converge

KIND, REF = "DisaggregatedInference", Ref("serving", "chat")
HOME = {"prefill": "prefill", "decode": "decode"}


def label(pod, name):
    return pod["metadata"]["labels"].get(f"tandem.dev/{name}")


def workers(api):
    return [pod for pod in api.of("Pod") if label(pod, "pool") in HOME]


def is_ready(pod):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))


def counts(api, ready=False):
    """Workers that prefill, and that decode."""
    roles = [label(pod, "role") for pod in workers(api) if is_ready(pod) or not ready]
    return roles.count("prefill"), roles.count("decode")


def flipped(api):
    return [pod for pod in workers(api) if label(pod, "role") != HOME[label(pod, "pool")]]


def lose(api, pod):
    del api.items["Pod", REF.namespace, pod["metadata"]["name"]]


async def flipped_to(api, start, edit, pools, roles, minima):
    """An operator whose resource has reached this target by flips."""
    edit(lambda spec: spec.update(rebalance={"roles": dict(zip(("minPrefill", "minDecode"), minima, strict=True))}))
    world = await start()
    await converge(api, world)
    item = copy.deepcopy(api.find(KIND, "chat"))
    target = {"pools": pools, "roles": dict(zip(("prefill", "decode"), roles, strict=True))}
    item["status"]["decision"]["target"] = target
    api.store(KIND, item)
    await converge(api, world)
    assert counts(api) == roles
    return world


@pytest.fixture
def least(api, monkeypatch):
    """The fewest ready workers of each role after any relabelling, from the moment that the list is cleared."""
    seen, patch = [], api.patch_pod

    async def watched(pod, **what):
        found = await patch(pod, **what)
        seen.append(counts(api, ready=True))
        return found

    monkeypatch.setattr(api, "patch_pod", watched)
    return seen


ROWS = [
    pytest.param({"prefill": 1, "decode": 2}, (2, 1), (1, 1), 1, id="a decode worker that prefilled"),
    pytest.param({"prefill": 3, "decode": 1}, (1, 3), (1, 1), 1, id="one of two prefill workers that decoded"),
    pytest.param({"prefill": 3, "decode": 1}, (1, 3), (1, 1), 2, id="both of them at once"),
    pytest.param({"prefill": 1, "decode": 4}, (3, 2), (2, 2), 1, id="minima of two"),
    pytest.param({"prefill": 1, "decode": 4}, (3, 2), (3, 2), 2, id="minima that are the target itself"),
]


@pytest.mark.parametrize(("pools", "roles", "minima", "lost"), ROWS)
async def test_a_flipped_pod_that_is_replaced(api, start, edit, least, pools, roles, minima, lost):
    world = await flipped_to(api, start, edit, pools, roles, minima)
    for pod in flipped(api)[:lost]:
        lose(api, pod)
    stayed = {pod["metadata"]["uid"] for pod in workers(api)}
    api.settle()
    came = [pod for pod in workers(api) if pod["metadata"]["uid"] not in stayed]
    assert [label(pod, "role") == HOME[label(pod, "pool")] for pod in came] == [True] * lost, "in the home role"
    before = counts(api, ready=True)
    least.clear()
    await converge(api, world)
    assert counts(api) == roles
    assert len(least) == lost, "a pod is relabelled for each that was lost, and no other"
    floor = [min(was, minimum) for was, minimum in zip(before, minima, strict=True)]
    assert all(now >= low for found in least for now, low in zip(found, floor, strict=True)), least
    assert stayed < {pod["metadata"]["uid"] for pod in workers(api)}, "nobody else goes"


async def test_a_replacement_that_starts_is_relabelled_before_it_serves(api, start, edit, least):
    world = await flipped_to(api, start, edit, {"prefill": 1, "decode": 3}, (2, 2), (1, 2))
    (gone,) = flipped(api)
    lose(api, gone)
    api.settle(ready=False)
    (new,) = [pod for pod in workers(api) if not is_ready(pod)]
    least.clear()
    await fill_cache(world)
    await reconcile(world, REF)
    assert label(api.find("Pod", new["metadata"]["name"]), "role") == "prefill"
    assert least == [(1, 2)], "who serves goes on in its role"
    await converge(api, world)
    assert (counts(api), len(least)) == ((2, 2), 1)


async def test_no_role_falls_below_its_minimum_while_its_own_replacement_starts(api, start, edit, least):
    """The flipped worker and one of the other role are lost at once: who serves there alone is not taken for it."""
    world = await flipped_to(api, start, edit, {"prefill": 1, "decode": 3}, (2, 2), (1, 1))
    home = next(pod for pod in workers(api) if label(pod, "role") == label(pod, "pool") == "decode")
    for pod in (*flipped(api), home):
        lose(api, pod)
    api.settle(ready=False)
    least.clear()
    await fill_cache(world)
    await reconcile(world, REF)
    assert least == [(1, 1)], "a pod that still starts was relabelled"
    await converge(api, world)
    assert counts(api) == (2, 2)
    assert all(decode >= 1 for _, decode in least)
