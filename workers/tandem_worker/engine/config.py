"""What a Llama model's files say about its shape; one frozen value, whichever format it came from."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

import torch

from tandem_worker.engine.request import ModelLoadError

KNOWN_ARCHITECTURES = ("llama",)
SIZES = ("layers", "hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim", "vocab", "context")
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotary frequencies are stretched: `none`, `linear`, `llama3` (by formula) or `factors` (by table)."""

    kind: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """A Llama's sizes. `context` in tokens, as trained."""

    name: str
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

    def check(self, where: str) -> LlamaConfig:
        """Itself, when the sizes make sense. Raises ModelLoadError that names the first that does not."""
        for field in SIZES:
            if not 0 < getattr(self, field) < 2**31:
                raise ModelLoadError(f"{where} says {field}={getattr(self, field)}; it must be positive")
        if self.heads % self.kv_heads:
            raise ModelLoadError(f"{where} has {self.heads} heads for {self.kv_heads} KV heads; it must be a multiple")
        if self.head_dim % 2:
            raise ModelLoadError(f"{where} has head_dim={self.head_dim}; rotary embedding needs an even one")
        if not (isfinite(self.rope_theta) and self.rope_theta > 0):
            raise ModelLoadError(f"{where} has rope theta {self.rope_theta}; it must be a positive number")
        return self

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
    known = ", ".join(KNOWN_ARCHITECTURES)
    return ModelLoadError(f"{where} is of architecture {found!r}, which this engine does not know; known: {known}")


def config_from_json(config: dict[str, Any], name: str, where: str) -> LlamaConfig:
    """From a Hugging Face `config.json` (both the old and the v5 spelling of rope). Raises ModelLoadError."""
    architecture = (config.get("architectures") or [config.get("model_type", "none")])[0]
    if architecture not in ("LlamaForCausalLM", "llama"):
        raise refuse_architecture(str(architecture), where)
    for field, wanted in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if config.get(field, wanted) != wanted:
            raise ModelLoadError(f"{where} has {field}={config[field]!r}; this engine serves {wanted!r} only")
    try:
        return _config_from_json(config, name, where).check(where)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{where} has no usable value for {error}; it is not a complete Llama config") from error


def _config_from_json(config: dict[str, Any], name: str, where: str) -> LlamaConfig:
    rope = config.get("rope_parameters") or {}
    heads = int(config["num_attention_heads"])
    return LlamaConfig(
        name=name,
        layers=int(config["num_hidden_layers"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        vocab=int(config["vocab_size"]),
        context=int(config.get("max_position_embeddings", 2048)),
        rms_epsilon=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        rope_scaling=scaling_from_json(config.get("rope_scaling") or rope, where),
        tied=bool(config.get("tie_word_embeddings", False)),
        eos_ids=as_ids(config.get("eos_token_id")),
    )


def scaling_from_json(found: dict[str, Any], where: str) -> RopeScaling:
    """`rope_scaling` (or v5's `rope_parameters`) of a config.json. Raises ModelLoadError for a kind not known."""
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", float(found["factor"]))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=float(found["factor"]),
            low_freq_factor=float(found["low_freq_factor"]),
            high_freq_factor=float(found["high_freq_factor"]),
            original_context=int(found["original_max_position_embeddings"]),
        )
    raise ModelLoadError(f"{where} asks for rope scaling {kind!r}; this engine knows: default, linear, llama3")


def as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """An `eos_token_id`, which may be absent, one id or a list."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(int(item) for item in value)
