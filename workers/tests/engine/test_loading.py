"""Loading: what cannot be served is refused in one sentence that says what, where and what to do."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem_worker.engine import Engine, InvalidRequestError, ModelLoadError, load_model, load_tokenizer
from tandem_worker.engine.loader_gguf import unpermuted
from tandem_worker.engine.loader_safetensors import INDEX
from tandem_worker.engine.tokenizer import chat_template
from workers.tests.tiny import CONFIG, SETTINGS, write_tiny

MODEL = Path(__file__).parents[3] / "build/models/smollm2-135m-instruct"


def edit_config(directory, **changes):
    config = {**CONFIG, **changes}
    (directory / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}))


def drop_weight(directory):
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, directory / "model.safetensors")


def add_weight(directory):
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    save_file(tensors, directory / "model.safetensors")


def spoil_weight(directory, value):
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, directory / "model.safetensors")


def cut_file(path):
    path.write_bytes(path.read_bytes()[:-500])


def use_gguf(directory, content):
    (directory / "model.gguf").write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda at: (at / "model.safetensors").unlink(), "neither model.gguf nor", id="no weights"),
        pytest.param(lambda at: (at / "config.json").unlink(), "no config.json", id="no config"),
        pytest.param(lambda at: (at / "config.json").write_text("{"), "cannot be read as JSON", id="broken config"),
        pytest.param(lambda at: (at / "config.json").write_text("[]"), "not an object", id="config is a list"),
        pytest.param(
            lambda at: edit_config(at, architectures=["MambaForCausalLM"]),
            "Mamba.* known: LlamaForCausalLM .*Mistral.*Qwen2.*Qwen3",
            id="architecture",
        ),
        pytest.param(lambda at: edit_config(at, hidden_size="gone"), "hidden_size", id="a size is missing"),
        pytest.param(lambda at: edit_config(at, num_hidden_layers=4), "lacks the weight", id="a layer is missing"),
        pytest.param(lambda at: edit_config(at, intermediate_size=95), "shape", id="misshapen"),
        pytest.param(lambda at: edit_config(at, num_key_value_heads=3), "multiple", id="heads do not divide"),
        pytest.param(lambda at: edit_config(at, rope_scaling={"type": "longrope"}), "longrope", id="rope scaling"),
        pytest.param(lambda at: edit_config(at, rope_scaling={"type": "yarn"}), "factor", id="yarn without a factor"),
        pytest.param(lambda at: edit_config(at, eos_token_id=256), "token 256", id="EOS out of the vocabulary"),
        pytest.param(lambda at: spoil_weight(at, float("nan")), "NaN or infinity", id="NaN in a weight"),
        pytest.param(lambda at: spoil_weight(at, float("inf")), "NaN or infinity", id="infinity in a weight"),
        pytest.param(lambda at: cut_file(at / "model.safetensors"), "no sound", id="weights cut short"),
        pytest.param(lambda at: (at / INDEX).write_text("{}"), "weight_map", id="an index without a map"),
        pytest.param(lambda at: edit_config(at, mlp_bias=True), "mlp_bias", id="biases"),
        pytest.param(lambda at: edit_config(at, partial_rotary_factor=0.5), "partial_rotary", id="partly turned"),
        pytest.param(
            lambda at: edit_config(at, quantization_config={"quant_method": "awq"}), "quantised .awq", id="quantised"
        ),
        pytest.param(lambda at: edit_config(at, attention_bias=True), "q_proj.bias", id="biases that are not there"),
        pytest.param(lambda at: edit_config(at, max_position_embeddings=256), "--max-context 512", id="context"),
        pytest.param(drop_weight, "up_proj", id="a weight is missing"),
        pytest.param(add_weight, "another model", id="a strange weight"),
        pytest.param(lambda at: (at / "model.safetensors").write_bytes(b"x" * 50), "no sound", id="broken safetensors"),
        pytest.param(lambda at: use_gguf(at, b"not a gguf file"), "no GGUF", id="no GGUF"),
        pytest.param(lambda at: use_gguf(at, b""), "cannot be read", id="empty GGUF"),
        pytest.param(lambda at: use_gguf(at, b"GGUF\x03\0\0\0\x01"), "cut short", id="GGUF cut short"),
        pytest.param(lambda at: use_gguf(at, b"GGUF\x01\0\0\0"), "version 1", id="old GGUF"),
        pytest.param(lambda at: use_gguf(at, b"GGUF\x03\0\0\0" + b"\xff" * 16), "limit", id="GGUF with absurd counts"),
    ],
)
def test_bad_directories_are_refused(tmp_path, spoil, words):
    directory = write_tiny(tmp_path / "tiny")
    spoil(directory)
    with pytest.raises(ModelLoadError, match=words):
        load_model(directory, SETTINGS)


def test_no_directory(tmp_path):
    with pytest.raises(ModelLoadError, match="no model directory"):
        load_model(tmp_path / "nowhere", SETTINGS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"dtype": "float16"}, "bfloat16, float32"), ({"kv_memory_mib": 0}, "give at least 1 MiB")],
)
def test_bad_settings_are_refused(tmp_path, changes, words):
    directory = write_tiny(tmp_path / "tiny")
    settings = replace(SETTINGS, **changes)
    with pytest.raises(ModelLoadError, match=words):
        Engine(load_model(directory, settings), settings)


def test_config_hash_follows_shape_and_weights_not_dtype(tmp_path):
    same = [write_tiny(tmp_path / name) for name in ("a", "b")]
    other = write_tiny(tmp_path / "c", rope_theta=50000.0)
    hashes = [load_model(path, SETTINGS).info.config_hash for path in (*same, other)]
    half = load_model(same[0], replace(SETTINGS, dtype="bfloat16")).info
    assert hashes[0] == hashes[1] == half.config_hash != hashes[2]
    assert half.element_bytes == 2


def test_unpermuted_undoes_llama_cpp():
    weight = torch.arange(2 * 8 * 3).view(16, 3).float()
    as_llama_cpp = weight.view(2, 2, 4, 3).swapaxes(1, 2).reshape(16, 3)
    assert torch.equal(unpermuted(as_llama_cpp, 2), weight)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(MODEL)


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        "  two  spaces\n\n and\ttabs ",
        "1234567890 3.14",
        "naïve café — “quotes”",
        "日本語と emoji 🎉👩‍👩‍👧",
        "it's we'll",
    ],
)
def test_text_survives(tokenizer, text):
    ids = tokenizer.encode(text)
    stream = tokenizer.decode_stream()
    pieces = [stream.push(one) for one in ids]
    assert "".join(pieces) + stream.flush() == text
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


def test_digits_stand_alone(tokenizer):
    assert len(tokenizer.encode("12345")) == 5


def test_chat_is_rendered_with_the_models_template(tokenizer):
    ids = tokenizer.apply_chat([{"role": "user", "content": "Hi"}])
    tail = [1, *tokenizer.encode("assistant\n")]
    assert (ids[0], ids[-len(tail) :]) == (1, tail)
    assert tokenizer.eos_ids == (2, 0)


def test_unfinished_bytes_are_held_back(tokenizer):
    ids = tokenizer.encode("🎉")
    assert len(ids) > 1
    stream = tokenizer.decode_stream()
    assert [stream.push(one) for one in ids[:-1]] == [""] * (len(ids) - 1)
    assert stream.flush() == "\N{REPLACEMENT CHARACTER}"


def test_messages_that_do_not_render_are_refused(tokenizer):
    with pytest.raises(InvalidRequestError, match="chat template"):
        tokenizer.apply_chat([{"role": "user"}])


def test_no_tokenizer(tmp_path):
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_tokenizer_json_gives_the_same_ids(tokenizer, tmp_path):
    tokenizer._fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>"}, "chat_template": "{{ messages[0]['content'] }}<|im_end|>"})
    )
    loaded = load_tokenizer(tmp_path)
    assert loaded.eos_ids == (2,)
    assert loaded.encode("The same, 42 times") == tokenizer.encode("The same, 42 times")
    assert loaded.apply_chat([{"content": "x"}]) == [*tokenizer.encode("x"), 2]


def test_a_tokenizer_of_another_model_is_refused(tokenizer):
    tokenizer.check_fits(49152, "here")
    with pytest.raises(ModelLoadError, match="49152 tokens, the model 32000"):
        tokenizer.check_fits(32000, "here")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ tools | tojson }}", '[{"name": "é<b>"}]'),
        ("{{ tools[0] | tojson(indent=1) }}", '{\n "name": "é<b>"\n}'),
        ("{{ tools | tojson(separators=(',', ':')) }}", '[{"name":"é<b>"}]'),
        ("{% if tools is none %}none{% endif %}{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_templates_find_what_those_of_the_hub_expect(source, text):
    template = chat_template(source, "", "", "here").template
    assert template.render(tools=[{"name": "é<b>"}]) == text
