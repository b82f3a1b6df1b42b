"""Llama 2, 3.x; SmolLM and SmolLM2, which are Llamas by their files."""

from __future__ import annotations

from typing import Any

from tandem_worker.engine.families.traits import Family, Traits


def _traits(config: dict[str, Any]) -> Traits:
    bias = bool(config.get("attention_bias", False))
    return Traits(qkv_bias=bias, output_bias=bias)


FAMILY = Family("llama", "LlamaForCausalLM", _traits)
