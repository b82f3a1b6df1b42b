"""A reader of GGUF version 2 and 3 (little-endian): metadata, and where each tensor's bytes are.

The `gguf` package's own reader takes seconds for a vocabulary (an object per string); this takes a tenth of one.
Dequantisation is that package's.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tandem_worker.engine.request import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 22  # of an array, and of tensors and metadata: a vocabulary is a tenth of that
MAX_STRING_BYTES = 1 << 24
MAX_DIMENSIONS = 4
STRING, ARRAY = 8, 9
SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies. `shape`: rows first, as in torch; `kind`: GGML's number; `offset`: bytes from the start."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed header over the mapped file."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorPlace]
    content: memoryview

    def raw(self, place: TensorPlace, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The tensor's bytes. Raises ModelLoadError when the file ends before."""
        if place.offset + size > len(self.content):
            raise ModelLoadError(f"model.gguf ends inside tensor {place.name!r}; it is cut short: fetch it again")
        return np.frombuffer(self.content, np.uint8, size, place.offset)


class _Cursor:
    def __init__(self, content: memoryview) -> None:
        self.content = content
        self.at = 0

    def take(self, size: int) -> memoryview:
        piece = self.content[self.at : self.at + size]
        if len(piece) != size:
            raise ModelLoadError("model.gguf ends inside its header; it is cut short: fetch it again")
        self.at += size
        return piece

    def u32(self) -> int:
        value: int = U32.unpack(self.take(4))[0]
        return value

    def u64(self, limit: int, what: str) -> int:
        value: int = U64.unpack(self.take(8))[0]
        if value > limit:
            raise ModelLoadError(f"model.gguf has {what} of {value}, above the limit of {limit}; it is damaged")
        return value

    def string(self) -> str:
        return str(self.take(self.u64(MAX_STRING_BYTES, "a string length")), "utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        return self.numbers(kind, 1)[0].item()

    def array(self) -> Any:
        kind = self.u32()
        count = self.u64(MAX_ENTRIES, "an array length")
        if kind == STRING:
            return self.strings(count)
        return self.numbers(kind, count).tolist()

    def strings(self, count: int) -> list[str]:
        """As `string`, in one loop: a vocabulary and its merges are 100,000 of them."""
        content, at, found = self.content, self.at, []
        length_at = U64.unpack_from
        try:
            for _ in range(count):
                end = at + 8 + length_at(content, at)[0]
                found.append(str(content[at + 8 : end], "utf-8", "replace"))
                at = end
        except struct.error:
            at = len(content) + 1
        if at > len(content):
            raise ModelLoadError("model.gguf ends inside a list of texts; it is cut short: fetch it again")
        self.at = at
        return found

    def numbers(self, kind: int, count: int) -> np.ndarray[Any, Any]:
        if kind not in SCALARS:
            raise ModelLoadError(f"model.gguf has metadata of unknown type {kind}; it is damaged, or too new")
        dtype = np.dtype(SCALARS[kind])
        return np.frombuffer(self.take(dtype.itemsize * count), dtype)


def open_gguf(path: Path) -> GgufFile:
    """Map and parse. Raises ModelLoadError when it is no GGUF, or damaged."""
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read ({error}); check the file and its permissions") from error
    cursor = _Cursor(content)
    if bytes(content[:4]) != MAGIC:
        raise ModelLoadError(f"{path} is no GGUF file (it starts with {bytes(content[:4])!r}); fetch it again")
    cursor.take(4)
    if (version := cursor.u32()) not in VERSIONS:
        raise ModelLoadError(f"{path} is GGUF version {version}; this engine reads 2 and 3: convert it")
    tensor_count = cursor.u64(MAX_ENTRIES, "a tensor count")
    metadata_count = cursor.u64(MAX_ENTRIES, "a metadata count")
    metadata: dict[str, Any] = {}
    for _ in range(metadata_count):
        key = cursor.string()  # before the value: the order of the file
        metadata[key] = cursor.value(cursor.u32())
    places = [_place(cursor) for _ in range(tensor_count)]
    return GgufFile(metadata, _anchored(places, cursor.at, int(metadata.get("general.alignment", 32))), content)


def _place(cursor: _Cursor) -> TensorPlace:
    name = cursor.string()
    if (dimensions := cursor.u32()) > MAX_DIMENSIONS:
        raise ModelLoadError(f"model.gguf has tensor {name!r} of {dimensions} dimensions; it is damaged")
    shape = tuple(cursor.u64(1 << 40, "a tensor dimension") for _ in range(dimensions))
    return TensorPlace(name, shape[::-1], cursor.u32(), cursor.u64(1 << 60, "a tensor offset"))


def _anchored(places: list[TensorPlace], header_end: int, alignment: int) -> dict[str, TensorPlace]:
    """Offsets in the file count from the first aligned byte behind the header."""
    if not 0 < alignment <= 1 << 20:
        raise ModelLoadError(f"model.gguf has an alignment of {alignment}; it is damaged")
    start = -(-header_end // alignment) * alignment
    return {one.name: TensorPlace(one.name, one.shape, one.kind, start + one.offset) for one in places}
