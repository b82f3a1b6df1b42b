"""What became of the requests: compact arrays, one entry a request, so that a million of them is some tens of MB."""

from __future__ import annotations

from array import array
from math import inf, isnan, nan
from typing import TYPE_CHECKING

from tandem_operator.simulate.request import Finished, Path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tandem_operator.plan.facts import Slo
    from tandem_operator.simulate.request import Request


class Ledger:
    """Ends in their order, in seconds; NaN for what there is not. `first_ttft`: TTFT in the order of first tokens."""

    __slots__ = (
        "_tpot_s",
        "_ttft_s",
        "arrived",
        "done",
        "first_ttft",
        "is_met",
        "output",
        "output_sum",
        "path",
        "prompt",
        "prompt_sum",
        "retries",
        "tpot",
        "ttft",
    )

    def __init__(self, slo: Slo | None = None) -> None:
        """Nobody has ended. Without targets every request meets them."""
        self.arrived, self.ttft, self.tpot, self.done = array("d"), array("d"), array("d"), array("d")
        self.prompt, self.output, self.retries = array("i"), array("i"), array("i")
        self.path, self.is_met = array("b"), array("b")
        self.first_ttft = array("d")
        self.prompt_sum = self.output_sum = 0
        self._ttft_s = slo.ttft_ms / 1000 if slo else inf
        self._tpot_s = slo.tpot_ms / 1000 if slo else inf

    def __len__(self) -> int:
        """Requests that have ended."""
        return len(self.done)

    def first(self, request: Request, now: float) -> None:
        """Its first token is out."""
        request.first_at = now
        self.first_ttft.append(now - request.arrived)

    def end(self, request: Request, now: float, path: Path) -> None:
        """It has all its tokens, or will never have any."""
        ttft = nan if request.first_at is None else request.first_at - request.arrived
        has_gaps = request.first_at is not None and request.output > 1
        tpot = (now - request.first_at) / (request.output - 1) if has_gaps and request.first_at is not None else nan
        self.arrived.append(request.arrived)
        self.prompt.append(request.prompt)
        self.output.append(request.output)
        self.ttft.append(ttft)
        self.tpot.append(tpot)
        self.done.append(now)
        self.path.append(path)
        self.retries.append(request.retries)
        self.is_met.append(ttft <= self._ttft_s and not tpot > self._tpot_s)
        self.prompt_sum += request.prompt
        self.output_sum += request.output

    def attainment(self, since: int = 0) -> float | None:
        """Share of those that ended from the `since`-th on that met both targets; None for none."""
        count = len(self.done) - since
        return sum(self.is_met[since:]) / count if count else None

    def finished(self) -> Sequence[Finished]:
        """The entries as records, made now: for small runs and tests."""
        columns = (self.arrived, self.prompt, self.output, self.ttft, self.tpot, self.done, self.path, self.retries)
        return [
            Finished(arrived, prompt, output, known(ttft), known(tpot), done, Path(path), retries)
            for arrived, prompt, output, ttft, tpot, done, path, retries in zip(*columns, strict=True)
        ]


def known(seconds: float) -> float | None:
    """None for NaN."""
    return None if isnan(seconds) else seconds
