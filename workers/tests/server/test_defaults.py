"""`generation_config.json`: its sampling values hold where a request leaves them out."""

import json

import pytest

from tandem_worker.engine import ModelLoadError
from tandem_worker.server.asked import make_sampling
from tandem_worker.server.bodies import ChatBody
from tandem_worker.server.defaults import Defaults, read_defaults

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
FILE = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    ("file", "asked", "expected"),
    [
        pytest.param(None, {}, Defaults().model_dump(), id="no file: OpenAI's"),
        pytest.param(FILE, {}, FILE, id="the file's"),
        pytest.param({**FILE, "eos_token_id": [1], "do_sample": True, "max_length": 9}, {}, FILE, id="the rest is not"),
        pytest.param({"temperature": None}, {}, Defaults().model_dump(), id="null says nothing"),
        pytest.param(FILE, {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1},
                     {**Defaults().model_dump(), "temperature": 0}, id="a request's zeros are said"),
        pytest.param(FILE, {"top_k": -1}, {**FILE, "top_k": 0}, id="-1 is all"),
    ],
)  # fmt: skip
def test_defaults(tmp_path, file, asked, expected):
    if file is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(file))
    body = ChatBody.model_validate({**BODY, **asked})
    sampling = make_sampling(body, 5, None, "", read_defaults(tmp_path))
    assert {name: getattr(sampling, name) for name in expected} == expected


@pytest.mark.parametrize(("field", "value"), [("temperature", -1), ("top_p", 0), ("top_k", "many"), ("min_p", 2)])
def test_a_value_out_of_range_is_refused_at_load(tmp_path, field, value):
    (tmp_path / "generation_config.json").write_text(json.dumps({field: value}))
    with pytest.raises(ModelLoadError, match=rf"generation_config.json has {field}: "):
        read_defaults(tmp_path)
