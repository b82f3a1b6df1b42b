"""Sampling values that a model's own `generation_config.json` asks for, where a request says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tandem_worker.engine.loader_safetensors import read_json
from tandem_worker.engine.request import ModelLoadError

NAME = "generation_config.json"


class Defaults(BaseModel):
    """The fields that are used, in the ranges that requests have; OpenAI's own defaults where the file has none."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0


def read_defaults(model: Path) -> Defaults:
    """Of a model's directory. Raises ModelLoadError for a value that no request could have either."""
    if not (file := model / NAME).is_file():
        return Defaults()
    said = {name: value for name, value in read_json(file).items() if value is not None}
    try:
        return Defaults.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ModelLoadError(f"{file} has {first['loc'][0]}: {first['msg']}; correct it there") from error
