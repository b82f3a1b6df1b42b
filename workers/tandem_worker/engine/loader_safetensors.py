"""A Llama from `*.safetensors` and `config.json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from tandem_worker.engine.request import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

MAX_JSON_BYTES = 64 << 20
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


def tensors_from_safetensors(directory: Path, dtype: torch.dtype, *, tied: bool) -> dict[str, Tensor]:
    """All weights of the directory's files, in `dtype`. Raises ModelLoadError for a damaged file."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (no mapping)
                    tensors[name] = file.get_tensor(name).to(dtype)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{path} is no sound safetensors file ({error}); fetch it again") from error
    if tied:
        tensors.pop("lm_head.weight", None)
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(FORGOTTEN)}
