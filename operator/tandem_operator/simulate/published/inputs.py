"""The inputs of published studies: Azure's and Mooncake's traces as recorded, and the Splitwise paper's sweeps."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
FIRST_ARRIVAL_S: Final = (
    0.001  # a replay's first arrival: splitwise-sim runs what is due at 0 before its cluster exists
)


class InputError(ValueError):
    """A file that is no such trace; the message says where and what is wrong."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in the order of their arrival: seconds, prompt tokens, output tokens."""

    at: NDArray[np.float64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.at)

    def first(self, count: int) -> Arrivals:
        """So many of them."""
        return Arrivals(self.at[:count], self.prompt[:count], self.output[:count])


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of a Mooncake trace: seconds, tokens, and the hash of each 512-token block with all before it."""

    at: float
    tokens: int
    output: int
    blocks: tuple[int, ...]


def read_azure(path: Path) -> Arrivals:
    """Azure's LLM inference trace of 2023 (CSV). Raises InputError with the line of what cannot be read."""
    at: list[datetime] = []
    lengths: list[tuple[int, int]] = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := [c for c in COLUMNS if c not in (reader.fieldnames or [])]:
            raise InputError(f"{path}: column {missing[0]} is missing")
        for number, row in enumerate(reader, start=2):
            try:
                # Microseconds: the seventh digit is more than datetime reads.
                at.append(datetime.fromisoformat(row["TIMESTAMP"][:26]))
                lengths.append((int(row["ContextTokens"]), int(row["GeneratedTokens"])))
            except ValueError as error:
                raise InputError(f"{path}, line {number}: {error}") from error
    if not at:
        raise InputError(f"{path}: no requests")
    prompt, output = np.array(lengths, dtype=np.int64).T
    return Arrivals(np.array([(one - at[0]).total_seconds() for one in at]), prompt, output)


def replay(azure: Arrivals) -> Arrivals:
    """The trace as recorded."""
    return Arrivals(azure.at + FIRST_ARRIVAL_S, azure.prompt, azure.output)


def poisson(azure: Arrivals, rate: float, seconds: float, seed: int = 0) -> Arrivals:
    """Poisson arrivals; prompt and output length drawn apart from the trace (Splitwise, ISCA'24, section V-B)."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, int(rate * seconds * 1.5)))
    at = at[at < seconds]
    return Arrivals(at, rng.choice(azure.prompt, len(at)), rng.choice(azure.output, len(at)))


def cut(azure: Arrivals, prompt: int, output: int, slower: float) -> Arrivals:
    """Longer lengths cut to these, arrivals spread over `slower` times the time."""
    return Arrivals(azure.at * slower, np.minimum(azure.prompt, prompt), np.minimum(azure.output, output))


def read_mooncake(path: Path) -> list[Prompt]:
    """A trace of Mooncake's FAST'25 release (JSONL). Raises InputError with the line of what cannot be read."""
    prompts = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                blocks = tuple(row["hash_ids"])
                prompts.append(Prompt(row["timestamp"] / 1000, row["input_length"], row["output_length"], blocks))
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path}, line {number}: {error!r}") from error
    return prompts
