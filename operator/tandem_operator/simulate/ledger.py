"""What became of the requests: compact arrays, one entry a request, so that a million of them is some tens of MB."""

from __future__ import annotations

from array import array
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any

from tandem_operator.simulate.quantile import percentile
from tandem_operator.simulate.request import Finished, Path
from tandem_operator.simulate.sketch import Sketch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tandem_operator.plan.facts import Slo
    from tandem_operator.simulate.request import Request


class Ledger:
    """Ends in their order, in seconds; NaN for what there is not. `first_ttft`: TTFT in the order of first tokens.

    `fold` turns the oldest entries into counters and sketches; numbers of entries go on as if they were still there.
    """

    __slots__ = (
        "_tpot_s",
        "_tpot_sketch",
        "_ttft_s",
        "_ttft_sketch",
        "arrived",
        "done",
        "first_folded",
        "first_ttft",
        "folded",
        "is_met",
        "met",
        "output",
        "output_sum",
        "path",
        "prompt",
        "prompt_squares",
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
        self.prompt_sum = self.prompt_squares = self.output_sum = self.met = 0
        self.folded = self.first_folded = 0
        self._ttft_sketch, self._tpot_sketch = Sketch(), Sketch()
        self._ttft_s = slo.ttft_ms / 1000 if slo else inf
        self._tpot_s = slo.tpot_ms / 1000 if slo else inf

    def __len__(self) -> int:
        """Requests that have ended."""
        return self.folded + len(self.done)

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
        is_met = ttft <= self._ttft_s and not tpot > self._tpot_s
        self.is_met.append(is_met)
        self.met += is_met
        self.prompt_sum += request.prompt
        self.prompt_squares += request.prompt * request.prompt
        self.output_sum += request.output

    def attainment(self, since: int = 0) -> float | None:
        """Share of those that ended from the `since`-th on that met both targets; None for none."""
        count = len(self) - since
        met = sum(self.is_met[since - self.folded :]) if since else self.met
        return met / count if count else None

    def first_since(self, number: int) -> Sequence[float]:
        """TTFT of the first tokens from the `number`-th on."""
        return self.first_ttft[number - self.first_folded :]

    def gaps_since(self, number: int) -> Sequence[float]:
        """TPOT of those that ended from the `number`-th on and had any."""
        return [tpot for tpot in self.tpot[number - self.folded :] if not isnan(tpot)]

    def ttft_at(self, percent: int) -> float | None:
        """A percentile of TTFT over all that ended; within half a per cent where entries were folded."""
        return self._at(percent, self.ttft, self._ttft_sketch)

    def tpot_at(self, percent: int) -> float | None:
        """A percentile of TPOT, likewise."""
        return self._at(percent, self.tpot, self._tpot_sketch)

    def fold(self, ended: int, started: int) -> None:
        """Forget the entries before the `ended`-th end and the `started`-th first token; sums and percentiles stay."""
        count = ended - self.folded
        if count > 0:
            for ttft, tpot in zip(self.ttft[:count], self.tpot[:count], strict=True):
                self._ttft_sketch.add(ttft)
                self._tpot_sketch.add(tpot)
            for column in self._columns():
                del column[:count]
            self.folded = ended
        if started > self.first_folded:
            del self.first_ttft[: started - self.first_folded]
            self.first_folded = started

    def _at(self, percent: int, column: array[float], folded: Sketch) -> float | None:
        if not self.folded:
            return percentile([v for v in column if not isnan(v)], percent)
        whole = folded.copy()
        for value in column:
            whole.add(value)
        return whole.quantile(percent)

    def _columns(self) -> tuple[array[Any], ...]:
        times = self.arrived, self.ttft, self.tpot, self.done
        return (*times, self.prompt, self.output, self.path, self.retries, self.is_met)

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
