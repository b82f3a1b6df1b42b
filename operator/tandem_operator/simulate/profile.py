"""What a stream of requests is like: rates, lengths, burstiness and prefix reuse; one pass over it."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING

from tandem_operator.plan.traffic import Lengths, Reuse, Traffic, fixed
from tandem_operator.simulate.traces import BLOCK_TOKENS
from tandem_operator.simulate.workload import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tandem_operator.simulate.request import Request
    from tandem_operator.simulate.workload import Phase

MINUTE_S = 60.0
BUSY_PERCENT = 95  # the plan is sized for a minute that one in twenty exceeds


def of_phase(phase: Phase) -> Traffic:
    """Poisson arrivals with lengths as the words say."""
    cv = phase.cv or None  # words without cv= do not say that all lengths are equal
    return Traffic(phase.rps, phase.rps, fixed(phase.isl, cv), fixed(phase.osl, cv))


def of_requests(requests: Iterable[Request], cache_tokens: int) -> Traffic:
    """The traffic of a trace, sized for its busy minutes; reuse as a cache of `cache_tokens` would see it.

    Raises WorkloadError where there are fewer than two requests, or all of them at once: no rate follows from that.
    """
    times, prompts, outputs = array("d"), array("q"), array("q")
    reuse = ReuseCount(cache_tokens // BLOCK_TOKENS)
    for request in requests:
        times.append(request.arrived)
        prompts.append(request.prompt)
        outputs.append(request.output)
        reuse.add(request)
    span = times[-1] - times[0] if times else 0.0
    if span <= 0:
        raise WorkloadError(f"{len(times)} requests within {span:.0f} s give no rate; the advisor needs a longer trace")
    found = reuse.result(cache_tokens)
    return Traffic(
        mean_rate=len(times) / span,
        sized_rate=busy_rate(times, span),
        prompt=lengths_of(prompts),
        output=lengths_of(outputs),
        burstiness=variation([b - a for a, b in pairwise(times)]),
        reuse=found,
        hits=found.cached if found else 0.0,
        requests=len(times),
        seconds=span,
    )


def busy_rate(times: Sequence[float], span: float) -> float:
    """Requests/s of the minute that 95 % of the whole minutes do not exceed; the mean of a trace shorter than two."""
    minutes = int(span // MINUTE_S)
    if minutes < 2:
        return len(times) / span
    counts = Counter(int((at - times[0]) // MINUTE_S) for at in times)
    return max(nearest_rank([counts[m] for m in range(minutes)], BUSY_PERCENT) / MINUTE_S, len(times) / span)


def lengths_of(tokens: Sequence[int]) -> Lengths:
    """Mean, percentiles and variation of at least one length."""
    p50, p90, p99 = (float(nearest_rank(tokens, percent)) for percent in (50, 90, 99))
    return Lengths(sum(tokens) / len(tokens), p50, p90, p99, variation(tokens))


def nearest_rank(values: Sequence[int], percent: int) -> int:
    """The nearest-rank percentile of at least one value."""
    return sorted(values)[max(-(-len(values) * percent // 100) - 1, 0)]


def variation(values: Sequence[float]) -> float:
    """Squared coefficient of variation; 0 where there is no mean to compare with."""
    if not values or (mean := sum(values) / len(values)) <= 0:
        return 0.0
    return sum((v - mean) ** 2 for v in values) / len(values) / mean**2


class ReuseCount:
    """Counts the prompt blocks whose whole prefix was seen before: ever, and in a cache that drops the oldest use."""

    def __init__(self, cache_blocks: int) -> None:
        """An empty history and an empty cache of so many blocks."""
        self._seen: set[int] = set()
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._blocks = cache_blocks
        self._tokens = self._unbounded = self._cached = 0

    def add(self, request: Request) -> None:
        """One request in the order of arrival."""
        self._tokens += request.prompt
        self._unbounded += tokens_of(leading(request.hashes, self._seen), request.prompt)
        self._cached += tokens_of(leading(request.hashes, self._cache), request.prompt)
        self._seen.update(request.hashes)
        # Last block first: of one prompt the end is dropped before the beginning that it needs.
        for number in reversed(request.hashes):
            self._cache[number] = None
            self._cache.move_to_end(number)
        while len(self._cache) > self._blocks:
            self._cache.popitem(last=False)

    def result(self, cache_tokens: int) -> Reuse | None:
        """The shares; None where no request had hashes."""
        if not self._seen:
            return None
        return Reuse(self._unbounded / self._tokens, self._cached / self._tokens, cache_tokens)


def leading(hashes: Sequence[int], known: set[int] | OrderedDict[int, None]) -> int:
    """How many blocks from the beginning are known."""
    return next((n for n, number in enumerate(hashes) if number not in known), len(hashes))


def tokens_of(blocks: int, prompt: int) -> int:
    """Tokens of so many blocks of a prompt; its last token is always computed."""
    return min(blocks * BLOCK_TOKENS, prompt - 1)
