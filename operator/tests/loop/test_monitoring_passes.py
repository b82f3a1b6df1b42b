"""PodMonitor, rules and dashboard through whole passes: asked for, unset again, and on a cluster without their APIs."""

from __future__ import annotations

import pytest

from tandem_operator.loop.resync import fill_cache

from .test_passes import condition, converge

ALL = {"podMonitor": True, "rules": True, "dashboard": True}
KINDS = ("PodMonitor", "PrometheusRule", "ConfigMap")


def ask(edit, **monitoring):
    edit(lambda spec: spec.update(monitoring=monitoring))


def made(api):
    return {kind: [item["metadata"]["name"] for item in api.of(kind)] for kind in KINDS}


@pytest.mark.parametrize("field", ALL)
async def test_each_is_made_follows_and_goes(api, start, edit, field):
    kind = dict(zip(ALL, KINDS, strict=True))[field]
    world = await start()
    ask(edit, **{field: True})
    await settle(api, world)
    assert [kind for kind, names in made(api).items() if names] == [kind]
    assert condition(api, "MonitoringReady")["reason"] == "Made"
    edit(lambda spec: spec["slo"].update(ttftMilliseconds=700))
    await settle(api, world)
    assert ("0.7" in str(api.of(kind)[0])) == (field != "podMonitor"), "rules and dashboard follow the target"
    ask(edit)
    await settle(api, world)
    assert made(api) == {kind: [] for kind in KINDS}
    assert condition(api, "MonitoringReady") is None


async def test_without_its_api_a_kind_is_a_condition_and_no_error(api, start, edit):
    api.unserved = {"PodMonitor", "PrometheusRule"}
    ask(edit, **ALL)
    world = await start()
    await settle(api, world)
    found = condition(api, "MonitoringReady")
    assert (found["status"], found["reason"]) == ("False", "ApiMissing")
    assert "PodMonitor (of the Prometheus operator)" in found["message"]
    assert made(api)["ConfigMap"] == ["chat-dashboard"], "the rest is made"
    assert condition(api, "Ready")["status"] == "True"
    api.unserved = set()
    await settle(api, world)
    assert condition(api, "MonitoringReady")["reason"] == "Made", "an API that comes is found by the resync"


async def test_an_api_that_goes_while_it_is_used_is_no_error(api, start, edit):
    world = await start()
    ask(edit, **ALL)
    await fill_cache(world)
    api.unserved = {"PodMonitor", "PrometheusRule"}
    await converge(api, world)
    assert condition(api, "MonitoringReady")["reason"] == "ApiMissing"


async def settle(api, world):
    """What was edited is seen, and carried out."""
    await fill_cache(world)
    await converge(api, world)
