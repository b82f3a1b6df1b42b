"""`rebalance.behavior`: how many workers of a pool one decision may add or remove, as autoscaling/v2 counts. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tandem_operator.api.spec_rebalance import Behavior, ScalingPolicy, ScalingRules
    from tandem_operator.plan.facts import Change, Limits, PoolLimits


def paced(
    limits: Limits, behavior: Behavior, sizes: Mapping[str, int], changes: Sequence[Change], now: datetime
) -> Limits:
    """The limits, each pool with what is left to it of its policies; `sizes`: the target's replicas."""

    def pace(pool: PoolLimits) -> PoolLimits:
        mine = [change for change in changes if change.pool == pool.name]
        size, calm = sizes.get(pool.name, pool.initial), limits.steadiness
        return replace(
            pool,
            up_pods=allowance(behavior.scale_up, size, [c for c in mine if c.workers > 0], now, calm.up_pods),
            down_pods=allowance(behavior.scale_down, size, [c for c in mine if c.workers < 0], now, calm.down_pods),
        )

    return replace(limits, pools=tuple(pace(pool) for pool in limits.pools))


def allowance(rules: ScalingRules, size: int, changes: Sequence[Change], now: datetime, default: int) -> int:
    """Workers that one more decision may move, by the policy that counts; `changes` are those of this direction."""
    if rules.select_policy == "Disabled":
        return 0
    if not rules.policies:
        return default
    choose = min if rules.select_policy == "Min" else max
    return choose(left_of(policy, size, changes, now) for policy in rules.policies)


def left_of(policy: ScalingPolicy, size: int, changes: Sequence[Change], now: datetime) -> int:
    """What one policy allows, less what was moved in its period; a share is of the pool as the period began."""
    moved = 0
    if policy.period_seconds is not None:
        since = now - timedelta(seconds=policy.period_seconds)
        moved = sum(change.workers for change in changes if change.at > since)
    most = policy.value if policy.type == "Pods" else ceil((size - moved) * policy.value / 100)
    return max(0, most - abs(moved))
