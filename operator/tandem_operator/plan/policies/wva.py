"""llm-d's Workload Variant Autoscaler, its default saturation rule, applied to each role.

Source: llm-d-incubation/workload-variant-autoscaler internal/saturation/analyzer.go; defaults kvCacheThreshold 0.80,
queueLengthThreshold 5, kvSpareTrigger 0.1, queueSpareTrigger 3. It knows variants, no roles, and keeps no ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Role
from tandem_operator.plan.policies.base import desired, go, hold, is_moving, start
from tandem_operator.plan.policies.signals import newest_context, running

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.facts import Decision, Observed

KV_THRESHOLD, KV_SPARE = 0.80, 0.1
QUEUE_THRESHOLD, QUEUE_SPARE = 5.0, 3.0


@dataclass(frozen=True, slots=True)
class Wva:
    """`kv_room_tokens`: tokens of KV that fit into one decode worker."""

    kv_room_tokens: float

    def __call__(self, seen: Observed, now: datetime) -> Decision:  # noqa: ARG002
        """Nothing while a role is in transition; then each role by its own saturation, ±1."""
        if (first := start(seen)) is not None:
            return first
        if not seen.history or is_moving(seen):
            return hold(seen, "Transition", "desired, present and reporting replicas differ")
        prefill, decode = desired(seen, Role.PREFILL), desired(seen, Role.DECODE)
        newest = seen.history[-1]
        queue = newest.prefill.waiting
        batch, context = running(newest), newest_context(seen.history)
        kv = None if batch is None or context is None else batch * context / self.kv_room_tokens
        asked = (
            prefill + (0 if queue is None else saturation(prefill, 0.0, queue / prefill)),
            decode + (0 if kv is None else saturation(decode, kv, 0.0)),
        )
        per_worker = "unknown" if queue is None else f"{queue / prefill:.1f} a worker"
        words = f"queue {per_worker}, KV {'unknown' if kv is None else f'{kv:.2f}'}"
        return go(seen, *asked, words)


def saturation(replicas: int, kv: float, queue: float) -> int:
    """+1 when the spare of a replica is below a trigger or all are saturated; -1 when N-1 keep the spare; else 0.

    Load = threshold - spare; on one replica fewer it grows by N/(N-1). One replica is never given up.
    """
    if KV_THRESHOLD - kv < KV_SPARE or QUEUE_THRESHOLD - queue < QUEUE_SPARE:
        return 1
    if replicas < 2:
        return 0
    more = replicas / (replicas - 1)
    is_safe = KV_THRESHOLD - kv * more >= KV_SPARE and QUEUE_THRESHOLD - queue * more >= QUEUE_SPARE
    return -1 if is_safe else 0
