"""A model from a GGUF file: dequantised, and a Llama's head layout turned back to Hugging Face's."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from tandem_worker.engine.config import ModelConfig, refuse_architecture
from tandem_worker.engine.families import find_family
from tandem_worker.engine.families.traits import Traits
from tandem_worker.engine.request import ModelLoadError
from tandem_worker.engine.rope import RopeScaling, scaling_from_json

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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
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
# Dequantised at once: its temporaries stay in the cache, and torch copies it by one thread. Beyond 32,768 values it
# would wake its others for each of thousands of copies, ten times as long on a busy machine; whole tensors go side by
# side instead.
PIECE_VALUES = 1 << 15
AT_ONCE = 4
ROPE_FACTORS = "rope_freqs.weight"
# Texts that end a turn in the model families of this architecture (llama.cpp ends at these too).
END_TEXTS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>")


def config_from_gguf(file: GgufFile, name: str, where: str) -> ModelConfig:
    """The shape. Raises ModelLoadError for another architecture, a missing key or an unknown rope scaling."""
    found = file.metadata
    family = find_family(architecture := str(found.get("general.architecture")))
    if family is None:
        raise refuse_architecture(architecture, where)
    try:
        config = _config_from_gguf(file, architecture, name, where)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelLoadError(f"{where} has no usable value for {error}; it is not a complete GGUF") from error
    rope_dimensions = int(found.get(f"{architecture}.rope.dimension_count", config.head_dim))
    if rope_dimensions != config.head_dim:
        raise ModelLoadError(f"{where} turns {rope_dimensions} of {config.head_dim} dimensions; this engine turns all")
    return config.check(where)


def _config_from_gguf(file: GgufFile, architecture: str, name: str, where: str) -> ModelConfig:
    found = {key.removeprefix(f"{architecture}."): value for key, value in file.metadata.items()}
    heads = int(found["attention.head_count"])
    hidden_size = int(found["embedding_length"])
    layers = int(found["block_count"])
    window = found.get("attention.sliding_window")
    return ModelConfig(
        name=name,
        family=architecture,
        layers=layers,
        hidden_size=hidden_size,
        intermediate_size=int(found["feed_forward_length"]),
        heads=heads,
        kv_heads=int(found.get("attention.head_count_kv", heads)),
        head_dim=int(found.get("attention.key_length", hidden_size // heads)),
        vocab=file.tensors["token_embd.weight"].shape[0],
        context=int(found["context_length"]),
        rms_epsilon=float(found["attention.layer_norm_rms_epsilon"]),
        rope_theta=float(found.get("rope.freq_base", 10000.0)),
        rope_scaling=_scaling(file, found, where),
        tied="output.weight" not in file.tensors,
        eos_ids=eos_ids(file.metadata),
        traits=Traits(
            qkv_bias="blk.0.attn_q.bias" in file.tensors,
            output_bias="blk.0.attn_output.bias" in file.tensors,
            qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
            window=int(window) if window else None,
            windowed=tuple(range(layers)) if window else (),
        ),
    )


def eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that end a text: those named by the file, and the well-known ones among its special tokens."""
    named = [metadata.get(f"tokenizer.ggml.{which}_token_id") for which in ("eos", "eot")]
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    special = [index for index, kind in enumerate(kinds) if kind == 3 and tokens[index] in END_TEXTS]
    return tuple(dict.fromkeys([int(one) for one in named if one is not None] + special))


def tensors_from_gguf(file: GgufFile, config: ModelConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """All weights, in Hugging Face's names and head layout, dequantised to `dtype`."""
    places = [place for place in file.tensors.values() if place.name != ROPE_FACTORS]
    names = [_hugging_name(place.name) for place in places]
    with ThreadPoolExecutor(min(AT_ONCE, torch.get_num_threads())) as pool:
        return dict(zip(names, pool.map(lambda place: _load(file, place, config, dtype), places), strict=True))


def _load(file: GgufFile, place: TensorPlace, config: ModelConfig, dtype: torch.dtype) -> Tensor:
    tensor = dequantized(file, place, dtype)
    if config.family != "llama":  # the only one that llama.cpp lays out in its own way
        return tensor
    if place.name.endswith(("attn_q.weight", "attn_q.bias")):
        return unpermuted(tensor, config.heads)
    if place.name.endswith(("attn_k.weight", "attn_k.bias")):
        return unpermuted(tensor, config.kv_heads)
    return tensor


def unpermuted(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp pairs neighbours in its rotary embedding, Hugging Face pairs halves: put the rows back. [out, ...]."""
    half = weight.shape[0] // heads // 2
    return weight.view(heads, half, 2, -1).transpose(1, 2).reshape(weight.shape).contiguous()


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
    if not (name.startswith("blk.") and leaf in {"weight", "bias"} and part in LAYER_NAMES):
        raise ModelLoadError(f"model.gguf has tensor {name!r}, which no model of this engine has (experts: no)")
    return f"model.layers.{head}.{LAYER_NAMES[part]}.{leaf}"


def _scaling(file: GgufFile, found: Mapping[str, Any], where: str) -> RopeScaling:
    if ROPE_FACTORS in file.tensors:
        factors = dequantized(file, file.tensors[ROPE_FACTORS], torch.float32).tolist()
        return RopeScaling("factors", factors=tuple(factors))
    if (kind := found.get("rope.scaling.type", "none")) == "none":
        return RopeScaling()
    if kind not in {"linear", "yarn"}:
        raise ModelLoadError(f"{where} asks for rope scaling {kind!r}; in a GGUF this engine knows none, linear, yarn")
    original = found.get("rope.scaling.original_context_length")
    rope = {"type": kind, "factor": found["rope.scaling.factor"], "original_max_position_embeddings": original}
    return scaling_from_json(rope, int(found["context_length"]), where)
