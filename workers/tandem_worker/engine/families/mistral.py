"""Mistral: a Llama whose layers, in its first version, see a sliding window."""

from __future__ import annotations

from typing import Any

from tandem_worker.engine.families.traits import Family, Traits

OLD_WINDOW = 4096  # of the first files, which do not say it; `null` says that there is none


def _traits(config: dict[str, Any]) -> Traits:
    window = config.get("sliding_window", OLD_WINDOW)
    if not window:
        return Traits()
    return Traits(window=int(window), windowed=tuple(range(int(config["num_hidden_layers"]))))


FAMILY = Family("mistral", "MistralForCausalLM", _traits)
