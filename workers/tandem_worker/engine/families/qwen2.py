"""Qwen2 and Qwen2.5: queries, keys and values have a bias."""

from __future__ import annotations

from typing import Any

from tandem_worker.engine.families.traits import Family, Traits, late_windows


def _traits(config: dict[str, Any]) -> Traits:
    window, windowed = late_windows(config)
    return Traits(qkv_bias=True, window=window, windowed=windowed)


FAMILY = Family("qwen2", "Qwen2ForCausalLM", _traits)
