"""The first requests of a resource that sleeps: held until a worker is there, bounded in number and time."""

from __future__ import annotations

import asyncio
import json

import pytest

from tandem_router.app import Face
from tandem_router.lobby import Lobby
from tandem_router.main import start
from workers.tests.router.standins import World, until

HOLD_S = 30.0


def lobby(world: World, hold_s: float = HOLD_S, most: int = 256) -> Lobby:
    found = Lobby(world.registry, world.bell, hold_s, world.ledger.metrics.held.set, most)
    world.proxy._lobby = found
    return found


async def test_a_request_is_held_until_a_worker_comes(world: World):
    held = lobby(world)
    asked = asyncio.create_task(world.stream())
    await until(lambda: held.held == 1)
    assert world.value("held_requests") == 1, "what the operator sees"
    await world.worker("d0", "both")
    response, body = await asked
    assert response.status == 200
    assert body
    assert (held.held, world.value("held_requests")) == (0, 0)


async def test_it_does_not_wait_for_ever(world: World):
    lobby(world, hold_s=0.05)
    response, body = await world.stream()
    assert response.status == 503
    assert response.headers["Retry-After"] == "10"
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("starting", "server_error")
    assert world.value("held_requests") == 0


async def test_no_more_than_so_many_wait(world: World):
    held = lobby(world, most=2)
    asked = [asyncio.create_task(world.stream()) for _ in range(2)]
    await until(lambda: held.held == 2)
    response, body = await world.stream()
    assert response.status == 503
    assert "2 requests wait" in json.loads(body)["error"]["message"]
    assert response.headers["Retry-After"] == "10"
    await world.worker("d0", "both")
    assert [(await one)[0].status for one in asked] == [200, 200]


async def test_a_client_that_leaves_is_no_demand(world: World):
    held = lobby(world)
    asked = asyncio.create_task(world.stream())
    await until(lambda: held.held == 1)
    asked.cancel()
    await until(lambda: held.held == 0)
    assert world.value("held_requests") == 0


async def test_with_a_worker_nobody_is_held(world: World):
    held = lobby(world, most=0)
    await world.worker("d0", "both")
    assert (await world.stream())[0].status == 200
    assert held.held == 0


@pytest.mark.parametrize(("holds", "listed", "status"), [(True, True, 200), (True, False, 503), (False, True, 503)])
async def test_a_router_that_holds_is_ready_without_workers(world: World, holds, listed, status):
    """Else its Service would have no endpoint, and no request could wake anybody."""
    if listed:
        world.registry.replace([])
    face = Face(world.registry, world.upstream, world.ledger, world.proxy, holds=holds)
    runner = await start(face.app(), "127.0.0.1", 0)
    try:
        async with world.client.get("http://{}:{}/ready".format(*runner.addresses[0][:2])) as response:
            assert response.status == status
    finally:
        await runner.cleanup()
