"""The namespace's ResourceQuotas: accelerators that it has no more of are not planned with.

They are asked for only where a decision wants more than before: a watch of them would cost more than it tells. What
they leave holds until the next look at the metrics.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from tandem_operator.edges.errors import ApiError
from tandem_operator.plan.candidates import gpus_of
from tandem_operator.plan.claims import Cap, least_gpus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tandem_operator.loop.observe import Seen
    from tandem_operator.loop.planned import Plan
    from tandem_operator.loop.world import World

log = logging.getLogger(__name__)
Object = dict[str, Any]
KIND = "ResourceQuota"
COUNT = re.compile(r"([0-9]{1,9})(k?)")


async def note_quota(world: World, seen: Seen, plan: Plan) -> bool:
    """Ask what the quotas leave, where the plan has more accelerators than the target before it: is that too few?"""
    wanted = gpus_of(seen.facts.limits, plan.target.pools)
    names = {seen.accelerators[pool.name].resource for pool in seen.resource.spec.pools}
    if wanted <= floor_of(seen) or len(names) > 1 or "" in names:
        return False
    (name,) = names
    try:
        quotas = [item async for page, _ in world.kube.pages(KIND, seen.ref.namespace) for item in page]
    except ApiError as error:
        log.warning("quotas of namespace %s cannot be read: %s", seen.ref.namespace, error.message)
        return False
    cap = cap_by(quotas, name, held_by(seen), floor_of(seen))
    if cap is None or cap.gpus >= wanted:
        return False
    world.rooms[seen.ref] = (seen.look.number, cap)
    return True


def cap_by(quotas: Iterable[Object], name: str, held: int, floor: int) -> Cap | None:
    """What the tightest quota on the extended resource leaves beside what is held; never below `floor`.

    Quotas with scopes are left out: they are about some of the pods, and the API server says so where they bind.
    """
    caps = [cap for quota in quotas if (cap := cap_of_one(quota, f"requests.{name}", held, floor)) is not None]
    return min(caps, key=lambda cap: cap.gpus, default=None)


def cap_of_one(quota: Object, key: str, held: int, floor: int) -> Cap | None:
    """The same of one quota; None where it does not bound this resource, or not all pods."""
    spec, status = quota.get("spec") or {}, quota.get("status") or {}
    hard, used = (count_of((status.get(part) or {}).get(key)) for part in ("hard", "used"))
    if spec.get("scopes") or spec.get("scopeSelector") or hard is None or used is None:
        return None
    words = f"ResourceQuota {quota['metadata']['name']} has {hard} of {key}, and {used} are in use"
    return Cap(max(held + max(hard - used, 0), floor), words, "QuotaExhausted")


def count_of(value: Any) -> int | None:
    """A whole quantity as the API server writes it, `8` or, of round thousands, `2k`; None for anything else."""
    number = COUNT.fullmatch(value) if isinstance(value, str) else None
    return int(number[1]) * (1000 if number[2] else 1) if number else None


def held_by(seen: Seen) -> int:
    """Accelerators of the workers that there are, those that are going too: a quota counts them."""
    each = {pool.name: pool.gpus for pool in seen.facts.limits.pools}
    return sum(each.get(worker.pool, 0) for worker in seen.facts.workers)


def floor_of(seen: Seen) -> int:
    """What is never taken back for a quota's sake: the target that stands, and the minima."""
    limits, target = seen.facts.limits, seen.facts.target
    return max(least_gpus(limits), gpus_of(limits, target.pools) if target else 0)
