"""The tests' workers; and a run that has loaded NIXL ends without unloading it, with its own exit code."""

import sys

import pytest

from tandem_worker.transfer.nixl import leave
from workers.tests.transfer.kit import running, write_model
from workers.tests.transfer.nursery import Nursery
from workers.tests.transfer.world import World

ENDS: list[int] = []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    ENDS.append(int(exitstatus))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if ENDS and "nixl._bindings" in sys.modules:
        leave(ENDS[-1])


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture
async def pair(model):
    """A prefill and a decode worker, in this process."""
    async with running(model, "p0") as prefill, running(model, "d0") as decode:
        yield prefill, decode


@pytest.fixture(scope="session")
def nursery(tmp_path_factory):
    nursery = Nursery(tmp_path_factory.mktemp("nursery") / "log")
    yield nursery
    nursery.end()


@pytest.fixture(scope="module")
def world(request, nursery, tmp_path_factory):
    """Two workers of the backend that is the test's parameter."""
    world = World(tmp_path_factory.mktemp(request.param), request.param, nursery)
    yield world
    world.end()
