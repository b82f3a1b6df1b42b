"""Targets, and how the ratio may be moved to reach them: `spec.slo` and `spec.rebalance`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tandem_operator.api.base import Part, Rule, whole

Milliseconds = Annotated[int, Field(ge=1, le=3_600_000)]
Gpus = Annotated[int, Field(ge=1, le=100_000)]
RoleMinimum = Annotated[int, Field(ge=1, le=1000)]


class Slo(Part):
    """What clients are promised: `percentile` per cent of all requests meet both targets."""

    ttft_milliseconds: Milliseconds
    """Time to first token, at the router, in milliseconds. Example: 500."""
    tpot_milliseconds: Milliseconds
    """Time per output token after the first, mean over a request, in milliseconds. Example: 40."""
    percentile: Annotated[int, Field(ge=50, le=99)] = 95
    """Share of the requests that meet both targets, in per cent, 50 to 99. Default: 95."""


class RoleMinima(Part):
    """Fewest serving workers by role, at every instant of a move, whatever pool they come from."""

    min_prefill: RoleMinimum = 1
    """Fewest workers that do prefill; of two or more a node's drain leaves as many. Default: 1."""
    min_decode: RoleMinimum = 1
    """Fewest workers that do decode; of two or more a node's drain leaves as many. Default: 1."""


class Budget(Part):
    """Most accelerators that all pools together may have."""

    gpus: Gpus | None = None
    """Most accelerators of all kinds. Default: the sum of the pools' maxima."""
    per_accelerator: Annotated[dict[str, Gpus], Field(max_length=16)] = Field(default_factory=dict)
    """Most accelerators of one kind, by its catalogue name. Example: {h100-sxm: 32}. Default: no bound."""


class ScalingPolicy(Part):
    """A bound on one step; spelled as in autoscaling/v2."""

    type: Literal["Pods", "Percent"] = "Pods"
    """Pods: value counts workers; Percent: value is a share of the pool. Default: Pods."""
    value: Annotated[int, Field(ge=1, le=1000)]
    """Most workers of a pool, or per cent of it, that are added or removed within periodSeconds."""
    period_seconds: Annotated[int, Field(ge=1, le=1800)] | None = None
    """Seconds over which value is counted, up to 1800. Default: one decision."""


class ScalingRules(Part):
    """How soon and how far one direction may go."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    """Seconds that the need must have lasted. Default: 30 up, 300 down."""
    select_policy: Literal["Max", "Min", "Disabled"] | None = None
    """Which of several policies counts; Disabled: no worker is moved this way. Default: Max, the one that allows
    most."""
    policies: list[ScalingPolicy] = Field(
        default_factory=list, max_length=4, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Bounds on each pool. Default: 4 workers up, 1 down, for each decision."""

    def window_s(self, default: int) -> int:
        """The stabilisation window in seconds, or the default where none is set."""
        return default if self.stabilization_window_seconds is None else self.stabilization_window_seconds

    def pods(self, default: int) -> int:
        """Most workers of a pool that one decision moves, as far as it is a number; else the default."""
        return max((policy.value for policy in self.policies if policy.type == "Pods"), default=default)


class Behavior(Part):
    """Steadiness of replica changes; role flips are bounded by the interval alone."""

    scale_up: ScalingRules = whole(ScalingRules)
    """Adding workers. Default: after 30 s, 4 at a time."""
    scale_down: ScalingRules = whole(ScalingRules)
    """Removing workers. Default: after 300 s, 1 at a time."""


def _minima_fit(rebalance: Rebalance) -> bool:
    gpus = rebalance.budget.gpus
    return gpus is None or rebalance.roles.min_prefill + rebalance.roles.min_decode <= gpus


class Rebalance(Part):
    """Whether and how the ratio of prefill to decode is kept right."""

    mode: Literal["Auto", "Recommend", "Off"] = "Auto"
    """Auto: the operator acts; Recommend: it only says in status.decision what it would do; Off: it holds the counts.
    Default: Auto."""
    interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 15
    """Seconds between two decisions. Default: 15."""
    # No schema default: the right one depends on mode and engine.
    role_flips: bool | None = None
    """May a worker change its role without a restart? Only with an engine that can, and not when Colocated.
    Default: true where mode is Disaggregated and the engine is tandem."""
    roles: RoleMinima = whole(RoleMinima)
    """Fewest workers by role. Default: one of each."""
    budget: Budget = whole(Budget)
    """Most accelerators. Default: bounded by the pools alone."""
    objective: Literal["Price", "Power"] = "Price"
    """What the cheapest plan saves. Price: per hour, by hardware.priceMillidollarsPerHour or the catalogue; Power:
    watts, by hardware.watts or the catalogue. Where a pool's figure is unknown, accelerators are counted. Default:
    Price."""
    behavior: Behavior = whole(Behavior)
    """How soon and how far replicas change; spelled as in autoscaling/v2."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="roles.minPrefill + roles.minDecode is more than budget.gpus",
            holds=_minima_fit,
            cel="!has(self.budget) || !has(self.budget.gpus) "
            "|| self.roles.minPrefill + self.roles.minDecode <= self.budget.gpus",
            field=".budget.gpus",
        ),
    )
