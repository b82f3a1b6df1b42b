"""A budget that two resources share, through the loop: the one of higher priority grows by what the other gives."""

from __future__ import annotations

from datetime import UTC, datetime

from tandem_operator.loop.budget import members_of, share_budget
from tandem_operator.loop.fleet import Look
from tandem_operator.loop.refs import Ref
from tandem_operator.loop.settings import Settings
from tandem_operator.plan.claims import Cap

from .conftest import KIND, body_of
from .test_passes import REF, condition, converge, replicas

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OTHER = Ref("serving", "code")


async def test_before_the_first_sharing_nobody_grows_beyond_minima(api, start):
    world = await start()
    world.settings = Settings(fleet_gpus=100)
    await converge(api, world)
    assert replicas(api) == {"chat-prefill": 1, "chat-decode": 1, "chat-router": 1}, "initial is 2, the minimum is 1"


async def test_shares_come_when_every_resource_was_looked_at(api, start):
    other = body_of(priority=5)
    other["metadata"]["name"] = "code"
    api.store(KIND, other)
    world = await start()
    world.settings = Settings(fleet_gpus=8)
    await share_budget(world, NOW)
    assert world.caps == {}, "no look yet"
    world.fleet._looks = {ref: Look(at=NOW, number=1) for ref in (REF, OTHER)}
    await share_budget(world, NOW)
    assert {ref.name: cap.gpus for ref, cap in world.caps.items()} == {"chat": 3, "code": 3}
    await converge(api, world)
    assert replicas(api)["chat-decode"] == 2, "its initial fits"


async def test_a_cap_that_falls_is_obeyed_and_said(api, start):
    world = await start()
    await converge(api, world)
    world.settings = Settings(fleet_gpus=2)
    world.caps = {REF: Cap(2, "2 GPUs: the rest is another's")}
    world.asked.clear()
    await converge(api, world)
    assert replicas(api)["chat-decode"] == 1
    assert condition(api, "Ready")["status"] == "True"


async def test_what_another_operator_has_is_no_part_of_the_budget(api, start):
    world = await start()
    assert set(members_of(world, NOW)) == {REF}
    world.left.add(REF)
    assert members_of(world, NOW) == {}
