"""Qwen3: no bias, but each head's query and key is normed before it is turned."""

from __future__ import annotations

from typing import Any

from tandem_worker.engine.families.traits import Family, Traits, late_windows


def _traits(config: dict[str, Any]) -> Traits:
    window, windowed = late_windows(config)
    bias = bool(config.get("attention_bias", False))
    return Traits(qkv_bias=bias, output_bias=bias, qk_norm=True, window=window, windowed=windowed)


FAMILY = Family("qwen3", "Qwen3ForCausalLM", _traits)
