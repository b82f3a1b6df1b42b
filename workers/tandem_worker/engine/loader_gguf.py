"""A Llama from a GGUF file: dequantised, and the head layout turned back to Hugging Face's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from tandem_worker.engine.config import KNOWN_ARCHITECTURES, LlamaConfig, RopeScaling, refuse_architecture
from tandem_worker.engine.request import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from tandem_worker.engine.gguf_file import GgufFile, TensorPlace

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
PIECE_VALUES = 1 << 16  # dequantised at once: its temporaries stay in the cache
ROPE_FACTORS = "rope_freqs.weight"
# Texts that end a turn in the model families of this architecture (llama.cpp ends at these too).
END_TEXTS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>")


def config_from_gguf(file: GgufFile, name: str, where: str) -> LlamaConfig:
    """The shape. Raises ModelLoadError for another architecture, a missing key or an unknown rope scaling."""
    found = file.metadata
    if (architecture := str(found.get("general.architecture"))) not in KNOWN_ARCHITECTURES:
        raise refuse_architecture(architecture, where)
    try:
        heads = int(found["llama.attention.head_count"])
        hidden_size = int(found["llama.embedding_length"])
        config = LlamaConfig(
            name=name,
            layers=int(found["llama.block_count"]),
            hidden_size=hidden_size,
            intermediate_size=int(found["llama.feed_forward_length"]),
            heads=heads,
            kv_heads=int(found.get("llama.attention.head_count_kv", heads)),
            head_dim=int(found.get("llama.attention.key_length", hidden_size // heads)),
            vocab=file.tensors["token_embd.weight"].shape[0],
            context=int(found["llama.context_length"]),
            rms_epsilon=float(found["llama.attention.layer_norm_rms_epsilon"]),
            rope_theta=float(found.get("llama.rope.freq_base", 10000.0)),
            rope_scaling=_scaling(file, where),
            tied="output.weight" not in file.tensors,
            eos_ids=eos_ids(found),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelLoadError(f"{where} has no usable value for {error}; it is not a complete Llama GGUF") from error
    rope_dimensions = int(found.get("llama.rope.dimension_count", config.head_dim))
    if rope_dimensions != config.head_dim:
        raise ModelLoadError(f"{where} turns {rope_dimensions} of {config.head_dim} dimensions; this engine turns all")
    return config.check(where)


def eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that end a text: those named by the file, and the well-known ones among its special tokens."""
    named = [metadata.get(f"tokenizer.ggml.{which}_token_id") for which in ("eos", "eot")]
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    special = [index for index, kind in enumerate(kinds) if kind == 3 and tokens[index] in END_TEXTS]
    return tuple(dict.fromkeys([int(one) for one in named if one is not None] + special))


def tensors_from_gguf(file: GgufFile, config: LlamaConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """All weights, in Hugging Face's names and head layout, dequantised to `dtype`."""
    tensors: dict[str, Tensor] = {}
    for place in file.tensors.values():
        if place.name != ROPE_FACTORS:
            tensors[_hugging_name(place.name)] = _load(file, place, config, dtype)
    return tensors


def _load(file: GgufFile, place: TensorPlace, config: LlamaConfig, dtype: torch.dtype) -> Tensor:
    tensor = dequantized(file, place, dtype)
    if place.name.endswith("attn_q.weight"):
        return unpermuted(tensor, config.heads)
    if place.name.endswith("attn_k.weight"):
        return unpermuted(tensor, config.kv_heads)
    return tensor


def unpermuted(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp pairs neighbours in its rotary embedding, Hugging Face pairs halves: put the rows back. [out, in]."""
    out, inner = weight.shape
    return weight.view(heads, out // heads // 2, 2, inner).transpose(1, 2).reshape(out, inner).contiguous()


def dequantized(file: GgufFile, place: TensorPlace, dtype: torch.dtype) -> Tensor:
    """One tensor, in `dtype`. Raises ModelLoadError for a quantisation that the `gguf` package cannot undo."""
    try:
        kind = GGMLQuantizationType(place.kind)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        blocks = math.prod(place.shape) // block
        raw = file.raw(place, blocks * block_bytes)
        flat = torch.empty(blocks * block, dtype=dtype)
        step = max(1, PIECE_VALUES // block)
        for at in range(0, blocks, step):
            # One row: the package works in groups of 16 rows, which a matrix' own rows would make far too small.
            piece = dequantize(raw[at * block_bytes : (at + step) * block_bytes].reshape(1, -1), kind)
            values = torch.from_numpy(np.require(piece, requirements=["C", "W"]))
            flat[at * block : (at + step) * block].copy_(values.view(-1))
        return flat.view(place.shape)
    except (NotImplementedError, ValueError, KeyError, RuntimeError) as error:
        raise ModelLoadError(
            f"tensor {place.name!r} of model.gguf has type {place.kind}, shape {place.shape}, which cannot be "
            f"dequantised ({error}); use a file in F16, BF16, F32, Q4, Q5, Q6, Q8"
        ) from error


def _hugging_name(name: str) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    head, _, rest = name.removeprefix("blk.").partition(".")
    part, _, leaf = rest.partition(".")
    if not (name.startswith("blk.") and leaf == "weight" and part in LAYER_NAMES):
        raise ModelLoadError(f"model.gguf has tensor {name!r}, which no Llama of this engine has (biases, experts: no)")
    return f"model.layers.{head}.{LAYER_NAMES[part]}.weight"


def _scaling(file: GgufFile, where: str) -> RopeScaling:
    if ROPE_FACTORS in file.tensors:
        factors = dequantized(file, file.tensors[ROPE_FACTORS], torch.float32).tolist()
        return RopeScaling("factors", factors=tuple(factors))
    kind = file.metadata.get("llama.rope.scaling.type", "none")
    if kind == "linear":
        return RopeScaling("linear", float(file.metadata["llama.rope.scaling.factor"]))
    if kind != "none":
        raise ModelLoadError(f"{where} asks for rope scaling {kind!r}; this engine knows: none, linear, rope_freqs")
    return RopeScaling()
