"""Shapes of well-known models, from their published config.json; others are given by flags."""

from __future__ import annotations

from dataclasses import replace

from tandem_operator.plan.facts import ModelShape

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
    """The model's name matches none of the table."""


def find_shape(name: str, dtype: str = "bfloat16") -> ModelShape:
    """The shape whose name is part of `name` (hf://meta-llama/Llama-3.1-70B-Instruct finds llama-3.1-70b).

    Raises UnknownShapeError, naming those that there are.
    """
    for known, shape in SHAPES.items():
        if known in name.lower():
            return replace(shape, element_bytes=BYTES.get(dtype, shape.element_bytes))
    raise UnknownShapeError(f"no known shape in {name!r}; use --model with one of {', '.join(SHAPES)}")
