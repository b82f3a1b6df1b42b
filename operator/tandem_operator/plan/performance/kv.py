"""The KV cache: bytes of a token, what a decode step reads of it, and how many tokens fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_operator.plan.performance.precision import BYTES

if TYPE_CHECKING:
    from tandem_operator.plan.performance.config import ModelConfig

STATE_BYTES = 4  # delta-net states are kept in float32


def layer_bytes(model: ModelConfig, kv: str = "bfloat16") -> float:
    """KV of one token in one layer, over all ranks, in bytes.

    2 x KV heads x head_dim x element size (vLLM, SOSP'23, section 3, with KV heads for GQA); with MLA the latent
    and the rotary key, once for all heads: (kv_rank + rope_dim) x element size (arXiv 2405.04434, section 2.1.2).
    """
    if model.latent:
        return (model.latent.kv_rank + model.latent.rope_dim) * BYTES[kv]
    return 2 * model.kv_heads * model.head_dim * BYTES[kv]


def token_bytes(model: ModelConfig, kv: str = "bfloat16") -> float:
    """KV of one token over all layers. Llama-3.1-70B, bf16: 327,680 B; DeepSeek-V3, bf16: 70,272 B."""
    return model.attention_layers * layer_bytes(model, kv)


def rank_share(model: ModelConfig, tensor: int) -> float:
    """The share of a token's KV that one tensor-parallel rank holds: by KV heads; an MLA latent is on every rank."""
    return 1.0 if model.latent else max(1 / tensor, 1 / model.kv_heads)


def read_bytes(model: ModelConfig, context: float, kv: str = "bfloat16") -> float:
    """KV that one request's decode step reads over all layers and ranks, in bytes.

    Sliding-window layers read at most their window, sparse attention at most `attended` tokens.
    """
    full = model.attention_layers - model.window_layers
    seen = min(context, model.attended) if model.attended else context
    return layer_bytes(model, kv) * (full * seen + model.window_layers * min(context, model.window))


def state_bytes(model: ModelConfig) -> float:
    """Recurrent state of one request over all delta-net layers, in bytes (heads x key_dim x value_dim, float32)."""
    if model.recurrent is None:
        return 0.0
    per_layer = model.recurrent.value_heads * model.recurrent.key_dim * model.recurrent.value_dim
    return model.recurrent.layers * per_layer * STATE_BYTES
