from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvloop

from workers.tests.router.standins import Api, World


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The router runs on uvloop, so do its tests."""
    return uvloop.EventLoopPolicy()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A router with worker stand-ins, on real sockets."""
    made = World()
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """Something that answers list and watch of pods as the API server does."""
    made = Api()
    await made.start()
    yield made
    await made.close()
