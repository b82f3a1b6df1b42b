"""OpenAI's own client through the router."""

import openai
import pytest

from workers.tests.router.standins import TOKENS, World, streams


@pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without usage"])
async def test_the_openai_client_reads_it(world: World, usage):
    await world.worker("d0")
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        options = {"stream_options": {"include_usage": True}} if usage else {}
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True, **options
        )
        chunks = [c async for c in stream]
    assert "".join(c.choices[0].delta.content for c in chunks if c.choices) == 'Hello \u00e9\n"usage":{'
    assert [c.usage.completion_tokens for c in chunks if c.usage] == ([3] if usage else [])


async def test_the_openai_client_sees_errors(world: World):
    await world.worker("d0", behaviour=streams(TOKENS[0], then="die"))
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(openai.APIError, match="broke off"):
            [c async for c in stream]
        with pytest.raises(openai.BadRequestError, match="true or false"):
            await client.chat.completions.create(model="m", messages=[], extra_body={"stream": "yes"})
