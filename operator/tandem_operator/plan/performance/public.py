"""Public models by name: the fields of their published config.json that the performance model reads."""

from __future__ import annotations

import re
from typing import Final

from tandem_operator.plan.performance.config import BadConfigError, Config, ModelConfig, shape_from_config


def _dense(layers: int, hidden: int, heads: int, kv_heads: int, width: int, vocab: int, **more: object) -> Config:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
        "vocab_size": vocab,
        **more,
    }


def _latent(kv_rank: int, query_rank: int, nope: int, rope: int, value: int) -> Config:
    return {
        "kv_lora_rank": kv_rank,
        "q_lora_rank": query_rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
    }


def _experts(total: int, chosen: int, width: int, shared: int = 0, dense: int = 0) -> Config:
    return {
        "num_experts": total,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": width,
        "n_shared_experts": shared,
        "first_k_dense_replace": dense,
    }


def _delta(interval: int, key_heads: int, value_heads: int) -> Config:
    return {
        "full_attention_interval": interval,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }


_ATTENTION_KEPT: Final[Config] = {"quantization_config": {"modules_to_not_convert": ["self_attn"]}}
_V3: Final = {
    **_dense(61, 7168, 128, 128, 18432, 129280, **_latent(512, 1536, 128, 64, 128)),
    **_experts(256, 8, 2048, 1, 3),
}
_KIMI: Final = {
    **_dense(61, 7168, 64, 64, 18432, 163840, **_latent(512, 1536, 128, 64, 128)),
    **_experts(384, 8, 2048, 1, 1),
    **_ATTENTION_KEPT,
}
_M2: Final = _dense(62, 3072, 48, 8, 1536, 200064, head_dim=128, **_experts(256, 8, 1536))
_GLM5: Final = {
    **_dense(78, 6144, 64, 64, 12288, 154880, **_latent(512, 2048, 192, 64, 256), index_topk=2048),
    **_experts(256, 8, 2048, 1, 3),
}


def _oss(layers: int, experts: int) -> Config:
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    return {
        **_dense(layers, 2880, 64, 8, 2880, 201088, head_dim=64, sliding_window=128, layer_types=kinds),
        **_experts(experts, 4, 2880),
        **_ATTENTION_KEPT,
    }


# Name (lower case, without organisation and without what `base_name` strips) -> config.json fields.
PUBLIC: Final[dict[str, Config]] = {
    "llama-3.1-8b": _dense(32, 4096, 32, 8, 14336, 128256),
    "llama-3.1-70b": _dense(80, 8192, 64, 8, 28672, 128256),
    "llama-3.1-405b": _dense(126, 16384, 128, 8, 53248, 128256),
    "llama-2-70b": _dense(80, 8192, 64, 8, 28672, 32000),
    "qwen2.5-7b": _dense(28, 3584, 28, 4, 18944, 152064),
    "qwen2.5-32b": _dense(64, 5120, 40, 8, 27648, 152064),
    "qwen2.5-72b": _dense(80, 8192, 64, 8, 29568, 152064),
    "qwen3-0.6b": _dense(28, 1024, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True),
    "qwen3-8b": _dense(36, 4096, 32, 8, 12288, 151936, head_dim=128),
    "qwen3-14b": _dense(40, 5120, 40, 8, 17408, 151936, head_dim=128),
    "qwen3-32b": _dense(64, 5120, 64, 8, 25600, 151936, head_dim=128),
    "qwen3-30b-a3b": _dense(48, 2048, 32, 4, 6144, 151936, head_dim=128, **_experts(128, 8, 768)),
    "qwen3-235b-a22b": _dense(94, 4096, 64, 4, 12288, 151936, head_dim=128, **_experts(128, 8, 1536)),
    "qwen3-coder-480b-a35b": _dense(62, 6144, 96, 8, 8192, 151936, head_dim=128, **_experts(160, 8, 2560)),
    "qwen3-next-80b-a3b": {
        **_dense(48, 2048, 16, 2, 5120, 151936, head_dim=256, attn_output_gate=True, **_delta(4, 16, 32)),
        **_experts(512, 10, 512, 1),
    },
    "qwen3.5-397b-a17b": {
        **_dense(60, 4096, 32, 2, 1024, 248320, head_dim=256, attn_output_gate=True, **_delta(4, 16, 64)),
        **_experts(512, 10, 1024, 1),
    },
    "deepseek-v3": _V3,
    "deepseek-v3.2": {**_V3, "index_topk": 2048},
    "gpt-oss-120b": _oss(36, 128),
    "gpt-oss-20b": _oss(24, 32),
    "minimax-m2": _M2,
    "kimi-k2": _KIMI,
    "glm-4.5": _dense(92, 5120, 96, 8, 12288, 151552, head_dim=128, **_experts(160, 8, 1536, 1, 3)),
    "glm-4.5-air": _dense(46, 4096, 96, 8, 10944, 151552, head_dim=128, **_experts(128, 8, 1408, 1, 1)),
    "glm-5": _GLM5,
    "mixtral-8x7b": _dense(32, 4096, 32, 8, 14336, 32000, **_experts(8, 2, 14336)),
    "mixtral-8x22b": _dense(56, 6144, 48, 8, 16384, 32768, **_experts(8, 2, 16384)),
}

# Same architecture and sizes under another name (the first prefix that fits).
_SAME: Final = (
    ("meta-llama-", "llama-"),
    ("llama-3.3-70b", "llama-3.1-70b"),
    ("deepseek-r1", "deepseek-v3"),
    ("deepseek-v3.1", "deepseek-v3"),
    ("deepseek-v3-", "deepseek-v3"),
    ("minimax-m2", "minimax-m2"),
    ("kimi-k2", "kimi-k2"),
    ("glm-4.6", "glm-4.5"),
    ("glm-4.7", "glm-4.5"),
    ("glm-5", "glm-5"),
)
_SUFFIX: Final = re.compile(
    r"[-_](fp8|fp4|nvfp4|mxfp4|bf16|int4|int8|awq|gptq|w4a16|w8a8|instruct|thinking|chat|base|it|hf|block|dynamic|exp|v0\.\d|\d{4})$"
)


def base_name(name: str) -> str:
    """`nvidia/DeepSeek-R1-0528-NVFP4` -> `deepseek-v3`: organisation, quantisation and tuning do not change a shape."""
    base = name.rsplit("/", 1)[-1].lower()
    while base not in PUBLIC and (shorter := _SUFFIX.sub("", base)) != base:
        base = shorter
    for prefix, same in _SAME:
        if base not in PUBLIC and base.startswith(prefix):
            base = base.replace(prefix, same, 1) if same.endswith("-") else same
    return base


def find_model(name: str) -> ModelConfig:
    """The shape of a public model. Raises BadConfigError for a name that the table does not have."""
    base = base_name(name)
    if base not in PUBLIC:
        raise BadConfigError(f"no public config is known for model {name!r}; give its config.json")
    return shape_from_config(PUBLIC[base])
