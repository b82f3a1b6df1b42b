"""A model directory becomes a model: `model.gguf`, or `*.safetensors` with `config.json`."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from tandem_worker.engine.config import ModelConfig, as_ids, config_from_json, dtype_of
from tandem_worker.engine.decoder import Decoder
from tandem_worker.engine.device import device_of
from tandem_worker.engine.gguf_file import open_gguf
from tandem_worker.engine.loader_gguf import config_from_gguf, tensors_from_gguf
from tandem_worker.engine.loader_safetensors import read_json, tensors_from_safetensors
from tandem_worker.engine.native.kernels import native_kernels
from tandem_worker.engine.parallel import Leader, shard_config, shard_tensors
from tandem_worker.engine.request import EngineSettings, ModelInfo, ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

GGUF_NAME = "model.gguf"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, ready to run, and what it says about itself."""

    decoder: Decoder
    info: ModelInfo
    leader: Leader | None = None  # with tensor parallelism: who tells the other ranks


def load_model(path: Path, settings: EngineSettings, rank: int = 0) -> LoadedModel:
    """Load the directory's model, or one rank's share of it.

    Raises ModelLoadError: one sentence that says what, where and what to do.
    """
    dtype = dtype_of(settings.dtype)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    if settings.weights and (settings.weights, dtype) != ("int8", torch.bfloat16):
        raise ModelLoadError(
            f"--weights {settings.weights} is not served with --dtype {settings.dtype}: int8 with bfloat16 is"
        )
    config, tensors = read_weights(path, dtype)
    if settings.max_context > config.context:
        raise ModelLoadError(
            f"{path} is for {config.context} tokens at most, less than --max-context {settings.max_context}; lower it"
        )
    check_tensors(config, tensors, path)
    config = config.served(settings.max_context)
    parameters = sum(tensor.numel() for tensor in tensors.values())
    info = _info(config, parameters, dtype, config.fingerprint(digest(tensors)))
    if settings.tensor_parallel > 1:
        share = shard_config(config, rank, settings.tensor_parallel)
        tensors, config = shard_tensors(config, tensors, rank, settings.tensor_parallel), share
    device = device_of(settings, rank)
    with torch.inference_mode():
        tensors = {name: tensors.pop(name).to(device) for name in list(tensors)}
        native = native_kernels(config, dtype, settings.max_context) if device.type == "cpu" else None
        decoder = Decoder(
            config, tensors, dtype, settings.max_context, native, int8=settings.weights == "int8", kv=settings.kv
        )
    return LoadedModel(decoder, info)


def read_weights(path: Path, dtype: torch.dtype) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The config and the weights in Hugging Face's names. Raises ModelLoadError."""
    if not path.is_dir():
        raise ModelLoadError(f"there is no model directory at {path}; check --model and the volume that it lies on")
    name = path.name
    if (gguf := path / GGUF_NAME).is_file():
        file = open_gguf(gguf)
        config = config_from_gguf(file, name, str(gguf))
        return config, tensors_from_gguf(file, config, dtype)
    if not any(path.glob("*.safetensors")):
        raise ModelLoadError(f"{path} holds neither {GGUF_NAME} nor *.safetensors; put one there")
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"{path} has *.safetensors but no config.json; put the model's own there")
    config = config_from_json(read_json(path / "config.json"), name, str(path / "config.json"))
    config = replace(config, eos_ids=_generation_eos(path) or config.eos_ids).check(str(path))
    return config, tensors_from_safetensors(path, dtype, tied=config.tied)


def _generation_eos(path: Path) -> tuple[int, ...]:
    """`generation_config.json` may name more end tokens than `config.json` (Llama 3 Instruct does)."""
    file = path / "generation_config.json"
    return as_ids(read_json(file).get("eos_token_id")) if file.is_file() else ()


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of a model of this shape."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab, hidden)}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, hidden)
    layer = _layer_shapes(config)
    for index in range(config.layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, traits = config.hidden_size, config.intermediate_size, config.traits
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if traits.qkv_bias:
        sizes = {"q": queries, "k": keys, "v": keys}
        shapes |= {f"self_attn.{which}_proj.bias": (size,) for which, size in sizes.items()}
    if traits.output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if traits.qk_norm:
        shapes |= {f"self_attn.{which}_norm.weight": (config.head_dim,) for which in ("q", "k")}
    return shapes


def check_tensors(config: ModelConfig, tensors: dict[str, Tensor], path: Path) -> None:
    """Raises ModelLoadError for a missing, strange, misshapen or broken weight."""
    shapes = expected_shapes(config)
    kind = f"a {config.layers}-layer {config.family}"
    for name, shape in shapes.items():
        if name not in tensors:
            raise ModelLoadError(f"{path} lacks the weight {name!r} of {kind}; fetch it again")
        if tuple(tensors[name].shape) != shape:
            raise ModelLoadError(f"{path} has {name!r} of shape {tuple(tensors[name].shape)}; its config says {shape}")
    if strange := sorted(tensors.keys() - shapes.keys()):
        raise ModelLoadError(f"{path} has the weight {strange[0]!r}, which {kind} does not have; it is another model")
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise ModelLoadError(f"{path} has NaN or infinity in {name!r}; it is damaged: fetch it again")


def is_finite(tensor: Tensor) -> bool:
    """Is there neither NaN nor infinity in it?"""
    # Both have an exponent of ones, so that as a whole number nothing of their sign is greater. By numpy: torch wakes
    # all threads for each of hundreds of sums, which was a fifth of a start.
    whole, infinity = torch.finfo(tensor.dtype).bits, torch.tensor(math.inf, dtype=tensor.dtype)
    kind, of_numpy = (torch.int16, np.uint16) if whole == 16 else (torch.int32, np.uint32)
    bits = tensor.view(kind).numpy()
    limits = (int(one.view(kind)) for one in (infinity, -infinity))
    positive, negative = next(limits), next(limits) % 2**whole
    return int(bits.max()) < positive and int(bits.view(of_numpy).max()) < negative


def digest(tensors: dict[str, Tensor]) -> bytes:
    """A digest of a sample of every weight (its first 16 values, in fp32 rounded to bf16 so that dtypes agree)."""
    running = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        sample = tensors[name].flatten()[:16].to(torch.bfloat16).float()
        running.update(name.encode() + sample.numpy().tobytes())
    return running.digest()


def _info(config: ModelConfig, parameters: int, dtype: torch.dtype, fingerprint: str) -> ModelInfo:
    return ModelInfo(
        name=config.name,
        parameters=parameters,
        layers=config.layers,
        hidden_size=config.hidden_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab,
        element_bytes=dtype.itemsize,
        eos_ids=config.eos_ids,
        config_hash=fingerprint,
    )
