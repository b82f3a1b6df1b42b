"""From the cache and the fleet's look to what a plan depends on: read, never asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import COMPONENT_ROUTER, COMPONENT_WORKER, LABEL_COMPONENT, LABEL_POOL, LABEL_ROLE
from tandem_operator.api.v1alpha1 import DisaggregatedInference, InvalidResourceError, read
from tandem_operator.loop.cache import is_owned
from tandem_operator.loop.catalogue import accelerators_of
from tandem_operator.loop.faults import is_ready
from tandem_operator.plan.facts import Observed, PoolState, Role, Target, WorkerState
from tandem_operator.plan.limits import limits_of
from tandem_operator.templates.names import Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.status import Status
    from tandem_operator.loop.fleet import Look
    from tandem_operator.loop.refs import Ref
    from tandem_operator.loop.world import World

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """One resource as a pass sees it; `facts` is what the planner may know of it."""

    ref: Ref
    body: Object
    resource: DisaggregatedInference
    owner: Owner
    accelerators: Mapping[str, Accelerator]
    pools: Mapping[str, Object]  # the pools' Deployments, those that there are
    router: Object | None
    pods: tuple[Object, ...]  # workers and routers
    look: Look
    facts: Observed
    absent: frozenset[str] = frozenset()  # optional kinds that the cluster does not serve

    @property
    def status(self) -> Status:
        """The status that was written last."""
        return self.resource.status


def parse(body: Object) -> DisaggregatedInference:
    """The resource in its body. A status that cannot be read is a lost one; a spec that cannot be read raises."""
    try:
        return read(body)
    except InvalidResourceError:
        return read({key: value for key, value in body.items() if key != "status"})


def observe(world: World, ref: Ref, body: Object, resource: DisaggregatedInference, now: datetime) -> Seen:
    """All facts for one pass. Raises UnknownAcceleratorError and UnknownDTypeError."""
    uid, cache, look = body["metadata"]["uid"], world.cache, world.fleet.look(ref)
    accelerators = accelerators_of(resource.spec, world.catalogue)
    owned = [item for item in cache.of(ref, "Deployment") if is_owned(item, uid)]
    pods = tuple(cache.of(ref, "Pod"))
    workers = tuple(worker_state(p, look.loads, now) for p in pods if label_of(p, LABEL_COMPONENT) == COMPONENT_WORKER)
    pools = {label_of(item, LABEL_POOL): item for item in owned if label_of(item, LABEL_POOL)}
    decision = resource.status.decision
    facts = Observed(
        limits=limits_of(resource.spec, accelerators),
        pools=tuple(pool_state(pool.name, pools.get(pool.name), workers) for pool in resource.spec.pools),
        workers=workers,
        target=target_of(resource.status),
        decided_at=decision.at if decision else None,
        metrics=look.metrics,
        history=look.history,
        model=look.model,
    )
    return Seen(
        ref=ref,
        body=body,
        resource=resource,
        owner=Owner(ref.name, ref.namespace, uid),
        accelerators=accelerators,
        pools=pools,
        router=next((item for item in owned if item["metadata"]["name"] == f"{ref.name}-{COMPONENT_ROUTER}"), None),
        pods=pods,
        look=look,
        facts=facts,
        absent=frozenset(world.absent),
    )


def worker_state(pod: Object, loads: Mapping[str, float], now: datetime) -> WorkerState:
    """A worker pod as the planner sees it; a pod without a known role (label edited by hand) counts as Both."""
    metadata = pod["metadata"]
    role = label_of(pod, LABEL_ROLE)
    return WorkerState(
        name=metadata["name"],
        pool=label_of(pod, LABEL_POOL),
        role=Role(role) if role in set(Role) else Role.BOTH,
        ready=is_ready(pod),
        load=loads.get(metadata["name"]),
        age_s=(now - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds(),
        deleting=bool(metadata.get("deletionTimestamp")),
    )


def pool_state(name: str, deployment: Object | None, workers: tuple[WorkerState, ...]) -> PoolState:
    """A pool's Deployment and its ready pods."""
    desired = None if deployment is None else int(deployment["spec"].get("replicas", 1))
    return PoolState(name, desired, sum(w.ready for w in workers if w.pool == name))


def target_of(status: Status) -> Target | None:
    """The intent that was written last; None where there is none, or the status was lost."""
    if status.decision is None:
        return None
    target = status.decision.target
    return Target(dict(target.pools), target.roles.prefill, target.roles.decode)


def label_of(item: Object, name: str) -> str:
    """A label's value, '' where the object has none of that name."""
    return str((item["metadata"].get("labels") or {}).get(name, ""))
