"""Every family against `transformers`: random small models, saved as sharded safetensors, loaded by our loader."""

from dataclasses import dataclass, replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from tandem_worker.engine import EngineSettings, ModelLoadError, Sampling, load_model
from tandem_worker.engine.batch import decode_batch, prefill_batch
from tandem_worker.engine.sequence import SequenceState
from tandem_worker.engine.store import KvStore
from workers.tests.engine.test_parity import check_parity
from workers.tests.prompts import token_ids
from workers.tests.tiny import SETTINGS, generate, make_engine

VOCAB, TOKENS = 200, 48
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 256, "eos_token_id": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
THETA = {"rope_theta": 10000.0}
YARN = {**THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {**THETA, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
MODELS = [
    pytest.param(LlamaConfig(**SIZES), id="llama"),
    pytest.param(LlamaConfig(**{**SIZES, "tie_word_embeddings": True}), id="llama, tied"),
    pytest.param(LlamaConfig(**SIZES, attention_bias=True), id="llama with biases"),
    pytest.param(LlamaConfig(**{**SIZES, "num_key_value_heads": 4}, head_dim=24), id="llama, wide heads, no groups"),
    pytest.param(LlamaConfig(**SIZES, rope_parameters=LLAMA3), id="llama3 rope"),
    pytest.param(LlamaConfig(**SIZES, rope_parameters={**THETA, "rope_type": "linear", "factor": 3.0}), id="linear"),
    pytest.param(LlamaConfig(**{**SIZES, "max_position_embeddings": 32},
                             rope_parameters={**THETA, "rope_type": "dynamic", "factor": 3.0}), id="dynamic"),
    pytest.param(MistralConfig(**SIZES, sliding_window=None), id="mistral"),
    pytest.param(MistralConfig(**SIZES, sliding_window=11), id="mistral, window of 11"),
    pytest.param(Qwen2Config(**SIZES), id="qwen2"),
    pytest.param(Qwen2Config(**SIZES, rope_parameters=YARN), id="qwen2, yarn"),
    pytest.param(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=1),
                 id="qwen2, windows from layer 1"),
    pytest.param(Qwen3Config(**SIZES, head_dim=32), id="qwen3"),
    pytest.param(Qwen3Config(**{**SIZES, "tie_word_embeddings": True}, head_dim=16), id="qwen3, tied"),
]  # fmt: skip


@dataclass
class Pair:
    """A model of theirs, and its directory for ours."""

    theirs: torch.nn.Module
    directory: object

    def expected(self, tokens: list[int], dtype=torch.float32) -> torch.Tensor:
        with torch.inference_mode():
            return self.theirs.to(dtype)(torch.tensor([tokens])).logits[0].float()


@pytest.fixture
def pair(request, tmp_path):
    torch.manual_seed(3)
    theirs = AutoModelForCausalLM.from_config(request.param).eval()
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            noise = torch.randn_like(weight)
            weight.copy_(1 + 0.2 * noise if "norm" in name else 0.2 * noise)
    theirs.save_pretrained(tmp_path / "model", max_shard_size="60KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    return Pair(theirs, tmp_path / "model")


def settings_for(dtype: str) -> EngineSettings:
    return replace(SETTINGS, dtype=dtype, max_context=TOKENS, kv_memory_mib=8)


def our_logits(directory, tokens: list[int], dtype: str, pieces: list[int]) -> torch.Tensor:
    """Logits of every token, computed over pages in pieces of these lengths; pieces of one token are decode steps."""
    settings = settings_for(dtype)
    model = load_model(directory, settings)
    store, window = KvStore(model.info, settings, model.decoder.dtype), model.decoder.config.traits.window
    one = SequenceState("one", 0, [], 0, Sampling(max_tokens=1), 0, ())
    one.pages = [13, 2, 7, 1, 9, 0, 4, 11, 3, 5, 8, 12]  # of 4 tokens each
    rows = []
    for count in pieces:
        one.tokens += tokens[one.computed : one.computed + count]
        if count == 1:
            batch, _ = decode_batch([one], settings.page_tokens, model.decoder.dtype, window)
        else:
            batch = prefill_batch([(one, count)], settings.page_tokens, model.decoder.dtype, window)
            batch = replace(batch, wanted=torch.arange(count))
        with torch.inference_mode():
            rows.append(model.decoder.forward(batch, store.tensor).float())
        one.computed += count
    return torch.cat(rows)


def cut(total: int, *pieces: int) -> list[int]:
    return [*pieces, *[1] * (total - sum(pieces))]


@pytest.mark.parametrize("pair", MODELS, indirect=True)
def test_logits_are_as_in_the_reference(pair):
    tokens = token_ids("family", TOKENS, VOCAB)
    expected = pair.expected(tokens)
    whole = our_logits(pair.directory, tokens, "float32", [TOKENS])
    torch.testing.assert_close(whole, expected, atol=2e-4, rtol=1e-4)
    for pieces in (cut(TOKENS, 20, 9), cut(TOKENS, 7)):  # chunks, then one token at a time
        stepwise = our_logits(pair.directory, tokens, "float32", pieces)
        torch.testing.assert_close(stepwise, expected, atol=2e-4, rtol=1e-4)
    # bf16: as near to fp32 as theirs is, with room for another order of additions.
    half = our_logits(pair.directory, tokens, "bfloat16", cut(TOKENS, 20))
    theirs = (pair.expected(tokens, torch.bfloat16) - expected).pow(2).mean().sqrt()
    assert float((half - expected).pow(2).mean().sqrt()) <= 1.5 * float(theirs) + 1e-3


WINDOWED = [
    pytest.param(MistralConfig(**SIZES, sliding_window=21), id="mistral"),
    pytest.param(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=17, max_window_layers=2), id="qwen2"),
]


@pytest.mark.parametrize("pair", WINDOWED, indirect=True)
def test_a_batch_with_windows_gives_the_reference_s_tokens(pair):
    prompts = [token_ids(f"w{length}", length, VOCAB) for length in (3, 20, 21, 22, 60, 100)]
    engine = make_engine(pair.directory, max_context=200, kv_memory_mib=8)
    outputs = generate(engine, prompts, Sampling(max_tokens=40, ignore_eos=True))
    engine.stop()
    check_parity(pair.theirs, prompts, outputs)


@pytest.mark.parametrize("pair", [MODELS[0]], indirect=True)
def test_a_missing_shard_is_named(pair):
    shard = sorted(pair.directory.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelLoadError, match=shard.name):
        load_model(pair.directory, settings_for("float32"))


@pytest.mark.parametrize("pair", [MODELS[0]], indirect=True)
def test_a_truncated_shard_is_named(pair):
    shard = sorted(pair.directory.glob("model-*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=f"{shard.name} is no sound"):
        load_model(pair.directory, settings_for("float32"))


@pytest.mark.parametrize("pair", [MODELS[0]], indirect=True)
def test_a_second_copy_in_another_layout_is_no_part(pair):
    (pair.directory / "consolidated.safetensors").write_bytes(b"something else")
    assert load_model(pair.directory, settings_for("float32")).info.layers == 3


def write_gguf(pair, architecture: str) -> None:
    """The pair's weights as llama.cpp lays them out, in F32; a Llama's query and key rows are its own affair."""
    from gguf import GGUFWriter

    from tandem_worker.engine.loader_gguf import LAYER_NAMES, TOP_NAMES

    config, weights = pair.theirs.config, pair.theirs.state_dict()
    writer = GGUFWriter(pair.directory / "model.gguf", architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    if config.rope_parameters["rope_type"] == "yarn":
        writer.add_string(f"{architecture}.rope.scaling.type", "yarn")
        writer.add_float32(f"{architecture}.rope.scaling.factor", config.rope_parameters["factor"])
        writer.add_uint32(f"{architecture}.rope.scaling.original_context_length", 64)
    theirs = {value: name for name, value in LAYER_NAMES.items()}
    top = {value: name for name, value in TOP_NAMES.items()}
    for name, weight in weights.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        ours = top.get(name)
        if ours is None:
            _, _, layer, part = name.split(".", 3)
            stem, leaf = part.rsplit(".", 1)
            ours = f"blk.{layer}.{theirs[stem]}.{leaf}"
        writer.add_tensor(ours, weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


IN_GGUF = [
    pytest.param(Qwen2Config(**SIZES, rope_parameters=YARN), "qwen2", id="qwen2, yarn"),
    pytest.param(Qwen3Config(**{**SIZES, "tie_word_embeddings": True}, head_dim=32), "qwen3", id="qwen3, tied"),
]


@pytest.mark.parametrize(("pair", "architecture"), IN_GGUF, indirect=["pair"])
def test_a_gguf_of_the_family_says_the_same(pair, architecture):
    write_gguf(pair, architecture)
    tokens = token_ids("gguf", TOKENS, VOCAB)
    ours = our_logits(pair.directory, tokens, "float32", cut(TOKENS, 20))
    torch.testing.assert_close(ours, pair.expected(tokens), atol=2e-4, rtol=1e-4)
