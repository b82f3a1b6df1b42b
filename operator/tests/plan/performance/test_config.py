"""config.json: what is read, what is missing, and that public shapes have their published sizes."""

import pytest

from tandem_operator.plan.performance.config import BadConfigError, Experts, Latent, shape_from_config
from tandem_operator.plan.performance.public import PUBLIC, base_name, find_model
from tandem_operator.plan.performance.weights import active_parameters, total_parameters

LLAMA = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
}


def test_dense():
    model = shape_from_config(LLAMA)
    assert (model.head_dim, model.kv_heads, model.dense_layers, model.experts) == (128, 8, 80, None)


def test_latent_and_experts():
    model = shape_from_config(
        {
            **LLAMA,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_routed_experts": 64,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
        }
    )
    assert model.latent == Latent(0, 512, 64, 128, 128)
    assert model.experts == Experts(64, 6, 1408, 2816)
    assert (model.dense_layers, model.expert_layers) == (1, 79)


def test_text_config_of_a_multimodal_model():
    assert shape_from_config({"model_type": "vl", "text_config": LLAMA}) == shape_from_config(LLAMA)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"hidden_size": None}, "no hidden_size", id="null"),
        pytest.param({"vocab_size": "many"}, "vocab_size is 'many'", id="words"),
        pytest.param({"num_hidden_layers": 0}, "num_hidden_layers is 0", id="zero"),
        pytest.param({"num_experts": 8}, "num_experts_per_tok", id="experts without a choice"),
        pytest.param({"kv_lora_rank": 512}, "qk_rope_head_dim", id="half of MLA"),
    ],
)
def test_bad_config_names_the_field(change, words):
    with pytest.raises(BadConfigError, match=words):
        shape_from_config({**LLAMA, **change})


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        pytest.param("llama-3.1-8b", 8.03, 7.5, id="Llama-3.1-8B"),
        pytest.param("llama-3.1-70b", 70.55, 69.5, id="Llama-3.1-70B"),
        pytest.param("qwen3-235b-a22b", 235.1, 21.6, id="Qwen3-235B-A22B"),
        pytest.param("qwen3.5-397b-a17b", 397, 16.5, id="Qwen3.5-397B-A17B"),
        pytest.param("deepseek-v3", 671, 37, id="DeepSeek-V3"),
        pytest.param("gpt-oss-120b", 116.8, 5.1, id="gpt-oss-120b"),
        pytest.param("kimi-k2", 1026, 32, id="Kimi K2"),
        pytest.param("mixtral-8x7b", 46.7, 12.9, id="Mixtral 8x7B"),
    ],
)
def test_public_sizes_are_the_published_ones(name, total, active):
    model = find_model(name)
    assert total_parameters(model) == pytest.approx(total * 1e9, rel=0.01)
    assert active_parameters(model) == pytest.approx(active * 1e9, rel=0.03)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("nvidia/DeepSeek-R1-0528-NVFP4", "deepseek-v3"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("moonshotai/Kimi-K2.5", "kimi-k2"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2"),
        ("zai-org/GLM-5-FP8", "glm-5"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2"),
    ],
)
def test_base_name(name, base):
    assert base_name(name) == base


def test_unknown_model():
    with pytest.raises(BadConfigError, match="no public config is known for model 'acme/llm'"):
        find_model("acme/llm")


def test_every_public_config_is_readable():
    assert all(total_parameters(find_model(name)) > 5e8 for name in PUBLIC)
