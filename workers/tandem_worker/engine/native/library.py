"""The compiled kernels as Python calls, or the reason why there are none."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int, c_long, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from tandem_worker.engine.native.build import ARCHITECTURES, library_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORM: Final = 5  # of the calls below and of packed weights; `tandem_form` in kernels.cpp


class AttentionCall(ctypes.Structure):
    """`Attention` of attention.h, field by field."""

    _fields_ = (
        *((name, c_void_p) for name in ("qkv", "out", "kv", "cosines", "sines", "query_norm", "key_norm")),
        *((name, c_void_p) for name in ("positions", "page", "slot")),
        *((name, c_long) for name in ("rows", "heads", "kv_heads", "head_dim", "page_tokens", "page_stride", "window")),
        ("epsilon", c_float),
        ("threads", c_int),
        ("kind", c_int),
    )


class LayerCall(ctypes.Structure):
    """`Layer` of kernels.cpp."""

    _fields_ = (
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, c_void_p) for name in ("qkv", "output", "gated", "down", "qkv_bias", "output_bias")),
        ("window", c_long),
    )


class GroupCall(ctypes.Structure):
    """`Group` of kernels.cpp."""

    _fields_ = (("pages", c_void_p), *((name, c_long) for name in ("width", "sequences", "rows", "first")))


class PassCall(ctypes.Structure):
    """`Pass` of kernels.cpp."""

    _fields_ = (
        ("call", AttentionCall),
        ("layers", POINTER(LayerCall)),
        ("groups", POINTER(GroupCall)),
        *((name, c_void_p) for name in ("hidden", "normed", "inner")),
        *((name, c_long) for name in ("layer_count", "group_count", "size", "inner_size", "layer_bytes")),
    )


CALLS: Final[dict[str, list[Any]]] = {
    "tandem_pack": [c_void_p, c_long, c_long, c_int, c_void_p],
    "tandem_product": [c_void_p, c_long, c_long, c_void_p, c_void_p, c_void_p, c_long, c_int, c_int],
    "tandem_norm": [c_void_p, c_void_p, c_long, c_long, c_float, c_void_p],
    "tandem_enter": [POINTER(AttentionCall)],
    "tandem_attend": [POINTER(AttentionCall), c_void_p, c_long, c_long, c_long, c_long],
    "tandem_run_pass": [POINTER(PassCall)],
    "tandem_copy": [c_void_p, c_void_p, c_long],
}


@dataclass(frozen=True, slots=True)
class Library:
    """The calls of kernels.cpp. Pointers are those of contiguous CPU tensors that outlive the call.

    `lanes`: words of a packed weight's row; a panel has twice as many outputs.
    """

    lanes: int
    pack: Any
    product: Any
    norm: Any
    enter: Any
    attend: Any
    run_pass: Any
    copy: Any


def find_library(path: Path | None = None) -> Library | str:
    """The kernels, or why this process goes without them. It compiles nothing: a start must not wait for that."""
    if torch.cpu._is_amx_tile_supported():  # noqa: SLF001 (no public name)
        return "oneDNN's bf16 products by AMX are faster than these kernels' in fp32"
    return _any_library(path)


@cache
def find_copy() -> Callable[[int, int, int], object]:
    """`copy(to, from, bytes)`, by addresses; other threads run meanwhile. Past the caches, where this CPU can."""
    found = _any_library(None)
    return ctypes.memmove if isinstance(found, str) else found.copy


def _any_library(path: Path | None) -> Library | str:
    if (capability := torch.backends.cpu.get_cpu_capability()) not in ARCHITECTURES:
        return f"this CPU offers torch {capability}, none of {', '.join(ARCHITECTURES)}"
    path = path or library_file(capability)
    if not path.is_file():
        return f"{path} is not there: python -m tandem_worker.engine.native makes it"
    try:
        return _load(path)
    except (OSError, AttributeError) as error:
        return f"{path} cannot be loaded: {error}"


def _load(path: Path) -> Library:
    # torch comes first: its OpenMP is then the one that this library uses too, with one set of threads.
    loaded = ctypes.CDLL(str(path))
    if (form := loaded.tandem_form()) != FORM:
        raise OSError(f"its calls are of form {form}, not {FORM}")
    for name, arguments in CALLS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, None
    return Library(
        lanes=loaded.tandem_lanes(), **{name.removeprefix("tandem_"): getattr(loaded, name) for name in CALLS}
    )
