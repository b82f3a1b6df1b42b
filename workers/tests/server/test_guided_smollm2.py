"""Guided output over a real vocabulary, whose tokens cross JSON's borders."""

import json

import pytest

from workers.tests.server.test_api import CHAT_PATH, post
from workers.tests.server.test_guided import FORMAT, OTHER, TOOL, is_pet
from workers.tests.transfer.kit import SMOLLM2, eventually, running

SIZES = {"served_name": "smollm2", "max_context": 1024, "page_tokens": 16, "kv_memory_mib": 256, "chunk_tokens": 256}
ASKED = {"model": "smollm2", "messages": [{"role": "user", "content": "Describe a pet as JSON, with age and kind."}],
         "max_tokens": 60, "response_format": FORMAT}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_pair_of_smollm2():
    async with running(SMOLLM2, "p0", **SIZES) as prefill, running(SMOLLM2, "d0", **SIZES) as decode:
        head = {"x-tandem-prefill": prefill.kv_address}
        for temperature in (0, 1.5):
            status, headers, answer = await post(decode, CHAT_PATH, {**ASKED, "temperature": temperature}, head)
            assert (status, headers["x-tandem-path"]) == (200, "disaggregated"), answer
            assert is_pet(answer["choices"][0]["message"]["content"])
            # Another prompt, or the second one would be in the cache and served by one worker alone.
            ASKED["messages"][0]["content"] = "And one more pet, which should be older than the first one was, as JSON."
        body = {**ASKED, "tools": [TOOL, OTHER], "tool_choice": "required", "max_tokens": 120, "temperature": 0}
        del body["response_format"]
        _, _, answer = await post(decode, CHAT_PATH, body, head)
        choice = answer["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            for call in choice["message"]["tool_calls"]:
                json.loads(call["function"]["arguments"])
        await eventually(lambda: decode.is_empty() and prefill.is_empty(), "both are empty")
