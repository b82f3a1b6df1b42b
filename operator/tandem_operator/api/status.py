"""`status`: what is, and what the operator decided. Integers and strings, never floats."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandem_operator.api.base import ConditionMessage, Count, Instant, Part, Sentence

# "97.3": one decimal is more than a window of requests can tell.
Percent = Annotated[str, Field(max_length=6, pattern=r"^[0-9]{1,3}(\.[0-9]{1,2})?$")]
Rate = Annotated[str, Field(max_length=24, pattern=r"^[0-9]+(\.[0-9]{1,3})?$")]
Word = Annotated[str, Field(max_length=128)]
Millis = Annotated[int, Field(ge=0, le=2**31 - 1)]
PoolCounts = Annotated[dict[str, Count], Field(max_length=16)]


class RoleCounts(Part):
    """Workers by what they do; one that does both counts in each."""

    prefill: Count = 0
    """Workers that do prefill."""
    decode: Count = 0
    """Workers that do decode."""


class PoolStatus(Part):
    """A pool's Deployment."""

    desired: Count = 0
    """Workers that the pool is to have, from status.decision.target; 0 while suspended."""
    ready: Count = 0
    """Workers of the pool that can serve."""


class ObservedStatus(Part):
    """What clients got, at `asOf`; rewritten with a condition or a decision, or when a value moved by over 10 %."""

    ttft_milliseconds: Millis | None = None
    """Time to first token at the SLO's percentile, milliseconds; unset: not known."""
    tpot_milliseconds: Millis | None = None
    """Time per output token at the SLO's percentile, milliseconds; unset: not known."""
    attainment_percent: Percent | None = None
    """Share of the requests that met both targets, per cent. Example: "97.3"."""
    requests_per_second: Rate | None = None
    """Requests that arrived per second. Example: "12.4"."""
    prompt_tokens: Millis | None = None
    """Mean tokens of a prompt."""
    output_tokens: Millis | None = None
    """Mean tokens of an answer."""
    as_of: Instant | None = None
    """When this was observed."""


class TransferStatus(Part):
    """How the KV cache travels now."""

    backend: Word | None = None
    """Backend in use, as the workers report it. Example: tcp."""
    bandwidth: Word | None = None
    """Bandwidth seen between two workers while they transfer. Example: "1.9 GB/s"."""


class TargetStatus(Part):
    """The intent, written before any child is touched, and the only place that a chosen count is read from."""

    pools: PoolCounts = Field(default_factory=dict)
    """Workers by pool."""
    roles: RoleCounts
    """Workers by role, over all pools."""


class PredictedStatus(Part):
    """What a target is expected to give, at the SLO's percentile."""

    ttft_milliseconds: Millis | None = None
    """Time to first token, milliseconds; unset: beyond every bound, or not known."""
    tpot_milliseconds: Millis | None = None
    """Time per output token, milliseconds; unset: beyond every bound, or not known."""
    attainment_percent: Percent | None = None
    """Share of the requests that meet both targets, per cent."""


class AlternativeStatus(Part):
    """A target that was weighed."""

    target: TargetStatus
    """The target."""
    predicted: PredictedStatus | None = None
    """What it is expected to give; unset: not known."""
    gpus: Count = 0
    """Accelerators that it needs."""
    rejected: Sentence = ""
    """Why it was not taken; empty for the one that was."""


class ChangeStatus(Part):
    """Workers that a decision added to a pool or took from it."""

    at: Instant
    """When it was decided."""
    pool: Annotated[str, Field(max_length=63)]
    """The pool."""
    workers: Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
    """Workers added; below 0: removed."""


class DecisionStatus(Part):
    """The planner's last decision, with its reason."""

    id: Annotated[str, Field(min_length=1, max_length=64)]
    """Identifies the decision in events and logs."""
    target: TargetStatus
    """What is to be. Children that differ from it are drift."""
    action: Literal["Hold", "Initialize", "Adopt", "Flip", "Scale", "Recommend"]
    """What the decision does."""
    reason: Word
    """One CamelCase word."""
    message: Sentence
    """One sentence with numbers."""
    predicted: PredictedStatus | None = None
    """What the target is expected to give; unset: not known."""
    alternatives: list[AlternativeStatus] = Field(
        default_factory=list, max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Targets that were weighed, and why they were not taken."""
    at: Instant
    """When it was made."""
    changes: list[ChangeStatus] = Field(
        default_factory=list, max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """What was decided for pools in the last half hour: rebalance.behavior counts by it."""


class ModeStatus(Part):
    """Which mode a resource of mode Auto is in; the condition ModeChosen says why."""

    effective: Literal["Disaggregated", "Colocated"]
    """The mode in effect."""
    changes: list[Instant] = Field(
        default_factory=list, max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """When it changed in the last day, oldest first."""


class SleepStatus(Part):
    """Whether a resource with scaleToZero sleeps."""

    asleep: bool
    """Are there no workers, as nothing is asked of them?"""
    since: Instant
    """When that changed last."""
    start_seconds: Count | None = None
    """How long a worker took from its creation until it served; unset: not known."""
    message: Sentence = ""
    """Why it changed."""


class Condition(Part):
    """One standing judgement, as every Kubernetes object has them; docs/reference/conditions.md lists the reasons."""

    type: Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
    """What is judged. Example: Ready."""
    status: Literal["True", "False", "Unknown"]
    """The judgement."""
    observed_generation: Annotated[int, Field(ge=0, le=2**53)]
    """metadata.generation that was judged."""
    last_transition_time: Instant
    """When status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
    """One CamelCase word, for alerts."""
    message: ConditionMessage
    """One sentence with numbers, for people."""


class Status(Part):
    """What is, as the operator last saw it, and what it decided."""

    observed_generation: Annotated[int, Field(ge=0, le=2**53)] | None = None
    """metadata.generation that this status is about."""
    endpoint: Annotated[str, Field(max_length=512)] | None = None
    """Address of the OpenAI API. Example: http://chat-router.serving.svc:8000/v1."""
    model_revision: Annotated[str, Field(max_length=128)] | None = None
    """Revision of the model that runs."""
    mode: ModeStatus | None = None
    """The mode in effect; unset unless spec.mode is Auto."""
    sleep: SleepStatus | None = None
    """Of spec.scaleToZero; unset as long as it has never slept."""
    pools: Annotated[dict[str, PoolStatus], Field(max_length=16)] = Field(default_factory=dict)
    """The pools' Deployments, by pool."""
    roles: RoleCounts | None = None
    """Serving workers by role."""
    ratio: Annotated[str, Field(max_length=32, pattern=r"^[0-9]+:[0-9]+$")] | None = None
    """Serving prefill workers to serving decode workers. Example: "2:1"."""
    observed: ObservedStatus | None = None
    """What clients got."""
    transfer: TransferStatus | None = None
    """How the KV cache travels now."""
    decision: DecisionStatus | None = None
    """The planner's last decision; its target is the intent."""
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """Standing judgements, by type."""

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, if it was ever set."""
        return next((found for found in self.conditions if found.type == kind), None)
