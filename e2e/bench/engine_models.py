"""The engine bench's two models: a directory (safetensors), and the same weights as GGUF in bf16 and in f16.

f16 is for openvino-genai, whose GGUF reader knows no bf16: it holds every bf16 value from 6e-5 to 65504 exactly.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import save_file

from e2e.harness.kube import REPO
from tandem_worker.engine.config import config_from_json
from tandem_worker.engine.gguf_file import open_gguf
from tandem_worker.engine.loader_gguf import LAYER_NAMES, TOP_NAMES
from tandem_worker.engine.model import expected_shapes, read_weights

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from tandem_worker.engine.config import ModelConfig

SMOLLM: Final = REPO / "build/models/smollm2-135m-instruct"
MADE: Final = REPO / "build/bench/engine-models"
SHAPE: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
NAMES: Final = ("made-125m", "smollm2-135m")


def directory(name: str) -> Path:
    """The model's directory with config.json, model.safetensors, bf16.gguf and f16.gguf; made once."""
    place = MADE / name
    if not (place / "f16.gguf").is_file():
        place.mkdir(parents=True, exist_ok=True)
        shape, tensors = made() if name == NAMES[0] else smollm()
        (place / "config.json").write_text(json.dumps(shape))
        save_file(tensors, place / "model.safetensors", {"format": "pt"})
        for kind in ("bf16", "f16"):
            write_gguf(place / f"{kind}.gguf", config_from_json(shape, name, name), tensors, half=kind == "f16")
    return place


def made() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Random weights, scaled so that hidden states keep their size; the same ones every time."""
    generator = torch.Generator().manual_seed(125)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
        for name, shape in expected_shapes(config_from_json(SHAPE, "made", "made")).items()
    }
    return SHAPE, {name: tensor.bfloat16() for name, tensor in tensors.items()}


def smollm() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """SmolLM2-135M, dequantised to bf16 once, for everybody."""
    config, tensors = read_weights(SMOLLM, torch.bfloat16)
    sizes = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.rms_epsilon,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied,
    }
    return {**SHAPE, **sizes}, tensors


def write_gguf(path: Path, config: ModelConfig, tensors: dict[str, Tensor], *, half: bool) -> None:
    """The same weights, `half`: in f16, and as much of SmolLM2's tokenizer as the vocabulary holds."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_epsilon)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab)
    writer.add_file_type(1 if half else 32)  # mostly f16, mostly bf16
    _add_tokenizer(writer, config.vocab)
    for name, tensor in tensors.items():
        _add(writer, _gguf_name(name), _permuted(name, tensor, config), half=half)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, name: str, tensor: Tensor, *, half: bool) -> None:
    if tensor.ndim == 1 or half:
        writer.add_tensor(name, tensor.to(torch.float32 if tensor.ndim == 1 else torch.float16).numpy())
        return
    raw = tensor.contiguous().view(torch.uint8).numpy()
    writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.BF16)


def _add_tokenizer(writer: GGUFWriter, vocab: int) -> None:
    found = open_gguf(SMOLLM / "model.gguf").metadata
    tokens = found["tokenizer.ggml.tokens"][:vocab]
    known = set(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(found["tokenizer.ggml.token_type"][:vocab])
    writer.add_token_merges([one for one in found["tokenizer.ggml.merges"] if one.replace(" ", "") in known])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _permuted(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """llama.cpp pairs neighbours in its rotary embedding, Hugging Face pairs halves."""
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.split(".")[-2], 0)
    if not heads:
        return tensor
    half = tensor.shape[0] // heads // 2
    return tensor.view(heads, 2, half, -1).transpose(1, 2).reshape(tensor.shape)


def _gguf_name(name: str) -> str:
    for theirs, ours in TOP_NAMES.items():
        if ours == name:
            return theirs
    _, _, index, rest = name.split(".", 3)
    part = {ours: theirs for theirs, ours in LAYER_NAMES.items()}[rest.removesuffix(".weight")]
    return f"blk.{index}.{part}.weight"
