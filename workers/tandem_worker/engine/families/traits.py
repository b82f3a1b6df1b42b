"""In what families of decoders differ, as far as this engine knows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Traits:
    """`window`: tokens that the layers `windowed` see, themselves included; None: every layer sees everything."""

    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    window: int | None = None
    windowed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """`architecture`: the class that `config.json` names; `traits`: from that file's content (raises ValueError)."""

    name: str
    architecture: str
    traits: Callable[[dict[str, Any]], Traits]


def late_windows(config: dict[str, Any]) -> tuple[int | None, tuple[int, ...]]:
    """Qwen's rule: off unless asked for, and then from layer `max_window_layers` on, or as `layer_types` says."""
    layers = int(config["num_hidden_layers"])
    if not config.get("use_sliding_window") or not (window := config.get("sliding_window", 4096)):
        return None, ()
    kinds = config.get("layer_types")
    if kinds is None:
        return int(window), tuple(range(int(config.get("max_window_layers", 28)), layers))
    return int(window), tuple(at for at, kind in enumerate(kinds) if kind == "sliding_attention")
