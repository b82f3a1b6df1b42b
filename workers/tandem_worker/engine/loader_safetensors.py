"""Weights from `*.safetensors`, as the hub lays them out: one file, or shards with an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from tandem_worker.engine.request import ModelLoadError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAX_JSON_BYTES = 64 << 20
INDEX = "model.safetensors.index.json"
FORGOTTEN = "rotary_emb.inv_freq"  # old checkpoints store it; it follows from the config


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelLoadError that names the file."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelLoadError(f"{path} is larger than {MAX_JSON_BYTES} bytes; that is no model's JSON")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise ModelLoadError(f"{path} holds {type(found).__name__}, not an object; fetch it again")
    return found


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the model: those of the index, or `model.safetensors`, or all. Raises ModelLoadError.

    A directory may hold a second copy in another layout (Mistral's `consolidated.safetensors`), which is no part.
    """
    if (index := directory / INDEX).is_file():
        found = read_json(index).get("weight_map")
        if not (isinstance(found, dict) and found and all(isinstance(one, str) for one in found.values())):
            raise ModelLoadError(f"{index} has no weight_map of names to files; fetch it again")
        files = [directory / Path(name).name for name in sorted(set(found.values()))]
        if missing := [file.name for file in files if not file.is_file()]:
            raise ModelLoadError(f"{directory} lacks {missing[0]!r}, which its index names; fetch it again")
        return files
    if (whole := directory / "model.safetensors").is_file():
        return [whole]
    return sorted(directory.glob("*.safetensors"))


def tensors_from_safetensors(directory: Path, dtype: torch.dtype, *, tied: bool) -> dict[str, Tensor]:
    """All weights of the directory's files, in `dtype`. Raises ModelLoadError for a damaged file."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (no mapping)
                    tensors[name] = file.get_tensor(name).to(dtype)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise ModelLoadError(f"{path} is no sound safetensors file ({error}); fetch it again") from error
    if tied:
        tensors.pop("lm_head.weight", None)
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(FORGOTTEN)}
