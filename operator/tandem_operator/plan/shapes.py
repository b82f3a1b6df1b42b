"""Shapes of models: the workers' own for a few, and those of published configs."""

from __future__ import annotations

from dataclasses import replace

from tandem_operator.plan.facts import ModelShape
from tandem_operator.plan.performance.config import BadConfigError, ModelConfig
from tandem_operator.plan.performance.public import PUBLIC, find_model
from tandem_operator.plan.performance.weights import total_parameters

# parameters, layers, hidden size, heads, KV heads, head_dim, vocabulary, bytes per element (bf16)
SHAPES: dict[str, ModelShape] = {
    "smollm2-135m": ModelShape(134_515_008, 30, 576, 9, 3, 64, 49_152, 2),
    "qwen2.5-7b": ModelShape(7_615_616_512, 28, 3584, 28, 4, 128, 152_064, 2),
    "llama-3.1-8b": ModelShape(8_030_261_248, 32, 4096, 32, 8, 128, 128_256, 2),
    "llama-3.1-70b": ModelShape(70_553_706_496, 80, 8192, 64, 8, 128, 128_256, 2),
    "llama-3.1-405b": ModelShape(405_853_388_800, 126, 16_384, 128, 8, 128, 128_256, 2),
}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1}


class UnknownShapeError(LookupError):
    """The model's name matches none of the tables, or its config.json cannot be read; one sentence."""


def find_shape(name: str, dtype: str = "bfloat16") -> ModelShape:
    """The shape whose name is part of `name` (hf://meta-llama/Llama-3.1-70B-Instruct finds llama-3.1-70b).

    Raises UnknownShapeError, naming those that there are.
    """
    for known, shape in SHAPES.items():
        if known in name.lower():
            return replace(shape, element_bytes=BYTES.get(dtype, shape.element_bytes))
    try:
        return shape_from(find_model(name), dtype)
    except BadConfigError:
        known_names = ", ".join({**SHAPES, **PUBLIC})
        raise UnknownShapeError(
            f"no known shape in {name!r}; give its config.json with --config, or --model with one of {known_names}"
        ) from None


def shape_from(model: ModelConfig, dtype: str) -> ModelShape:
    """The planner's shape of a config; what is no plain dense decoder carries the config itself."""
    return ModelShape(
        total_parameters(model),
        model.layers,
        model.hidden,
        model.heads,
        model.kv_heads,
        model.head_dim,
        model.vocab,
        BYTES.get(dtype, 2),
        None if is_plain(model) else model,
    )


def is_plain(model: ModelConfig) -> bool:
    """A dense decoder whose every layer attends to everything."""
    return not (model.experts or model.latent or model.recurrent or model.window_layers or model.attended)
