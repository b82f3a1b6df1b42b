"""Our greedy tokens against `transformers`, fp32, the same dequantised weights.

One teacher-forced pass over prompt + our output gives the reference's choice at every position; all choices being ours
is the same as its greedy generation being ours.
"""

from pathlib import Path

import pytest
import torch

from tandem_worker.engine import Engine, EngineSettings, Sampling, load_model
from tandem_worker.engine.model import read_weights
from workers.tests.prompts import parity_prompts
from workers.tests.tiny import CONFIG, generate, make_engine, write_tiny

MODEL = Path(__file__).parents[3] / "build/models/smollm2-135m-instruct"
NEAR_TIE = 1e-4  # logits; below, the order of additions decides
NEW_TOKENS = 64


def reference_model(path: Path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config, tensors = read_weights(path, torch.float32)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab,
            max_position_embeddings=config.context,
            rms_norm_eps=config.rms_epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tied,
        )
    )
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model.eval()


def first_difference(model, prompt: list[int], output: list[int]) -> tuple[int, float] | None:
    """(position, gap of the reference's two best logits there) of the first token that is not the reference's."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output[:-1]]), logits_to_keep=len(output)).logits[0]
    for at, (row, ours) in enumerate(zip(logits, output, strict=True)):
        best = torch.topk(row, 2)
        if int(best.indices[0]) != ours:
            return at, float(best.values[0] - best.values[1])
    return None


def check_parity(model, prompts, outputs) -> None:
    found = [first_difference(model, prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
    differing = [(number, *one) for number, one in enumerate(found) if one is not None]
    print(f"\n{len(differing)} of {len(prompts)} prompts differ (prompt, position, gap): {differing}")
    assert all(gap <= NEAR_TIE for _, _, gap in differing)
    assert len(differing) <= max(1, len(prompts) // 50)


def run_smollm(prompts: list[list[int]]) -> list[list[int]]:
    settings = EngineSettings(dtype="float32", max_context=2048, kv_memory_mib=1024, threads=1)
    engine = Engine(load_model(MODEL, settings), settings)
    engine.start()
    try:
        return generate(engine, prompts, Sampling(max_tokens=NEW_TOKENS, ignore_eos=True))
    finally:
        engine.stop()


def test_ten_prompts_are_as_in_the_reference():
    prompts = parity_prompts(49152)
    few = [prompts[at] for at in (0, 5, 9, 16, 23, 28, 31, 38, 40, 41)]
    check_parity(reference_model(MODEL), few, run_smollm(few))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_prompts_are_as_in_the_reference():
    prompts = parity_prompts(49152)
    assert len(prompts) >= 50
    outputs = run_smollm(prompts)
    assert all(len(output) == NEW_TOKENS for output in outputs)
    check_parity(reference_model(MODEL), prompts, outputs)


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
def test_safetensors_are_as_in_the_reference(tmp_path, tied):
    directory = write_tiny(tmp_path / "tiny", tie_word_embeddings=tied)
    prompts = [prompt for prompt in parity_prompts(CONFIG["vocab_size"]) if len(prompt) < 300]
    engine = make_engine(directory, kv_memory_mib=16)
    outputs = generate(engine, prompts, Sampling(max_tokens=24, ignore_eos=True))
    engine.stop()
    check_parity(reference_model(directory), prompts, outputs)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "scaling",
    [pytest.param({"rope_type": "linear", "factor": 4.0}, id="linear"), pytest.param(LLAMA3, id="llama3")],
)
def test_rope_frequencies_are_as_in_the_reference(scaling):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from tandem_worker.engine.config import config_from_json
    from tandem_worker.engine.rope import rotary_tables

    ours = config_from_json({**CONFIG, "rope_scaling": scaling}, "tiny", "tiny")
    theirs = LlamaConfig(
        hidden_size=64, num_attention_heads=4, max_position_embeddings=1024,
        rope_parameters={**scaling, "rope_theta": 10000.0},
    )  # fmt: skip
    cos, sin = LlamaRotaryEmbedding(theirs)(torch.zeros(1), torch.arange(256).unsqueeze(0))
    our_cos, our_sin = rotary_tables(10000.0, 16, ours.rope_scaling, 256, torch.float32)
    torch.testing.assert_close(our_cos, cos[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(our_sin, sin[0], atol=1e-5, rtol=0)
