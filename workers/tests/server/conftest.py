import pytest

from workers.tests.transfer.kit import running, write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture
async def worker(model):
    async with running(model, "one") as one:
        yield one


@pytest.fixture
async def pair(model):
    async with running(model, "p0") as prefill, running(model, "d0") as decode:
        yield prefill, decode
