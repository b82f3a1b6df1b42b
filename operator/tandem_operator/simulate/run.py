"""A whole run: the cluster under a workload, decided by a policy every interval, with what happened on record."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import Action, Answer, Observed, Role, Verdict
from tandem_operator.plan.record import to_record
from tandem_operator.simulate.cluster import Cluster
from tandem_operator.simulate.fleet import Fleet
from tandem_operator.simulate.ledger import Ledger
from tandem_operator.simulate.observe import Prometheus
from tandem_operator.simulate.router import router_of
from tandem_operator.simulate.truth import Engine

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tandem_operator.plan.facts import Decision, Limits, ModelShape, Target, Window
    from tandem_operator.simulate.request import Finished, Request
    from tandem_operator.simulate.router import Router
    from tandem_operator.simulate.truth import Truth

    Policy = Callable[[Observed, datetime], Decision]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)  # simulated time starts here; no wall clock is read
METRICS = Verdict(Answer.YES, "Fresh", "simulated metrics are always there")
DRAIN_S = 3600.0  # after the last arrival, at most so long until the last answer


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker of a pool dies: the oldest one then, or the `nth` (from 0); none if there is none."""

    at_s: float
    pool: str
    nth: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated; delays in seconds."""

    limits: Limits
    model: ModelShape
    truth: Mapping[str, Truth]  # by pool: what its workers really cost
    window_s: int = 30
    flip_delay_s: float = 1.0
    start_delay_s: float = 30.0
    history: int = 120  # windows kept, as the operator keeps them
    batch_room: int | None = None  # requests a decode worker really takes at once; None: as the limits say
    engine: Engine = field(default_factory=Engine)
    router: str | Router = "least-backlog"  # round-robin, random, least-backlog or prefix-aware, or one of its own
    seed: int = 0  # of the router
    short_tokens: int = 0  # a prompt that lacks at most so many tokens on its decode worker is computed there
    failures: Sequence[Failure] = ()
    records: bool = True  # keep what every decision saw, for replay


@dataclass(frozen=True, slots=True)
class Tick:
    """One interval of a run."""

    at: float
    window: Window
    decision: Decision
    attainment: float | None  # of the requests that ended in this interval
    roles: Mapping[Role, int]  # serving workers by their role
    queue: int  # prompts that wait or are under way, placed or not
    utilisation: Mapping[Role, float | None]  # share of the serving workers' time in use, over the interval


@dataclass(slots=True)
class Run:
    """What happened. Per-request arrays are in the order of ends, seconds, NaN for what there is not."""

    ticks: list[Tick] = field(default_factory=list)
    seen: list[tuple[Observed, datetime, Decision]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    gpu_seconds_by_pool: dict[str, float] = field(default_factory=dict)  # from order to end, draining included
    arrived: int = 0
    lost: int = 0  # requests that had to start again because a worker died
    preempted: int = 0  # times that a full memory threw a request out

    @property
    def records(self) -> list[dict[str, Any]]:
        """Facts, time and decision of every tick, as `tandem replay` reads them."""
        return [to_record(*one) for one in self.seen]

    @property
    def requests(self) -> Sequence[Finished]:
        """All that ended, as records; for many requests use the arrays."""
        return self.ledger.finished()

    @property
    def gpu_seconds(self) -> float:
        """Over all pools."""
        return sum(self.gpu_seconds_by_pool.values())

    @property
    def arrays(self) -> dict[str, array[Any]]:
        """One array a column: arrived, prompt, output, ttft, tpot, done, path (request.Path), retries, is_met."""
        names = ("arrived", "prompt", "output", "ttft", "tpot", "done", "path", "retries", "is_met")
        return {name: getattr(self.ledger, name) for name in names}

    @property
    def moves(self) -> list[Tick]:
        """Ticks that changed roles or replicas after the first target."""
        return [t for t in self.ticks if t.decision.action in {Action.FLIP, Action.SCALE}]


class Simulation:
    """Steps a cluster and its planner together."""

    def __init__(self, scenario: Scenario, arrivals: Iterator[Request], policy: Policy = decide) -> None:
        """Nothing runs yet: the first decision of `policy` makes the workers."""
        self.scenario = scenario
        self.policy = policy
        limits = scenario.limits
        router = router_of(scenario.router, scenario.seed) if isinstance(scenario.router, str) else scenario.router
        self.cluster = Cluster(arrivals, limits.slo, router, scenario.short_tokens)
        self.fleet = Fleet(scenario, self.cluster)
        self.prometheus = Prometheus(scenario.window_s, limits.slo)
        self.history: deque[Window] = deque(maxlen=scenario.history)
        self.target: Target | None = None
        self.decided_at: datetime | None = None
        self.run = Run(ledger=self.cluster.ledger)
        self._ended = 0
        for failure in scenario.failures:
            self.cluster.at(failure.at_s, lambda it=failure: self.fleet.fail(it.pool, it.nth))  # type: ignore[misc]

    def play(self, seconds: float) -> Run:
        """Run for so many simulated seconds."""
        at = 0.0
        while at <= seconds:
            self.cluster.run_until(at)
            self._tick(at)
            at += self.scenario.limits.interval_s
        self.cluster.run_until(seconds)
        self.run.gpu_seconds_by_pool = self.fleet.gpu_seconds()
        self.run.arrived, self.run.lost = self.cluster.arrived, self.cluster.lost
        self.run.preempted = self.cluster.preempted
        return self.run

    def _tick(self, at: float) -> None:
        now = EPOCH + timedelta(seconds=at)
        self.prometheus.scrape(self.cluster)
        window = self.prometheus.window(self.cluster, now)
        self.history.append(window)
        seen = self._observe()
        decision = self.policy(seen, now)
        if self.scenario.records:
            self.run.seen.append((seen, now, decision))
        self.run.ticks.append(self._row(at, window, decision))
        if decision.target != self.target:
            self.target, self.decided_at = decision.target, now
        if self.target is not None:
            self.fleet.carry_out(self.target)

    def _row(self, at: float, window: Window, decision: Decision) -> Tick:
        """The interval that ends now."""
        cluster, since = self.cluster, self._ended
        self._ended = len(cluster.ledger)
        serving = [w for w in cluster.workers if w.ready_at <= at and not w.leaving]
        roles = {role: sum(w.role is role for w in serving) for role in Role}
        use = {role: self.prometheus.busy(role) / count if count else None for role, count in roles.items()}
        queue = sum(len(w.queue) for w in cluster.workers) + cluster.unplaced
        return Tick(at, window, decision, cluster.ledger.attainment(since), roles, queue, use)

    def _observe(self) -> Observed:
        return Observed(
            limits=self.scenario.limits,
            pools=self.fleet.pools(self.target),
            workers=self.fleet.workers(),
            target=self.target,
            decided_at=self.decided_at,
            metrics=METRICS,
            history=tuple(self.history),
            model=self.scenario.model,
            start_s=self.scenario.start_delay_s,
        )
