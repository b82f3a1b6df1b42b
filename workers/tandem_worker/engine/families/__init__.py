"""The model families: what sets each apart from the decoder that they all share. A new one is a file and a line."""

from __future__ import annotations

from tandem_worker.engine.families import llama, mistral, qwen2, qwen3
from tandem_worker.engine.families.traits import Family

FAMILIES: tuple[Family, ...] = (llama.FAMILY, mistral.FAMILY, qwen2.FAMILY, qwen3.FAMILY)


def find_family(architecture: str) -> Family | None:
    """By the architecture's name in `config.json`, or by the model type in it and in GGUF files."""
    return next((one for one in FAMILIES if architecture in (one.architecture, one.name)), None)


def known_architectures() -> str:
    """For messages."""
    return ", ".join(f"{one.architecture} ({one.name})" for one in FAMILIES)
