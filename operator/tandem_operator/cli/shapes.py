"""Shapes of models: the workers' own for a few, those of published configs, or a config.json's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import ModelShape
from tandem_operator.plan.performance.config import BadConfigError, ModelConfig, shape_from_config
from tandem_operator.plan.performance.public import PUBLIC, find_model
from tandem_operator.plan.performance.weights import total_parameters

if TYPE_CHECKING:
    from pathlib import Path

# parameters, layers, hidden size, heads, KV heads, head_dim, vocabulary, bytes per element (bf16)
SHAPES: dict[str, ModelShape] = {
    "smollm2-135m": ModelShape(134_515_008, 30, 576, 9, 3, 64, 49_152, 2),
    "qwen2.5-7b": ModelShape(7_615_616_512, 28, 3584, 28, 4, 128, 152_064, 2),
    "llama-3.1-8b": ModelShape(8_030_261_248, 32, 4096, 32, 8, 128, 128_256, 2),
    "llama-3.1-70b": ModelShape(70_553_706_496, 80, 8192, 64, 8, 128, 128_256, 2),
    "llama-3.1-405b": ModelShape(405_853_388_800, 126, 16_384, 128, 8, 128, 128_256, 2),
}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1}
MOST_BYTES = 4 << 20


class UnknownShapeError(LookupError):
    """The model's name matches none of the tables, or its config says less, or more, than a shape can hold."""


def shape_of(name: str, dtype: str, config: Path | None = None) -> ModelShape:
    """The shape of a config.json if there is one, else of the model's name. Raises UnknownShapeError or OSError."""
    return find_shape(name, dtype) if config is None else from_config(config, dtype)


def find_shape(name: str, dtype: str = "bfloat16") -> ModelShape:
    """The shape whose name is part of `name` (hf://meta-llama/Llama-3.1-70B-Instruct finds llama-3.1-70b).

    Raises UnknownShapeError, naming those that there are.
    """
    for known, shape in SHAPES.items():
        if known in name.lower():
            return replace(shape, element_bytes=BYTES.get(dtype, shape.element_bytes))
    try:
        return dense_shape(name, find_model(name), dtype)
    except BadConfigError:
        known_names = ", ".join([*SHAPES, *(n for n, c in PUBLIC.items() if is_plain(shape_from_config(c)))])
        raise UnknownShapeError(
            f"no known shape in {name!r}; give its config.json with --config, or --model with one of {known_names}"
        ) from None


def from_config(path: Path, dtype: str) -> ModelShape:
    """The shape of a config.json. Raises UnknownShapeError, naming the field that is missing, or OSError."""
    text = path.read_bytes()
    try:
        config = json.loads(text) if len(text) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise UnknownShapeError(f"{path} is no JSON object; give the model's config.json")
    try:
        return dense_shape(str(path), shape_from_config(config), dtype)
    except BadConfigError as error:
        raise UnknownShapeError(f"{path}: {error}") from None


def dense_shape(name: str, model: ModelConfig, dtype: str) -> ModelShape:
    """The planner's shape of a plain decoder. Raises UnknownShapeError for what it cannot hold."""
    if not is_plain(model):
        raise UnknownShapeError(
            f"{name}: mixtures of experts, latent and recurrent attention are not planned for yet; "
            "the planner's shape holds dense models with grouped-query attention"
        )
    return ModelShape(
        total_parameters(model),
        model.layers,
        model.hidden,
        model.heads,
        model.kv_heads,
        model.head_dim,
        model.vocab,
        BYTES.get(dtype, 2),
    )


def is_plain(model: ModelConfig) -> bool:
    """A dense decoder whose every layer attends to everything."""
    return not (model.experts or model.latent or model.recurrent or model.window_layers)
