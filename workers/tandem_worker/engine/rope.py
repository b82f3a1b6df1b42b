"""Rotary embedding: the frequencies, every way of stretching them that the known families use, and the tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tandem_worker.engine.request import ModelLoadError

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotary frequencies are stretched: none, linear, dynamic, yarn, llama3, or `factors` by table.

    `original_context`: tokens before stretching. `served_context`: dynamic only, see `scaled_theta`.
    """

    kind: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] = ()
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole_borders: bool = True
    attention_factor: float = 1.0
    served_context: int = 0

    @property
    def stretches_context(self) -> bool:
        """Is the context `factor` times the original one, where the files say no more?"""
        return self.kind in {"linear", "dynamic", "yarn"}


def scaling_from_json(found: dict[str, Any], context: int, where: str) -> RopeScaling:
    """`rope_scaling` (or v5's `rope_parameters`) of a config.json. Raises ModelLoadError for a kind not known."""
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in KINDS:
        raise ModelLoadError(f"{where} asks for rope scaling {kind!r}; this engine knows: {', '.join(KINDS)}")
    if kind == "default":
        return RopeScaling()
    factor = float(found["factor"])
    original = int(found.get("original_max_position_embeddings") or context)
    if kind == "llama3":
        low, high = float(found["low_freq_factor"]), float(found["high_freq_factor"])
        return RopeScaling(kind, factor, low, high, original)
    if kind == "yarn":
        return RopeScaling(
            kind=kind,
            factor=factor,
            original_context=original,
            beta_fast=float(found.get("beta_fast") or 32),
            beta_slow=float(found.get("beta_slow") or 1),
            whole_borders=bool(found.get("truncate", True)),
            attention_factor=_attention_factor(found, factor),
        )
    return RopeScaling(kind, factor, original_context=context)


def _attention_factor(found: dict[str, Any], factor: float) -> float:
    """What YaRN multiplies cosines and sines by: given, or from the factor (Peng et al., ICLR'24, section 3.4)."""
    if found.get("attention_factor") is not None:
        return float(found["attention_factor"])
    scale, all_dimensions = found.get("mscale"), found.get("mscale_all_dim")
    if scale and all_dimensions:
        return _magnitude(factor, float(scale)) / _magnitude(factor, float(all_dimensions))
    return _magnitude(factor, 1.0)


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def rotary_tables(
    theta: float, head_dim: int, scaling: RopeScaling, context: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [context, head_dim] each (Su et al., 2021)."""
    angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies(theta, head_dim, scaling))
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * scaling.attention_factor).to(dtype), (angles.sin() * scaling.attention_factor).to(dtype)


def frequencies(theta: float, head_dim: int, scaling: RopeScaling) -> Tensor:
    """Radians per token, [head_dim / 2]."""
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / scaled_theta(theta, head_dim, scaling) ** steps
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "factors":
        return plain / torch.tensor(scaling.factors)
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    if scaling.kind == "yarn":
        return _yarn(plain, theta, head_dim, scaling)
    return plain


def scaled_theta(theta: float, head_dim: int, scaling: RopeScaling) -> float:
    """Dynamic NTK scaling raises the base with the length; the formula is that of `transformers`.

    Here the length is the served context, for every request: a base that followed a request's own length would make
    the keys of a shared or transferred page depend on who reads them. Up to the original context nothing changes.
    """
    if scaling.kind != "dynamic" or scaling.served_context <= scaling.original_context:
        return theta
    longer = scaling.factor * scaling.served_context / scaling.original_context - (scaling.factor - 1)
    return float(theta * longer ** (head_dim / (head_dim - 2)))


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """As in Llama 3.1's reference code: slow turns are stretched, fast ones kept, those between are blended."""
    turns = scaling.original_context * plain / (2 * math.pi)  # full turns over the original context
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return plain * keep + plain / scaling.factor * (1 - keep)


def _yarn(plain: Tensor, theta: float, head_dim: int, scaling: RopeScaling) -> Tensor:
    """YaRN (Peng et al., ICLR'24), section 3.2: by parts, between two counts of turns."""

    def dimension(turns: float) -> float:
        return head_dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.whole_borders:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # no division by zero
    stretch = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / scaling.factor * stretch + plain * (1 - stretch)
