"""What a model's files say about its shape; one frozen value, whichever format it came from."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

import torch

from tandem_worker.engine.families import find_family, known_architectures
from tandem_worker.engine.families.traits import Traits
from tandem_worker.engine.request import ModelLoadError
from tandem_worker.engine.rope import RopeScaling, scaling_from_json

SIZES = ("layers", "hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim", "vocab", "context")
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's sizes. `context` in tokens, as trained and stretched; `traits`: what its family adds."""

    name: str
    family: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rms_epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling
    tied: bool
    eos_ids: tuple[int, ...]
    traits: Traits

    def check(self, where: str) -> ModelConfig:
        """Itself, when the sizes make sense. Raises ModelLoadError that names the first that does not."""
        for field in SIZES:
            if not 0 < getattr(self, field) < 2**31:
                raise ModelLoadError(f"{where} says {field}={getattr(self, field)}; it must be positive")
        if self.heads % self.kv_heads:
            raise ModelLoadError(f"{where} has {self.heads} heads for {self.kv_heads} KV heads; it must be a multiple")
        if self.head_dim % 2 or self.head_dim < 4:
            raise ModelLoadError(f"{where} has head_dim={self.head_dim}; rotary embedding needs an even one from 4 on")
        if not (isfinite(self.rope_theta) and self.rope_theta > 1):
            raise ModelLoadError(f"{where} has rope theta {self.rope_theta}; it must be a number above 1")
        if not (isfinite(self.rope_scaling.factor) and self.rope_scaling.factor > 0):
            raise ModelLoadError(f"{where} has rope factor {self.rope_scaling.factor}; it must be a positive number")
        if strange := [one for one in self.eos_ids if not 0 <= one < self.vocab]:
            raise ModelLoadError(f"{where} ends texts with token {strange[0]}; its vocabulary has {self.vocab}")
        if self.traits.window is not None and self.traits.window < 1:
            raise ModelLoadError(f"{where} has a sliding window of {self.traits.window} tokens; it must be positive")
        return self

    def served(self, max_context: int) -> ModelConfig:
        """As it is with `max_context` served: a window that nothing reaches is none, a dynamic base is settled."""
        traits, scaling = self.traits, self.rope_scaling
        if traits.window is not None and traits.window >= max_context:
            traits = replace(traits, window=None, windowed=())
        if scaling.kind == "dynamic":
            scaling = replace(scaling, served_context=max(max_context, scaling.original_context))
        return replace(self, traits=traits, rope_scaling=scaling)

    def fingerprint(self, weights_digest: bytes) -> str:
        """16 hex characters, equal when the shape and the sampled weights are: KV pages then mean the same."""
        shape = repr(sorted(asdict(replace(self, name="", eos_ids=())).items()))
        return hashlib.blake2b(shape.encode() + weights_digest, digest_size=8).hexdigest()


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a setting. Raises ModelLoadError for one that the engine cannot serve."""
    if name not in DTYPES:
        raise ModelLoadError(f"dtype {name!r} is not served by this engine; use one of: {', '.join(DTYPES)}")
    return DTYPES[name]


def refuse_architecture(found: str, where: str) -> ModelLoadError:
    """The error for an architecture that is not among the known ones."""
    return ModelLoadError(
        f"{where} is of architecture {found!r}, which this engine does not know; known: {known_architectures()}"
    )


def config_from_json(config: dict[str, Any], name: str, where: str) -> ModelConfig:
    """From a Hugging Face `config.json` (both the old and the v5 spelling of rope). Raises ModelLoadError."""
    architecture = str((config.get("architectures") or [config.get("model_type", "none")])[0])
    if find_family(architecture) is None:
        raise refuse_architecture(architecture, where)
    refuse_variants(config, where)
    try:
        return _config_from_json(config, architecture, name, where).check(where)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelLoadError(f"{where} has no usable value for {error}; it is not a complete model config") from error


def refuse_variants(config: dict[str, Any], where: str) -> None:
    """Raises ModelLoadError for what a known family may have, and this engine does not do."""
    rope = config.get("rope_parameters") or {}
    turned = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    found = {**config, "partial_rotary_factor": 1.0 if turned is None else turned}
    for field, wanted in (("hidden_act", "silu"), ("mlp_bias", False), ("partial_rotary_factor", 1.0)):
        if found.get(field, wanted) != wanted:
            raise ModelLoadError(f"{where} has {field}={found[field]!r}; this engine serves {wanted!r} only")
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else "unknown"
        raise ModelLoadError(f"{where} is quantised ({method}); this engine serves bf16 and fp32 weights, and GGUF")


def _config_from_json(config: dict[str, Any], architecture: str, name: str, where: str) -> ModelConfig:
    family = find_family(architecture)
    if family is None:
        raise refuse_architecture(architecture, where)
    rope = config.get("rope_parameters") or {}
    heads = int(config["num_attention_heads"])
    context = int(config.get("max_position_embeddings", 2048))
    scaling = scaling_from_json(config.get("rope_scaling") or rope, context, where)
    stretched = int(scaling.original_context * scaling.factor) if scaling.stretches_context else context
    return ModelConfig(
        name=name,
        family=family.name,
        layers=int(config["num_hidden_layers"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        vocab=int(config["vocab_size"]),
        context=max(context, stretched),
        rms_epsilon=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        rope_scaling=scaling,
        tied=bool(config.get("tie_word_embeddings", False)),
        eos_ids=as_ids(config.get("eos_token_id")),
        traits=family.traits(config),
    )


def as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """An `eos_token_id`, which may be absent, one id or a list."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(int(item) for item in value)
