"""`spec` as a whole, and the rules that cross its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr

from tandem_operator.api.base import Part, Rule, whole
from tandem_operator.api.engines import DEGREES, ENGINES, Ability
from tandem_operator.api.spec_model import Engine, Model
from tandem_operator.api.spec_pool import Pool
from tandem_operator.api.spec_rebalance import Rebalance, Slo
from tandem_operator.api.spec_router import Monitoring, Router
from tandem_operator.api.spec_transfer import Transfer


class Rollout(Part):
    """How workers of a new template take the places of those of the former one."""

    max_unavailable: Annotated[int, Field(ge=1, le=1000)] = 1
    """Most workers that a rollout takes away at a time, over all pools and roles together: 1 renews prefill and decode
    workers in turns, more is shared out by the roles' sizes. A pool keeps one worker all the same, as long as it has
    several. Default: 1."""


class ScaleToZero(Part):
    """When the workers go, and how long a request waits for them to come back."""

    after_seconds: Annotated[int, Field(ge=30, le=14_400)]
    """Seconds without a request, after which the workers go. Example: 1800."""
    hold_seconds: Annotated[int, Field(ge=1, le=3600)] = 300
    """Seconds that a router holds a request while the workers start; then 503 with Retry-After. Longer than a start
    takes (status.sleep.startSeconds). Default: 300."""


Mode = Literal["Disaggregated", "Colocated", "Auto"]


def _least_gpus(pools: Iterable[Pool]) -> int:
    return sum(pool.replicas.min * pool.parallelism.gpus for pool in pools)


def _roles_fit_mode(spec: Spec) -> bool:
    roles = {pool.role for pool in spec.pools}
    wanted = {"Disaggregated": {"Prefill", "Decode"}, "Colocated": {"Both"}, "Auto": {"Prefill", "Decode", "Both"}}
    return roles == wanted[spec.mode]


def _minima_fit(spec: Spec) -> bool:
    gpus = spec.rebalance.budget.gpus
    return gpus is None or _least_gpus(spec.pools) <= gpus


def _minima_fit_by_kind(spec: Spec) -> bool:
    return all(
        _least_gpus(p for p in spec.pools if p.hardware.accelerator == kind) <= gpus
        for kind, gpus in spec.rebalance.budget.per_accelerator.items()
    )


def _roles_reachable(spec: Spec) -> bool:
    roles = spec.rebalance.roles
    workers = sum(pool.replicas.max for pool in spec.pools)
    return spec.mode == "Colocated" or roles.min_prefill + roles.min_decode <= workers


def _flips_possible(spec: Spec) -> bool:
    return not spec.rebalance.role_flips or (spec.mode != "Colocated" and ENGINES[spec.engine.name].flips)


def _experts_fit(spec: Spec) -> bool:
    return all(p.parallelism.expert in (1, p.parallelism.tensor * p.parallelism.data) for p in spec.pools)


def _degrees_fit(spec: Spec) -> bool:
    lacking = set(DEGREES) - set(ENGINES[spec.engine.name].degrees)
    return all(getattr(pool.parallelism, degree) == 1 for pool in spec.pools for degree in lacking)


def _ranks_fit(spec: Spec) -> bool:
    reshards = spec.engine.name != "tandem" or spec.mode == "Colocated" or spec.transfer.backend == "tcp"
    return reshards or len({pool.parallelism.tensor for pool in spec.pools}) == 1


def _degrees_of(name: str) -> str:
    """CEL: no pool uses a degree that the engine lacks."""
    lacking = [degree for degree in DEGREES if degree not in ENGINES[name].degrees]
    ones = " && ".join(f"p.parallelism.{degree} == 1" for degree in lacking)
    return f"(self.engine.name != '{name}' || self.pools.all(p, {ones}))"


def _list(of: Callable[[Ability], Iterable[str]]) -> str:
    """What each engine takes, in words."""
    return "; ".join(f"{name} takes {', '.join(of(engine))}" for name, engine in ENGINES.items())


def _choice(value: str, of: Callable[[Ability], Iterable[str]]) -> str:
    """CEL: the value is one that the engine takes."""
    return " && ".join(
        f"(self.engine.name != '{name}' || {value} in {list(of(engine))})" for name, engine in ENGINES.items()
    )


# A pool's fewest accelerators, in CEL; expert parallelism reuses the ranks of the others.
LEAST = "p.replicas.min * p.parallelism.tensor * p.parallelism.pipeline * p.parallelism.data"

RULES = (
    Rule(
        message="pool names must differ",
        holds=lambda spec: len({pool.name for pool in spec.pools}) == len(spec.pools),
        field=".pools",  # the API server sees to it: the list is a map by name
    ),
    Rule(
        message="mode Disaggregated needs at least one pool of role Prefill, one of role Decode and none of role Both; "
        "mode Colocated needs role Both in every pool; mode Auto needs at least one pool of each role",
        holds=_roles_fit_mode,
        cel="self.mode == 'Disaggregated' ? self.pools.exists(p, p.role == 'Prefill') "
        "&& self.pools.exists(p, p.role == 'Decode') && self.pools.all(p, p.role != 'Both') "
        ": self.mode == 'Auto' ? ['Prefill', 'Decode', 'Both'].all(r, self.pools.exists(p, p.role == r)) "
        ": self.pools.all(p, p.role == 'Both')",
        field=".pools",
    ),
    Rule(
        message="the pools' minima need more accelerators than rebalance.budget.gpus allows",
        holds=_minima_fit,
        cel="!has(self.rebalance.budget) || !has(self.rebalance.budget.gpus) || "
        f"self.pools.map(p, {LEAST}).sum() <= self.rebalance.budget.gpus",
        field=".rebalance.budget.gpus",
    ),
    Rule(
        message="the minima of the pools of an accelerator need more of it than rebalance.budget.perAccelerator allows",
        holds=_minima_fit_by_kind,
        cel="!has(self.rebalance.budget) || !has(self.rebalance.budget.perAccelerator) "
        "|| self.rebalance.budget.perAccelerator.all(k, "
        f"self.pools.filter(p, p.hardware.accelerator == k).map(p, {LEAST}).sum() "
        "<= self.rebalance.budget.perAccelerator[k])",
        field=".rebalance.budget.perAccelerator",
    ),
    Rule(
        message="rebalance.roles.minPrefill + minDecode is more than the pools' maxima together",
        holds=_roles_reachable,
        cel="self.mode == 'Colocated' || self.rebalance.roles.minPrefill + self.rebalance.roles.minDecode "
        "<= self.pools.map(p, p.replicas.max).sum()",
        field=".rebalance.roles",
    ),
    Rule(
        message="scaleToZero needs rebalance.mode Auto: in the other modes the operator changes no counts",
        holds=lambda spec: spec.scale_to_zero is None or spec.rebalance.mode == "Auto",
        cel="!has(self.scaleToZero) || self.rebalance.mode == 'Auto'",
        field=".scaleToZero",
    ),
    Rule(
        message="roleFlips needs mode Disaggregated and an engine whose workers can change their role (tandem, vllm)",
        holds=_flips_possible,
        cel="!has(self.rebalance.roleFlips) || !self.rebalance.roleFlips "
        f"|| (self.mode != 'Colocated' && self.engine.name in {[n for n, e in ENGINES.items() if e.flips]})",
        field=".rebalance.roleFlips",
    ),
    Rule(
        message=f"the engine cannot transfer by this backend; {_list(lambda engine: engine.backends)}",
        holds=lambda s: s.mode == "Colocated" or s.transfer.backend in ENGINES[s.engine.name].backends,
        cel="self.mode == 'Colocated' || " + _choice("self.transfer.backend", lambda engine: engine.backends),
        field=".transfer.backend",
    ),
    Rule(
        message=f"the engine cannot compute in this dtype; {_list(lambda engine: engine.dtypes)}",
        holds=lambda s: s.model.dtype in ENGINES[s.engine.name].dtypes,
        cel=_choice("self.model.dtype", lambda engine: engine.dtypes),
        field=".model.dtype",
    ),
    Rule(
        message="the engine lacks this kind of parallelism: "
        + "; ".join(f"{n} has {', '.join(e.degrees) or 'none'}" for n, e in ENGINES.items()),
        holds=_degrees_fit,
        cel=" && ".join(_degrees_of(name) for name, e in ENGINES.items() if set(e.degrees) != set(DEGREES)),
        field=".pools",
    ),
    Rule(
        message="tandem's pools have the same parallelism.tensor, unless transfer.backend is tcp: it alone reshards",
        holds=_ranks_fit,
        cel="self.engine.name != 'tandem' || self.mode == 'Colocated' || self.transfer.backend == 'tcp' "
        "|| self.pools.all(p, p.parallelism.tensor == self.pools[0].parallelism.tensor)",
        field=".pools",
    ),
    Rule(
        message="parallelism.expert must be 1, or tensor * data: the experts are spread over all ranks of a stage",
        holds=_experts_fit,
        cel="self.pools.all(p, p.parallelism.expert == 1 "
        "|| p.parallelism.expert == p.parallelism.tensor * p.parallelism.data)",
        field=".pools",
    ),
)


class Spec(Part):
    """What is wanted: the model, its pools, the transfer, the targets. Git owns it; the operator never writes it."""

    model: Model
    """The model to serve."""
    engine: Engine = whole(Engine)
    """The program that computes. Default: tandem with the operator's image."""
    mode: Mode = "Disaggregated"
    """Disaggregated: separate prefill and decode workers; Colocated: each worker does both; Auto: the advisor decides
    from the traffic and says why (status.mode), and the pools of one of both modes run. Default: Disaggregated."""
    pools: list[Pool] = Field(
        min_length=1,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """The workers, by pool; several pools may have the same role, on different accelerators."""
    transfer: Transfer = whole(Transfer)
    """How the KV cache travels from prefill to decode workers."""
    slo: Slo
    """What clients are promised."""
    rebalance: Rebalance = whole(Rebalance)
    """Whether and how the ratio of prefill to decode is kept right."""
    rollout: Rollout = whole(Rollout)
    """How fast an edit goes through the workers."""
    router: Router = whole(Router)
    """The OpenAI-compatible front door."""
    monitoring: Monitoring = whole(Monitoring)
    """Objects for an installed monitoring stack."""
    suspend: bool = False
    """Take every pod away and keep the rest, the target included: false brings back what was there. Default: false."""
    scale_to_zero: ScaleToZero | None = None
    """Let the workers go while no request comes; the routers stay, and hold the first one. Default: never."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Rank between resources that share a fleet's budget (TANDEM_FLEET_GPUS): beyond everybody's minima the higher is
    served first, and takes from the lower. Default: 0."""

    rules: ClassVar[tuple[Rule, ...]] = RULES

    # What somebody wrote, of a spec that in_mode() or at_rest() made.
    _written: Spec | None = PrivateAttr(None)

    @property
    def written(self) -> Spec:
        """The spec with the pools of both modes, as it is in Git."""
        return self._written or self

    def in_mode(self, mode: Literal["Disaggregated", "Colocated"]) -> Spec:
        """A spec of mode Auto as one of the mode in effect: with its pools alone."""
        pools = [pool for pool in self.pools if (pool.role == "Both") == (mode == "Colocated")]
        found = self.model_copy(update={"mode": mode, "pools": pools})
        found._written = self  # noqa: SLF001 its own class
        return found

    def at_rest(self) -> Spec:
        """The spec of a resource that sleeps: its workers are suspended, its routers are not."""
        found = self.model_copy(update={"suspend": True})
        found._written = self.written  # noqa: SLF001 its own class
        return found

    @property
    def asleep(self) -> bool:
        """Are there no workers because it sleeps?"""
        return self.suspend and not self.written.suspend

    @property
    def flips_roles(self) -> bool:
        """May workers change their role? As written, else whatever mode and engine can do."""
        if self.rebalance.role_flips is None:
            return self.mode != "Colocated" and ENGINES[self.engine.name].flips
        return self.rebalance.role_flips
