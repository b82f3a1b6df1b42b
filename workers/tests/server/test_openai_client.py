"""OpenAI's own client reads what a worker says."""

import openai
import pytest

from workers.tests.server.test_guided import FORMAT, TOOL, is_pet

MESSAGES = [{"role": "user", "content": "Say something about bridges and the people who build them."}]


@pytest.fixture
async def client(pair):
    prefill, decode = pair
    headers = {"x-tandem-prefill": prefill.kv_address}
    async with openai.AsyncOpenAI(
        base_url=decode.url + "/v1", api_key="none", default_headers=headers, max_retries=0
    ) as client:
        yield client


EXTRA = {"ignore_eos": True}


async def test_chat_whole_and_streamed(client):
    common = {"model": "tiny", "messages": MESSAGES, "max_tokens": 10, "temperature": 0, "extra_body": EXTRA}
    whole = await client.chat.completions.create(**common)
    stream = await client.chat.completions.create(**common, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 10
    assert whole.usage.model_extra["tandem"]["kv_bytes"] > 0


async def test_completions_and_models(client):
    got = await client.completions.create(model="tiny", prompt="Once", max_tokens=4, logprobs=1, extra_body=EXTRA)
    assert got.usage.completion_tokens == 4
    assert len(got.choices[0].logprobs.tokens) == 4
    assert [model.id async for model in client.models.list()] == ["tiny"]


async def test_errors_are_the_client_s_own(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.chat.completions.create(model="gpt", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="n: "):
        await client.chat.completions.create(model="tiny", messages=MESSAGES, n=300)


async def test_a_stream_that_fails_raises(client, pair, monkeypatch):
    prefill, decode = pair
    monkeypatch.setattr(type(prefill.node.prefill), "on_done", lambda self, key: None)
    monkeypatch.setattr(decode.node.decode, "_lease_s", 0.5)
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=10, stream=True, extra_body=EXTRA
    )
    with pytest.raises(openai.APIError, match="lease"):
        async for _ in stream:
            pass


async def test_choices_logprobs_and_penalties(client):
    got = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=6, n=3, seed=5, temperature=1.2, presence_penalty=0.5,
        frequency_penalty=0.5, logit_bias={"40": -100}, logprobs=True, top_logprobs=2, stop=["\u0000"],
        extra_body={**EXTRA, "top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1, "min_tokens": 2},
    )  # fmt: skip
    assert [choice.index for choice in got.choices] == [0, 1, 2]
    assert all(len(choice.logprobs.content[0].top_logprobs) == 2 for choice in got.choices)


async def test_tools_and_schemas(client):
    named = {"type": "function", "function": {"name": "adopt"}}
    common = {"model": "tiny", "messages": MESSAGES, "max_tokens": 150, "temperature": 0}
    got = await client.chat.completions.create(**common, tools=[TOOL], tool_choice=named)
    (call,) = got.choices[0].message.tool_calls
    assert call.function.name == "adopt"
    assert is_pet(call.function.arguments)
    async with client.chat.completions.stream(**common, tools=[TOOL], tool_choice=named) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    got = await client.chat.completions.create(**common, response_format=FORMAT)
    assert is_pet(got.choices[0].message.content)
