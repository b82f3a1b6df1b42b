"""The simulated controllers: pools grow, shrink and flip towards a target, and a dead worker is replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_operator.plan.candidates import is_within_budget
from tandem_operator.plan.facts import PoolState, WorkerState
from tandem_operator.plan.flips import choose_flips
from tandem_operator.simulate.worker import SimWorker

if TYPE_CHECKING:
    from tandem_operator.plan.facts import PoolLimits, Role, Target
    from tandem_operator.simulate.cluster import Cluster
    from tandem_operator.simulate.run import Scenario


class Fleet:
    """The cluster's workers as pods of pools."""

    def __init__(self, scenario: Scenario, cluster: Cluster) -> None:
        """No pods: the first target makes them, ready at once."""
        self._scenario = scenario
        self._cluster = cluster
        self._born = 0
        self._flipping = 0  # labels that are patched but that the router has not seen

    def workers(self) -> tuple[WorkerState, ...]:
        """The pods as the API server shows them."""
        now = self._cluster.now
        return tuple(
            WorkerState(w.name, w.pool, w.role, w.ready_at <= now, w.load, now - w.ready_at, w.leaving)
            for w in self._cluster.workers
        )

    def pools(self, target: Target | None) -> tuple[PoolState, ...]:
        """The Deployments."""
        return tuple(
            PoolState(
                p.name, target.pools[p.name] if target else None, sum(w.ready_at <= self._cluster.now for w in mine)
            )
            for p in self._scenario.limits.pools
            for mine in (self._members(p),)
        )

    def carry_out(self, target: Target) -> None:
        """Grow first, shrink when the new workers serve; only a budget that is used up turns that round. Then flip."""
        limits, cluster = self._scenario.limits, self._cluster
        is_first = not cluster.workers and not cluster.gone
        for pool in limits.pools:
            self._grow(pool, target.pools[pool.name], is_first)
        if all(w.ready_at <= cluster.now for w in cluster.workers) or self._is_over_budget():
            for pool in limits.pools:
                self._shrink(pool, target.pools[pool.name])
        if self._flipping:
            return
        by_name = {w.name: w for w in cluster.workers}
        for flip in choose_flips(self.workers(), target, limits.min_prefill, limits.min_decode, limits.pools):
            self._flip_later(by_name[flip.pod], flip.to)

    def fail(self, pool: str, nth: int) -> None:
        """The nth-oldest living worker of a pool dies, if there is one."""
        living = [w for w in self._cluster.workers if w.pool == pool and w.ready_at <= self._cluster.now]
        if nth < len(living):
            self._cluster.fail(living[nth])

    def gpu_seconds(self) -> dict[str, float]:
        """By pool: GPUs times the seconds from order to end, starting and draining included."""
        spent = {p.name: 0.0 for p in self._scenario.limits.pools}
        gpus = {p.name: p.gpus for p in self._scenario.limits.pools}
        for worker in (*self._cluster.gone, *self._cluster.workers):
            end = self._cluster.now if worker.gone_at is None else worker.gone_at
            spent[worker.pool] += gpus[worker.pool] * (end - worker.born_at)
        return spent

    def _flip_later(self, worker: SimWorker, role: Role) -> None:
        def flip() -> None:
            self._flipping -= 1
            if worker.gone_at is None and not worker.leaving:
                self._cluster.flip(worker, role)

        self._flipping += 1
        self._cluster.at(self._cluster.now + self._scenario.flip_delay_s, flip)

    def _is_over_budget(self) -> bool:
        counts = {p.name: len(self._members(p)) for p in self._scenario.limits.pools}
        return not is_within_budget(self._scenario.limits, counts)

    def _members(self, pool: PoolLimits) -> list[SimWorker]:
        return [w for w in self._cluster.workers if w.pool == pool.name and not w.leaving]

    def _grow(self, pool: PoolLimits, count: int, is_first: bool) -> None:
        scenario, cluster = self._scenario, self._cluster
        for _ in range(count - len(self._members(pool))):
            self._born += 1
            ready_at = cluster.now if is_first else cluster.now + scenario.start_delay_s
            batch = scenario.batch_room or scenario.limits.max_batch
            name, truth = f"{pool.name}-{self._born}", scenario.truth[pool.name]
            cluster.workers.append(
                SimWorker(name, pool.name, pool.role, truth, batch, ready_at, scenario.engine, cluster.now)
            )
            cluster.at(ready_at, cluster.changed)

    def _shrink(self, pool: PoolLimits, count: int) -> None:
        mine = sorted(self._members(pool), key=lambda w: (w.ready_at <= self._cluster.now, w.load))
        for worker in mine[: max(len(mine) - count, 0)]:
            self._cluster.leave(worker)
