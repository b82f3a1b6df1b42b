"""The simulated Prometheus: windows over the cluster's counters, with the same gaps in knowledge as the real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem_operator.plan import queueing
from tandem_operator.plan.facts import Role, RoleUse, Slo, Window
from tandem_operator.simulate.counters import Counters
from tandem_operator.simulate.quantile import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tandem_operator.simulate.cluster import Cluster
    from tandem_operator.simulate.request import Finished

# Bins of a window in which arrivals are counted; else they are as long as the TTFT target: what comes in bunches within
# it can be in time, and what comes in longer ones shows in the rate.
LEAST_BINS = 6


@dataclass(frozen=True, slots=True)
class Scrape:
    """All counters at one time."""

    at: float
    arrived: int
    started: int
    finished: int
    bunches: int  # squares of the arrivals in each bin
    prompt_tokens: int  # of the finished
    prompt_squares: int
    output_tokens: int
    by_role: dict[Role, Counters]


@dataclass(slots=True)
class Prometheus:
    """Takes a scrape a tick and makes the window over the last `seconds`."""

    seconds: int
    slo: Slo
    scrapes: list[Scrape] = field(default_factory=list)

    def scrape(self, cluster: Cluster) -> None:
        """Keep the counters of now, and forget what no window needs."""
        totals = {role: Counters() for role in Role}
        for worker in (*cluster.workers, *cluster.gone):
            for role, total in totals.items():
                total.add(worker.counters[role])
        book = cluster.ledger
        if not self.scrapes:
            cluster.bunches.bin_s = min(self.slo.ttft_ms / 1000, self.seconds / LEAST_BINS)
        counts = cluster.arrived, book.first_folded + len(book.first_ttft), len(book), cluster.bunches.squares
        sums = book.prompt_sum, book.prompt_squares, book.output_sum
        self.scrapes.append(Scrape(cluster.now, *counts, *sums, totals))
        while len(self.scrapes) > 2 and self.scrapes[1].at <= cluster.now - self.seconds:
            self.scrapes.pop(0)

    def window(self, cluster: Cluster, at: datetime) -> Window:
        """Figures over the last `seconds`, or over what there is; unknown where nothing finished."""
        old, new = self.scrapes[0], self.scrapes[-1]
        span = max(new.at - old.at, 1e-9)
        finished, book = new.finished - old.finished, cluster.ledger
        gaps = book.gaps_since(old.finished)
        return Window(
            at=at,
            seconds=self.seconds,
            arrival_rate=(new.arrived - old.arrived) / span,
            request_rate=finished / span,
            prompt_tokens=mean(new.prompt_tokens - old.prompt_tokens, finished),
            output_tokens=mean(new.output_tokens - old.output_tokens, finished),
            ttft_ms=to_ms(percentile(book.first_since(old.started), self.slo.percentile)),
            tpot_ms=to_ms(percentile(gaps, self.slo.percentile)),
            attainment=book.attainment(old.finished),
            prefill=use_of(Role.PREFILL, old, new, span, cluster),
            decode=use_of(Role.DECODE, old, new, span, cluster),
            prefill_workers=len(cluster.serving(Role.PREFILL)),
            decode_workers=len(cluster.serving(Role.DECODE)),
            arrival_cv2=dispersion(old, new, cluster.bunches.bin_s),
            prompt_cv2=variation(old, new),
        )

    def busy(self, role: Role) -> float:
        """Workers' time in use since the last scrape but one, in workers; 0 at the first."""
        if len(self.scrapes) < 2:
            return 0.0
        a, b = self.scrapes[-2].by_role[role], self.scrapes[-1].by_role[role]
        spent = b.prefill_busy + b.decode_busy - a.prefill_busy - a.decode_busy
        return max(spent, 0.0) / max(self.scrapes[-1].at - self.scrapes[-2].at, 1e-9)


def dispersion(old: Scrape, new: Scrape, bin_s: float) -> float | None:
    """Index of dispersion of the arrivals between two scrapes: variance over mean of their number in a bin."""
    bins, arrived = (new.at - old.at) / bin_s, new.arrived - old.arrived
    if bins < 2 or not arrived:
        return None
    return queueing.dispersion(arrived / bins, (new.bunches - old.bunches) / bins, bins)


def variation(old: Scrape, new: Scrape) -> float | None:
    """Squared coefficient of variation of the finished prompts' lengths; None for fewer than two."""
    count, total = new.finished - old.finished, new.prompt_tokens - old.prompt_tokens
    if count < 2:
        return None
    return queueing.variation(count, total, new.prompt_squares - old.prompt_squares)


def mean(total: int, count: int) -> float | None:
    """None for no values."""
    return total / count if count else None


def to_ms(seconds: float | None) -> int | None:
    """Whole milliseconds."""
    return None if seconds is None else round(seconds * 1000)


def meets(request: Finished, slo: Slo) -> bool:
    """Did a finished request meet both targets?"""
    ttft, tpot = request.ttft_s, request.tpot_s
    return ttft is not None and ttft * 1000 <= slo.ttft_ms and (tpot is None or tpot * 1000 <= slo.tpot_ms)


def attainment(finished: Sequence[Finished], slo: Slo) -> float | None:
    """Share of the finished requests that met both; None for none."""
    return sum(meets(r, slo) for r in finished) / len(finished) if finished else None


def use_of(role: Role, old: Scrape, new: Scrape, span: float, cluster: Cluster) -> RoleUse:
    """One role's rates. Series that vanished with a worker make a rate negative: then it is not known."""
    a, b = old.by_role[role], new.by_role[role]
    workers = [w for w in cluster.workers if w.role is role]
    if role is Role.PREFILL:
        busy, tokens = b.prefill_busy - a.prefill_busy, b.prefill_tokens - a.prefill_tokens
        waiting_tokens = float(sum(w.waiting_tokens() for w in workers))
        waiting = float(sum(max(len(w.queue) - 1, 0) for w in workers))
        return RoleUse(known(busy, span), known(tokens, span), None, waiting, waiting_tokens)
    busy, tokens = b.decode_busy - a.decode_busy, b.decode_tokens - a.decode_tokens
    steps = b.decode_steps - a.decode_steps
    return RoleUse(known(busy, span), known(tokens, span), known(steps, span), 0.0, None)


def known(difference: float, span: float) -> float | None:
    """A rate; None when a counter went backwards."""
    return None if difference < 0 else difference / span
