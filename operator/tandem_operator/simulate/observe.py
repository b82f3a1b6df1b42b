"""The simulated Prometheus: windows over the cluster's counters, with the same gaps in knowledge as the real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role, RoleUse, Slo, Window
from tandem_operator.simulate.cluster import percentile
from tandem_operator.simulate.worker import Counters

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.simulate.cluster import Cluster
    from tandem_operator.simulate.worker import Request


@dataclass(frozen=True, slots=True)
class Scrape:
    """All counters at one time."""

    at: float
    arrived: int
    started: int
    finished: int
    by_role: dict[Role, Counters]


@dataclass(slots=True)
class Prometheus:
    """Takes a scrape a tick and makes the window over the last `seconds`."""

    seconds: int
    slo: Slo
    scrapes: list[Scrape] = field(default_factory=list)

    def scrape(self, cluster: Cluster) -> None:
        """Keep the counters of now, and forget what no window needs."""
        totals = {role: Counters() for role in (Role.PREFILL, Role.DECODE)}
        for worker in cluster.workers:
            for role, total in totals.items():
                add(total, worker.counters[role])
        self.scrapes.append(Scrape(cluster.now, cluster.arrived, len(cluster.started), len(cluster.finished), totals))
        while len(self.scrapes) > 2 and self.scrapes[1].at <= cluster.now - self.seconds:
            self.scrapes.pop(0)

    def window(self, cluster: Cluster, at: datetime) -> Window:
        """Figures over the last `seconds`, or over what there is; unknown where nothing finished."""
        old, new = self.scrapes[0], self.scrapes[-1]
        span = max(new.at - old.at, 1e-9)
        started, finished = cluster.started[old.started :], cluster.finished[old.finished :]
        return Window(
            at=at,
            seconds=self.seconds,
            arrival_rate=(new.arrived - old.arrived) / span,
            request_rate=len(finished) / span,
            prompt_tokens=mean([r.prompt for r in finished]),
            output_tokens=mean([r.output for r in finished]),
            ttft_ms=to_ms(percentile([r.ttft_s for r in started if r.ttft_s is not None], self.slo.percentile)),
            tpot_ms=to_ms(percentile([r.tpot_s for r in finished if r.tpot_s is not None], self.slo.percentile)),
            attainment=attainment(finished, self.slo),
            prefill=use_of(Role.PREFILL, old, new, span, cluster),
            decode=use_of(Role.DECODE, old, new, span, cluster),
            prefill_workers=len(cluster.serving(Role.PREFILL)),
            decode_workers=len(cluster.serving(Role.DECODE)),
        )


def add(total: Counters, part: Counters) -> None:
    """Total += part."""
    for name in Counters.__slots__:
        setattr(total, name, getattr(total, name) + getattr(part, name))


def mean(values: list[int]) -> float | None:
    """None for no values."""
    return sum(values) / len(values) if values else None


def to_ms(seconds: float | None) -> int | None:
    """Whole milliseconds."""
    return None if seconds is None else round(seconds * 1000)


def meets(request: Request, slo: Slo) -> bool:
    """Did a finished request meet both targets?"""
    ttft, tpot = request.ttft_s, request.tpot_s
    return ttft is not None and ttft * 1000 <= slo.ttft_ms and (tpot is None or tpot * 1000 <= slo.tpot_ms)


def attainment(finished: list[Request], slo: Slo) -> float | None:
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
