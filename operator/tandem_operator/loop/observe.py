"""From the cache and the fleet's look to what a plan depends on: read, never asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import COMPONENT_ROUTER, COMPONENT_WORKER, LABEL_COMPONENT, LABEL_POOL, LABEL_ROLE
from tandem_operator.api.v1alpha1 import DisaggregatedInference, InvalidResourceError, read
from tandem_operator.loop.cache import is_owned
from tandem_operator.loop.catalogue import accelerators_of
from tandem_operator.loop.faults import condition_of, is_ready
from tandem_operator.loop.modes import in_effect, leaving_of
from tandem_operator.loop.sleep import as_it_sleeps
from tandem_operator.plan.behavior import paced
from tandem_operator.plan.claims import Cap, capped, in_use, least_gpus, tighter
from tandem_operator.plan.facts import Change, Observed, PoolState, Role, Target, WorkerState
from tandem_operator.plan.limits import limits_of
from tandem_operator.plan.shapes import UnknownShapeError, find_shape
from tandem_operator.templates.engines.versions import check_version
from tandem_operator.templates.groups import GROUP, key_in, nodes_of
from tandem_operator.templates.names import KEY, Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.status import Status
    from tandem_operator.loop.fleet import Look
    from tandem_operator.loop.refs import Ref
    from tandem_operator.loop.world import World
    from tandem_operator.plan.facts import Limits, ModelShape, PoolLimits

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
    at: datetime
    facts: Observed
    autoscaler: str = ""  # its newest words on the first pod without a node
    leaving: tuple[str, ...] = ()  # pools of the mode that is no more in effect
    cap: Cap | None = None  # of the GPUs that all resources share
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


def parse_known(world: World, ref: Ref, body: Object) -> DisaggregatedInference:
    """The same, of a body that was parsed before: its version says whether it is the same one."""
    version = f"{body['metadata']['uid']} {body['metadata']['resourceVersion']}"
    known = world.parsed.get(ref)
    if known is None or known[0] != version:
        known = world.parsed[ref] = (version, parse(body))
    return known[1]


def observe(
    world: World, ref: Ref, body: Object, resource: DisaggregatedInference, now: datetime, *, shared: bool = True
) -> Seen:
    """All facts for one pass, without the fleet's cap where not `shared`.

    Raises UnknownAcceleratorError, UnknownDTypeError and InvalidResourceError.
    """
    uid, cache, look = body["metadata"]["uid"], world.cache, world.fleet.look(ref)
    accelerators = accelerators_of(resource.spec, world.catalogue)
    check_version(resource.spec)
    for pool in resource.spec.pools:
        nodes_of(resource.spec, pool, accelerators[pool.name])  # said before anything is touched
    # Where a pool has both for a moment, the groups count: a Deployment that is not wanted goes at the pass' end.
    owned = [item for kind in ("Deployment", GROUP) for item in cache.of(ref, kind) if is_owned(item, uid)]
    pods = tuple(pod for pod in cache.of(ref, "Pod") if label_of(pod, LABEL_COMPONENT))  # not of Jobs
    workers = tuple(worker_state(p, look.loads, now) for p in pods if label_of(p, LABEL_COMPONENT) == COMPONENT_WORKER)
    pools = {label_of(item, LABEL_POOL): item for item in owned if label_of(item, LABEL_POOL)}
    resource = as_it_sleeps(in_effect(resource, pools))
    leaving = leaving_of(resource.spec, pools)
    decision = resource.status.decision
    facts = Observed(
        limits=limits_at(resource, world.catalogue, look.bandwidth, now),
        pools=tuple(pool_state(pool.name, pools.get(pool.name), workers) for pool in resource.spec.pools),
        workers=workers,
        target=target_of(resource.status),
        decided_at=decision.at if decision else None,
        metrics=look.metrics,
        history=look.history,
        model=look.model or known_shape(resource.spec),
        leaving_gpus=sum(leaving.values()),
        start_s=start_of(p for p in pods if label_of(p, LABEL_COMPONENT) == COMPONENT_WORKER),
    )
    cap = tighter(cap_of(world, ref, facts), room_at(world, ref, look.number)) if shared else None
    return Seen(
        cap=cap,
        autoscaler=heard.words if (heard := world.heard.get(ref)) else "",
        leaving=tuple(sorted(leaving)),
        ref=ref,
        body=body,
        resource=resource,
        owner=owner_of(ref, uid, pools.values()),
        accelerators=accelerators,
        pools=pools,
        router=next((item for item in owned if item["metadata"]["name"] == f"{ref.name}-{COMPONENT_ROUTER}"), None),
        pods=pods,
        look=look,
        at=now,
        facts=replace(facts, limits=capped(facts.limits, cap)),
        absent=frozenset(world.absent),
    )


def owner_of(ref: Ref, uid: str, pools: Iterable[Object]) -> Owner:
    """The resource as its children name it; one that the first version made keeps its transfer key.

    A name that is neither is somebody's edit, which is repaired and decides nothing.
    """
    owner = Owner(ref.name, ref.namespace, uid)
    named = {key_in(item) for item in pools} & {owner.child(KEY), owner.key_secret}
    return replace(owner, former_key=named == {owner.child(KEY)})


def cap_of(world: World, ref: Ref, facts: Observed) -> Cap | None:
    """The fleet's cap; before the first sharing it is what the resource has: nobody grows on a guess."""
    if not world.settings.fleet_gpus:
        return None
    first = Cap(max(in_use(facts), least_gpus(facts.limits)), "the fleet's budget was not shared yet")
    return world.caps.get(ref, first)


def room_at(world: World, ref: Ref, look: int) -> Cap | None:
    """What the quotas left when they were asked at this very look; None where they were not."""
    number, room = world.rooms.get(ref, (look, None))
    return room if number == look else None


def known_shape(spec: Spec) -> ModelShape | None:
    """The published shape of the model's name, for engines whose workers do not report one; None: not known."""
    try:
        return find_shape(spec.model.source, spec.model.dtype)
    except UnknownShapeError:
        return None


def limits_at(
    resource: DisaggregatedInference,
    accelerators: Mapping[str, Accelerator],
    bandwidth: float | None,
    now: datetime,
) -> Limits:
    """The spec's bounds, and what is left of its scaling policies by the changes on record."""
    limits, decision = limits_of(resource.spec, accelerators), resource.status.decision
    changes = [Change(c.at, c.pool, c.workers) for c in decision.changes] if decision else []
    sizes = decision.target.pools if decision else {}
    limits = replace(limits, pools=tuple(linked(pool, bandwidth) for pool in limits.pools))
    return paced(limits, resource.spec.rebalance.behavior, sizes, changes, now)


def linked(pool: PoolLimits, bandwidth: float | None) -> PoolLimits:
    """The pool with the link that its workers measured, where they did."""
    return replace(pool, device=replace(pool.device, measured_link=bandwidth)) if bandwidth else pool


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


def start_of(workers: Iterable[Object]) -> float | None:
    """How long a replica takes from its creation until it serves, image and model loaded; None: none is known.

    The lower median of the workers that are ready and were never started again: one whose readiness failed for a moment
    long after its start looks like a slow one, and is outvoted.
    """
    times = sorted(seconds for pod in workers if (seconds := seconds_to_ready(pod)) is not None)
    return times[(len(times) - 1) // 2] if times else None


def seconds_to_ready(pod: Object) -> float | None:
    """From a pod's creation to its readiness; None where it is not ready or has begun anew since."""
    since = condition_of(pod, "Ready").get("lastTransitionTime")
    restarts = sum(status.get("restartCount", 0) for status in pod.get("status", {}).get("containerStatuses") or [])
    if not since or restarts or not is_ready(pod):
        return None
    created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    return max((datetime.fromisoformat(since) - created).total_seconds(), 0.0)


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
