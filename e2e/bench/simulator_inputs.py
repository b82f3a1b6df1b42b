"""The loads that simulators are compared on, in each one's format.

replay: the Azure conversation trace as recorded. poisson: R requests/s, prompt and output lengths drawn apart from the
trace (numpy, seed 0): the recipe of Splitwise's sweeps (ISCA'24, section V).
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

from tandem_operator.simulate.published import inputs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tandem_operator.simulate.published.inputs import Arrivals

Load = list[tuple[float, int, int]]  # arrived (s), prompt, output

SPLITWISE = (
    "request_id",
    "request_type",
    "application_id",
    "arrival_timestamp",
    "batch_size",
    "prompt_size",
    "token_size",
)
TRACE = "AzureLLMInferenceTrace_conv.csv"
BLOCK_TOKENS = 512  # of Mooncake's trace format


def replay(data: Path) -> Load:
    """The trace as recorded."""
    return rows_of(inputs.replay(inputs.read_azure(data / TRACE)))


def poisson(data: Path, rate: float, seconds: float, seed: int = 0) -> Load:
    """So many requests a second for so long."""
    return rows_of(inputs.poisson(inputs.read_azure(data / TRACE), rate, seconds, seed))


def rows_of(arrivals: Arrivals) -> Load:
    """One row a request; an answer has a token at least."""
    columns = (arrivals.at.tolist(), arrivals.prompt.tolist(), arrivals.output.clip(min=1).tolist())
    return list(zip(*columns, strict=True))


def write_ours(load: Load, path: Path) -> None:
    """Arrived, prompt, output."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(load)


def write_splitwise(load: Load, path: Path) -> None:
    """The columns that splitwise-sim reads."""
    rows = ((n, 2, 0, at, 1, prompt, output) for n, (at, prompt, output) in enumerate(load))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([SPLITWISE, *rows])


def write_mooncake(load: Load, path: Path) -> None:
    """Mooncake's JSON lines, every prompt block of its own: no reuse of prefixes."""
    path.write_text("".join(f"{line}\n" for line in mooncake_lines(load)), encoding="utf-8")


def mooncake_lines(load: Load) -> Iterable[str]:
    """One request a line; milliseconds."""
    first = 0
    for at, prompt, output in load:
        blocks = -(-prompt // BLOCK_TOKENS)
        ids = list(range(first, first + blocks))
        first += blocks
        one = {"timestamp": round(1000 * at), "input_length": prompt, "output_length": output, "hash_ids": ids}
        yield json.dumps(one)
