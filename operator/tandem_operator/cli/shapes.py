"""The shape of the model that a command is about: by its name, or its config.json's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tandem_operator.plan.performance.config import BadConfigError, shape_from_config
from tandem_operator.plan.shapes import UnknownShapeError, find_shape, shape_from

if TYPE_CHECKING:
    from pathlib import Path

    from tandem_operator.plan.facts import ModelShape

MOST_BYTES = 4 << 20


def shape_of(name: str, dtype: str, config: Path | None = None) -> ModelShape:
    """The shape of a config.json if there is one, else of the model's name. Raises UnknownShapeError or OSError."""
    return find_shape(name, dtype) if config is None else from_config(config, dtype)


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
        return shape_from(shape_from_config(config), dtype)
    except BadConfigError as error:
        raise UnknownShapeError(f"{path}: {error}") from None
