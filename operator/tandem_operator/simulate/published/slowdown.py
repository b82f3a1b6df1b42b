"""Latencies as the Splitwise paper judges them: percentiles of the slowdown against an idle A100 machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tandem_operator.simulate.published.costs import Costs
    from tandem_operator.simulate.published.splitwise import Answers

PERCENTILES: Final = (50, 90, 99)
# Splitwise (ISCA'24), table VI: slowdown at p50, p90 and p99.
SLO: Final[Mapping[str, tuple[float, ...]]] = {"ttft": (2, 3, 6), "tbt": (1.25, 1.5, 5), "e2e": (1.25, 1.5, 5)}

Triple = tuple[float, float, float]


def percentiles(values: NDArray[np.float64]) -> Triple:
    """p50, p90 and p99, interpolated between the nearest values."""
    p50, p90, p99 = np.percentile(values, PERCENTILES)
    return float(p50), float(p90), float(p99)


@dataclass(frozen=True, slots=True)
class Summary:
    """The percentiles of TTFT, TBT and E2E, in seconds or as slowdown."""

    ttft: Triple
    tbt: Triple
    e2e: Triple

    @property
    def meets_slo(self) -> bool:
        """All nine below the paper's limits (notebooks/utils.py, find_within_slo: below, not at)."""
        return self.meets(len(PERCENTILES))

    def meets(self, count: int) -> bool:
        """Are the first so many percentiles of each below their limits?"""
        return all(
            got < limit
            for name, limits in SLO.items()
            for got, limit in zip(getattr(self, name)[:count], limits, strict=False)
        )


def seconds(answers: Answers) -> Summary:
    """Plain percentiles, in seconds."""
    return Summary(percentiles(answers.ttft), percentiles(answers.tbt), percentiles(answers.e2e))


def slowdown(answers: Answers, idle: Costs) -> Summary:
    """Over the same request on an idle machine: TTFT + (output − 1) · TBT there (notebooks/plots.ipynb)."""
    sizes, where = np.unique(answers.prompt, return_inverse=True)
    ttft = np.array([idle.prompt_s([int(n)], 0, 0) for n in sizes])[where]
    tbt = np.array([idle.idle_step_s(int(n)) for n in sizes])[where]
    e2e = ttft + tbt * (answers.output - 1)
    return Summary(percentiles(answers.ttft / ttft), percentiles(answers.tbt / tbt), percentiles(answers.e2e / e2e))
