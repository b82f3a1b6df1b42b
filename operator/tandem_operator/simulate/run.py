"""A whole run: the cluster under a workload, decided by a policy every interval, with what happened on record."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tandem_operator.plan.candidates import is_within_budget
from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import Action, Answer, Observed, PoolState, Role, Verdict, WorkerState
from tandem_operator.plan.flips import choose_flips
from tandem_operator.plan.record import to_record
from tandem_operator.simulate.cluster import Cluster
from tandem_operator.simulate.observe import Prometheus, attainment
from tandem_operator.simulate.worker import SimWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tandem_operator.plan.facts import Decision, Limits, ModelShape, PoolLimits, Target, Window
    from tandem_operator.simulate.worker import Request, Truth

    Policy = Callable[[Observed, datetime], Decision]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)  # simulated time starts here; no wall clock is read
METRICS = Verdict(Answer.YES, "Fresh", "simulated metrics are always there")
DRAIN_S = 3600.0  # after the last arrival, at most so long until the last answer


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


@dataclass(slots=True)
class Tick:
    """One interval of a run."""

    at: float
    window: Window
    decision: Decision
    attainment: float | None  # of the requests that finished in this interval


@dataclass(slots=True)
class Run:
    """What happened."""

    ticks: list[Tick] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    gpu_seconds: float = 0.0

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
        self.cluster = Cluster(arrivals)
        self.prometheus = Prometheus(scenario.window_s, scenario.limits.slo)
        self.history: deque[Window] = deque(maxlen=scenario.history)
        self.target: Target | None = None
        self.decided_at: datetime | None = None
        self.run = Run()
        self._born = 0
        self._flips: list[tuple[float, SimWorker, Role]] = []

    def play(self, seconds: float) -> Run:
        """Run for so many simulated seconds."""
        at = 0.0
        while at <= seconds:
            self._advance(at)
            self._tick(at)
            at += self.scenario.limits.interval_s
        self.run.requests = self.cluster.finished
        return self.run

    def _advance(self, at: float) -> None:
        for due, worker, role in sorted(self._flips, key=lambda f: f[0]):
            self.cluster.run_until(min(max(due, self.cluster.now), at))
            worker.role = role
        self._flips = []
        self.cluster.run_until(at)
        self.cluster.retire_idle()
        self.cluster.retry_unplaced()

    def _tick(self, at: float) -> None:
        now = EPOCH + timedelta(seconds=at)
        before = len(self.run.requests)
        self.prometheus.scrape(self.cluster)
        window = self.prometheus.window(self.cluster, now)
        self.history.append(window)
        seen = self._observe()
        decision = self.policy(seen, now)
        self.run.records.append(to_record(seen, now, decision))
        recent = self.cluster.finished[before:]
        self.run.requests = list(self.cluster.finished)
        self.run.ticks.append(Tick(at, window, decision, attainment(recent, self.scenario.limits.slo)))
        if decision.target != self.target:
            self.target, self.decided_at = decision.target, now
        self._carry_out(at)

    def _observe(self) -> Observed:
        now = self.cluster.now
        living = [w for w in self.cluster.workers if not w.leaving]
        workers = tuple(
            WorkerState(w.name, w.pool, w.role, w.ready_at <= now, w.load, now - w.ready_at, w.leaving)
            for w in self.cluster.workers
        )
        pools = tuple(self._pool_state(p, living) for p in self.scenario.limits.pools)
        return Observed(
            limits=self.scenario.limits,
            pools=pools,
            workers=workers,
            target=self.target,
            decided_at=self.decided_at,
            metrics=METRICS,
            history=tuple(self.history),
            model=self.scenario.model,
        )

    def _pool_state(self, pool: PoolLimits, living: list[SimWorker]) -> PoolState:
        mine = [w for w in living if w.pool == pool.name]
        desired = self.target.pools[pool.name] if self.target else None
        return PoolState(pool.name, desired, sum(w.ready_at <= self.cluster.now for w in mine))

    def _carry_out(self, at: float) -> None:
        if self.target is None:
            return
        first = not self.cluster.workers
        for pool in self.scenario.limits.pools:
            self._grow(pool, self.target.pools[pool.name], at, first)
        # Grow first, shrink when the new workers serve; only a budget that is used up turns the order round.
        if all(w.ready_at <= at for w in self.cluster.workers) or self._is_over_budget():
            for pool in self.scenario.limits.pools:
                self._shrink(pool, self.target.pools[pool.name])
        workers = self._observe().workers
        limits = self.scenario.limits
        flips = choose_flips(workers, self.target, limits.min_prefill, limits.min_decode, limits.pools)
        by_name = {w.name: w for w in self.cluster.workers}
        self._flips = [(at + self.scenario.flip_delay_s, by_name[f.pod], f.to) for f in flips]
        living = [w for w in self.cluster.workers if not w.leaving]
        gpus = {p.name: p.gpus for p in limits.pools}
        self.run.gpu_seconds += limits.interval_s * sum(gpus[w.pool] for w in living)

    def _is_over_budget(self) -> bool:
        counts = {p.name: len(self._members(p)) for p in self.scenario.limits.pools}
        return not is_within_budget(self.scenario.limits, counts)

    def _members(self, pool: PoolLimits) -> list[SimWorker]:
        return [w for w in self.cluster.workers if w.pool == pool.name and not w.leaving]

    def _grow(self, pool: PoolLimits, count: int, at: float, is_first: bool) -> None:
        for _ in range(count - len(self._members(pool))):
            ready_at = at if is_first else at + self.scenario.start_delay_s
            truth = self.scenario.truth[pool.name]
            batch = self.scenario.batch_room or self.scenario.limits.max_batch
            self._born += 1
            name = f"{pool.name}-{self._born}"
            self.cluster.workers.append(SimWorker(name, pool.name, pool.role, truth, batch, ready_at))

    def _shrink(self, pool: PoolLimits, count: int) -> None:
        mine = sorted(self._members(pool), key=lambda w: (w.ready_at <= self.cluster.now, w.load))
        for worker in mine[: max(len(mine) - count, 0)]:
            worker.leaving = True
