"""The bench's client: what it calls the first token of a stream, against a real pair."""

import asyncio
import time

import pytest

from e2e.bench.transfer_client import first_token_at
from workers.tests.prompts import token_ids
from workers.tests.transfer.kit import running, value_of, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


def port_of(worker):
    return int(worker.url.rsplit(":", 1)[1])


async def test_the_first_token_is_seen_after_it_was_asked_for_and_before_the_end(model):
    async with running(model, "p0") as prefill, running(model, "d0") as decode:
        begun = time.monotonic()
        facts = (port_of(decode), prefill.kv_address, "tiny", token_ids("client", 60, 256), 200)
        seen = await asyncio.to_thread(first_token_at, *facts)
        assert begun < seen < time.monotonic()
        assert value_of(prefill, 'tandem_kv_transfer_bytes_total{direction="sent"}') > 0
        assert value_of(decode, "tandem_decode_tokens_total") >= 199


async def test_an_answer_that_is_no_stream_is_an_error(model):
    async with running(model, "d0") as decode:
        with pytest.raises(ConnectionError, match="404"):
            await asyncio.to_thread(first_token_at, port_of(decode), "", "another", [1, 2], 4)
