"""Each field that shapes pods: set, seen on the Deployment, silent when idle, and gone again when it is unset."""

from __future__ import annotations

import pytest

from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Done, Ref, Stalled
from tandem_operator.loop.resync import fill_cache

REF = Ref("serving", "chat")


async def converge(api, world):
    """Passes and controllers in turn until nothing is written; then one more, which must stay silent."""
    await fill_cache(world)
    for _ in range(12):
        before = len(api.writes)
        outcome = await reconcile(world, REF)
        if len(api.writes) == before:
            assert isinstance(outcome, Done), outcome
            return
        api.settle()
        await fill_cache(world)
    raise AssertionError(f"still writing: {api.writes[-5:]}")


def pod_of(api, child):
    return api.find("Deployment", child)["spec"]["template"]


TEMPLATE = [
    ("labels", {"team": "a"}, "metadata"),
    ("annotations", {"note": "a"}, "metadata"),
    ("nodeSelector", {"disk": "fast"}, "spec"),
    ("affinity", {"nodeAffinity": {"preferred": [{"weight": 1}]}}, "spec"),
    ("topologySpreadConstraints", [{"topologyKey": "rack", "maxSkew": 1}], "spec"),
    ("priorityClassName", "high", "spec"),
    ("runtimeClassName", "nvidia", "spec"),
    ("schedulerName", "volcano", "spec"),
    ("imagePullSecrets", [{"name": "registry"}], "spec"),
    ("tolerations", [{"key": "spot", "operator": "Exists"}], "spec"),
    ("volumes", [{"name": "cache", "emptyDir": {}}], "spec"),
    ("containers", [{"name": "log", "image": "log"}], "spec"),
    ("volumeMounts", [{"name": "cache", "mountPath": "/cache"}], "container"),
    ("resources", {"limits": {"cpu": "2"}}, "container"),
    ("env", [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}], "container"),
]


def holds(found, wanted):
    """Is all of `wanted` somewhere in `found`?"""
    if isinstance(wanted, dict):
        return all(key in found and holds(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return all(any(holds(item, one) for item in found) for one in wanted)
    return found == wanted


OWNERS = [
    pytest.param(lambda spec: spec["pools"][0], "chat-prefill", id="a pool's"),
    pytest.param(lambda spec: spec.setdefault("router", {}), "chat-router", id="the router's"),
]


@pytest.mark.parametrize(("owner", "child"), OWNERS)
@pytest.mark.parametrize(("field", "value", "where"), TEMPLATE, ids=[row[0] for row in TEMPLATE])
async def test_a_template_field_is_set_and_unset(api, start, edit, owner, child, field, value, where):
    world = await start()
    await converge(api, world)
    before = pod_of(api, child)
    edit(lambda spec: owner(spec).update(template={field: value}))
    await converge(api, world)
    pod = pod_of(api, child)
    holder = {**pod, "container": pod["spec"]["containers"][0]}[where]
    assert holds(holder[field], value)
    edit(lambda spec: owner(spec).pop("template"))
    await converge(api, world)
    assert pod_of(api, child) == before


async def test_a_refused_template_stalls_and_changes_nothing(api, start, edit):
    world = await start()
    await converge(api, world)
    before = pod_of(api, "chat-prefill")
    edit(lambda spec: spec["pools"][0].update(template={"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}))
    await fill_cache(world)
    outcome = await reconcile(world, REF)
    assert isinstance(outcome, Stalled)
    assert (outcome.reason, "HostPath" in outcome.message) == ("TemplateRefused", True)
    assert pod_of(api, "chat-prefill") == before
    edit(lambda spec: spec["pools"][0].pop("template"))
    await converge(api, world)
