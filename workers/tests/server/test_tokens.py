"""/tokenize and /detokenize."""

import pytest

from workers.tests.server.test_api import post


@pytest.mark.parametrize("text", ["Trains are", "", "a</s>b"])
async def test_there_and_back(worker, text):
    status, _, there = await post(worker, "/tokenize", {"model": "tiny", "prompt": text, "return_token_strs": True})
    assert status == 200
    assert there["count"] == len(there["tokens"]) == len(there["token_strs"])
    assert there["max_model_len"] == 512
    _, _, back = await post(worker, "/detokenize", {"tokens": there["tokens"]})
    assert back == {"prompt": text}


async def test_a_conversation(worker):
    messages = [{"role": "user", "content": "Hi"}]
    _, _, whole = await post(worker, "/tokenize", {"messages": messages})
    _, _, closed = await post(worker, "/tokenize", {"messages": messages, "add_generation_prompt": False})
    assert whole["tokens"][: closed["count"]] == closed["tokens"]
    assert whole["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/tokenize", {}, 400, "either prompt or messages"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, 400, "either"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"model": "gpt", "prompt": "x"}, 404, "does not exist"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [256]}, 400, "0 to 255"),
        ("/detokenize", {"tokens": [-1]}, 400, "0 to 255"),
        ("/detokenize", {"tokens": ["x"]}, 400, "tokens"),
    ],
)
async def test_refusals(worker, path, body, status, words):
    got, _, answer = await post(worker, path, body)
    assert got == status
    assert words in answer["error"]["message"]
