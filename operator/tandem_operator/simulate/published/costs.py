"""What an iteration costs: by Splitwise's measured table, by the same table with context counted, by a data sheet."""

from __future__ import annotations

import csv
from bisect import bisect_left
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from tandem_operator.plan.roofline import prior_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tandem_operator.plan.facts import Device, ModelShape
    from tandem_operator.plan.roofline import Prior

MIXED: Final = 1.1  # splitwise-sim performance_model.py: an iteration with prompts and decodes, over prompts alone


class Costs(Protocol):
    """Seconds of one machine's iterations."""

    def prompt_s(self, lengths: Sequence[int], decodes: int, context: int) -> float:
        """One iteration: these prompts, and one token of each of `decodes` requests with `context` tokens in all."""

    def step(self, decodes: int, context: int) -> tuple[float, float]:
        """One decode step, and by how much each further step of the same batch is longer."""

    def idle_step_s(self, prompt: int) -> float:
        """The decode step that an otherwise idle machine is credited with for this prompt."""


@dataclass(frozen=True, slots=True)
class Line:
    """Straight lines between measured points, the first and the last one carried on outside."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def at(self, query: float) -> float:
        """The value at `query`."""
        right = min(max(bisect_left(self.x, query), 1), len(self.x) - 1)
        x0, x1, y0, y1 = self.x[right - 1], self.x[right], self.y[right - 1], self.y[right]
        return (y1 - y0) / (x1 - x0) * (query - x0) + y0


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement of Splitwise's table; seconds."""

    prompt: int
    batch: int
    output: int
    prompt_s: float
    token_s: float


Table = dict[tuple[str, str, int], list[Point]]  # by model, hardware, tensor parallelism


def read_table(path: Path) -> Table:
    """splitwise-sim's data/perf_model.csv, whose times are in milliseconds."""
    table: Table = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            point = Point(
                int(row["prompt_size"]),
                int(row["batch_size"]),
                int(row["token_size"]),
                float(row["prompt_time"]) / 1000,
                float(row["token_time"]) / 1000,
            )
            table.setdefault((row["model"], row["hardware"], int(row["tensor_parallel"])), []).append(point)
    return table


def line(pairs: Iterable[tuple[float, float]]) -> Line:
    """A line through the median of each x."""
    by_x: dict[float, list[float]] = {}
    for x, y in pairs:
        by_x.setdefault(x, []).append(y)
    return Line(tuple(sorted(by_x)), tuple(median(by_x[x]) for x in sorted(by_x)))


@dataclass(frozen=True, slots=True)
class Measured:
    """Splitwise's rule: both times depend on the tokens of a batch alone, of which a decoding request is one.

    splitwise-sim performance_model.py, DatabasePerformanceModel; the table's x is prompt size × batch size for both.
    """

    prompt: Line
    token: Line
    _known: dict[int, float] = field(default_factory=dict)

    def prompt_s(self, lengths: Sequence[int], decodes: int, context: int) -> float:  # noqa: ARG002  # its rule
        """The prompts' line at all tokens, a tenth more where decodes ride along."""
        seconds = self.prompt.at(sum(lengths) + decodes)
        return seconds * MIXED if decodes else seconds

    def step(self, decodes: int, context: int) -> tuple[float, float]:  # noqa: ARG002  # its rule
        """The tokens' line at the number of requests: how long their contexts are costs nothing."""
        if decodes not in self._known:
            self._known[decodes] = self.token.at(decodes)
        return self._known[decodes], 0.0

    def idle_step_s(self, prompt: int) -> float:
        """Its notebooks ask the tokens' line at the prompt's size here (notebooks/perf_model.py)."""
        return self.token.at(prompt)


def measured(points: Sequence[Point]) -> Measured:
    """Splitwise's costs from one machine's measurements."""
    return Measured(
        line((p.prompt * p.batch, p.prompt_s) for p in points), line((p.prompt * p.batch, p.token_s) for p in points)
    )


@dataclass(frozen=True, slots=True)
class ContextCounted:
    """The same prompts' line; a decode step is base + requests + tokens of context, fitted to the same table."""

    prompt: Line
    base_s: float
    request_s: float
    context_token_s: float

    def prompt_s(self, lengths: Sequence[int], decodes: int, context: int) -> float:
        """The prompts' line, and the reading of the decodes' contexts on top."""
        seconds = self.prompt.at(sum(lengths) + decodes)
        return seconds * MIXED + context * self.context_token_s if decodes else seconds

    def step(self, decodes: int, context: int) -> tuple[float, float]:
        """Linear in requests and context; the context grows by one token of each request a step."""
        seconds = self.base_s + decodes * self.request_s + context * self.context_token_s
        return seconds, decodes * self.context_token_s

    def idle_step_s(self, prompt: int) -> float:
        """One request at its prompt's context."""
        return self.step(1, prompt)[0]


def context_counted(points: Sequence[Point]) -> ContextCounted:
    """Least squares of the relative error over the table's medians; no coefficient below 0."""
    by_shape: dict[tuple[int, int, int], list[float]] = {}
    for p in points:
        by_shape.setdefault((p.prompt, p.batch, p.output), []).append(p.token_s)
    # A measured time is a mean over the run, at whose middle half the output has been added to the context.
    rows = [(1.0, b, b * (p + o / 2)) for p, b, o in by_shape]
    seconds = np.array([median(times) for times in by_shape.values()])
    base, request, context = np.linalg.lstsq(np.array(rows) / seconds[:, None], np.ones(len(rows)), rcond=None)[0]
    return ContextCounted(measured(points).prompt, float(base), max(0.0, float(request)), max(0.0, float(context)))


@dataclass(frozen=True, slots=True)
class DataSheet:
    """Our prior (plan/roofline.py): weights read once an iteration, linear layers, attention, KV reading, added up."""

    prior: Prior

    def prompt_s(self, lengths: Sequence[int], decodes: int, context: int) -> float:
        """One pass over the weights serves prompts and decodes alike."""
        prior, tokens = self.prior, sum(lengths) + decodes
        pairs = sum(n * n for n in lengths)
        return prior.pass_s + tokens * prior.token_s + pairs * prior.pair_s + context * prior.context_token_s

    def step(self, decodes: int, context: int) -> tuple[float, float]:
        """See Prior.step_parts."""
        prior = self.prior
        seconds = prior.pass_s + decodes * prior.token_s + context * prior.context_token_s
        return seconds, decodes * prior.context_token_s

    def idle_step_s(self, prompt: int) -> float:
        """One request at its prompt's context."""
        return self.step(1, prompt)[0]


def data_sheet(device: Device, gpus: int, model: ModelShape) -> DataSheet:
    """Our uncalibrated costs of a machine with so many devices."""
    return DataSheet(prior_of(device, gpus, model))


def of_table(table: Mapping[tuple[str, str, int], Sequence[Point]], model: str, hardware: str) -> Sequence[Point]:
    """The rows of a whole machine (eight devices, tensor parallel). Raises LookupError where there are none."""
    key = (model, hardware, 8)
    if key not in table:
        raise LookupError(f"no rows for {key} in the table; it has {sorted(table)}")
    return table[key]
