import json

import pytest

from tandem_operator.cli.shapes import UnknownShapeError, find_shape, from_config

LLAMA = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
}


def test_a_config_gives_the_shape_that_the_workers_tell(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    found, told = from_config(path, "bfloat16"), find_shape("hf://meta-llama/Llama-3.1-70B-Instruct")
    assert found.parameters == pytest.approx(told.parameters, rel=0.001)
    assert (found.layers, found.kv_heads, found.head_dim) == (told.layers, told.kv_heads, told.head_dim)


def test_published_configs_are_known_by_name():
    assert find_shape("hf://Qwen/Qwen3-32B", "float16").parameters == pytest.approx(32.8e9, rel=0.01)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("{", "no JSON object", id="broken"),
        pytest.param("[]", "no JSON object", id="a list"),
        pytest.param(json.dumps({**LLAMA, "vocab_size": None}), "has no vocab_size", id="a field short"),
        pytest.param(json.dumps({**LLAMA, "num_experts": 8}), "no num_experts_per_tok", id="experts, but not how many"),
    ],
)
def test_what_a_config_does_not_say_is_named(tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UnknownShapeError, match=words) as caught:
        from_config(path, "bfloat16")
    assert str(path) in str(caught.value)


def test_a_name_without_a_shape_says_what_to_do():
    with pytest.raises(UnknownShapeError, match="no known shape in 'gpt-9'; give its config"):
        find_shape("gpt-9")
