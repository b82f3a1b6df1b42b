"""A rollout as the pods show it: who is of the wanted template, what is wrong with the new ones, which pools wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import COMPONENT_WORKER, LABEL_COMPONENT, LABEL_POOL, LABEL_REVISION, LABEL_ROLE
from tandem_operator.loop.faults import Fault, is_ready, late_fault, scheduling_fault, stalling_fault, unschedulable
from tandem_operator.plan.facts import Role
from tandem_operator.plan.rollout import Lane, Member, pools_to_hold
from tandem_operator.templates.groups import is_held, step_in, template_in
from tandem_operator.templates.names import TEMPLATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tandem_operator.loop.observe import Seen

Object = dict[str, Any]


def digest_in(template: Object) -> str:
    """The digest that a pod, or a pod template, carries; '' for what was made before there were any."""
    return str((template["metadata"].get("annotations") or {}).get(TEMPLATE, ""))


def held_pools(seen: Seen, manifests: Mapping[str, Object]) -> frozenset[str]:
    """Pools whose Deployment is to be paused, by what their Deployments are to be."""
    digests = {name: digest_in(template_in(item)) for name, item in manifests.items()}
    members = members_of(seen, digests)
    begun = any(not member.current for member in members)
    lanes = [
        Lane(
            pool.name,
            Role(pool.role.lower()),
            int(item["spec"].get("replicas", 1)),
            is_held(item),
            step_in(manifests[pool.name]),
        )
        for pool in seen.resource.spec.pools
        if (item := seen.pools.get(pool.name)) is not None
    ]
    return pools_to_hold(
        members,
        lanes,
        most=seen.resource.spec.rollout.max_unavailable,
        unhealthy=begun and fault_of_new(seen, digests) is not None,
        waits=begun and unschedulable(new_workers(seen, digests)) is not None,
    )


def members_of(seen: Seen, digests: Mapping[str, str]) -> list[Member]:
    """The living workers."""
    return [member_of(pod, digests) for pod in workers_of(seen) if label(pod, LABEL_POOL) in digests]


def member_of(pod: Object, digests: Mapping[str, str]) -> Member:
    """A worker pod as a rollout sees it."""
    pool, role = label(pod, LABEL_POOL), label(pod, LABEL_ROLE)
    return Member(
        name=pod["metadata"]["name"],
        pool=pool,
        role=Role(role) if role in set(Role) else Role.BOTH,
        ready=is_ready(pod),
        revision=label(pod, LABEL_REVISION),
        current=digest_in(pod) == digests[pool],
    )


def fault_of_new(seen: Seen, digests: Mapping[str, str]) -> Fault | None:
    """What is wrong with workers of the wanted template, as far as only an edit or a person heals it."""
    new = new_workers(seen, digests)
    return stalling_fault(new) or late_fault(new, seen.at, seen.facts.start_s)


def new_workers(seen: Seen, digests: Mapping[str, str]) -> list[Object]:
    """Workers of the wanted template."""
    return [pod for pod in workers_of(seen) if digest_in(pod) == digests.get(label(pod, LABEL_POOL))]


def live_digests(seen: Seen) -> dict[str, str]:
    """What the pools' Deployments want now."""
    return {name: digest_in(template) for name, item in seen.pools.items() if (template := template_in(item))}


def paused_words(seen: Seen) -> str | None:
    """Why the rollout is paused, and by what it goes on; None where none is under way, or all is well."""
    digests = live_digests(seen)
    old = [member for member in members_of(seen, digests) if not member.current]
    fault = fault_of_new(seen, digests) if old else None
    if fault is None:
        return None
    words = f"{len(old)} workers of the former template stay ({sum(m.ready for m in old)} ready)"
    return f"the rollout is paused, {words}: {fault.message}; mend what it names, or revert the spec"


def progress_words(seen: Seen) -> str | None:
    """How far the rollout of the workers is; None where none is under way."""
    digests = live_digests(seen)
    members = members_of(seen, digests)
    if all(member.current for member in members):
        return None
    words = ", ".join(f"{pool} {counted([m for m in members if m.pool == pool])}" for pool in seen.pools) + " renewed"
    waits = scheduling_fault(new_workers(seen, digests))
    return words if waits is None else f"{words}; no former worker goes meanwhile: {waits.message}"


def counted(members: Sequence[Member]) -> str:
    """`1 of 4`."""
    return f"{sum(m.current and m.ready for m in members)} of {len(members)}"


def workers_of(seen: Seen) -> list[Object]:
    """Worker pods that are not going."""
    return [pod for pod in all_workers(seen) if not pod["metadata"].get("deletionTimestamp")]


def all_workers(seen: Seen) -> list[Object]:
    """Worker pods, those that are going too."""
    return [pod for pod in seen.pods if label(pod, LABEL_COMPONENT) == COMPONENT_WORKER]


def label(pod: Object, name: str) -> str:
    """A label's value, '' where there is none."""
    return str((pod["metadata"].get("labels") or {}).get(name, ""))
