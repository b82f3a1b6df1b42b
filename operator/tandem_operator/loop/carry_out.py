"""Carry a plan out, step by step. Each step is derived from what is seen, so a crash between any two converges."""

from __future__ import annotations

import logging
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import LABEL_POOL, LABEL_ROLE
from tandem_operator.edges.errors import AlreadyExistsError, ConflictError, NotFoundError
from tandem_operator.edges.kinds import MADE, OPTIONAL
from tandem_operator.loop.announce import announce_drift
from tandem_operator.loop.cache import is_owned, key_of
from tandem_operator.loop.drift import drift_of, stamp_of
from tandem_operator.loop.faults import condition_of, last_words, may_lack_key, quoted
from tandem_operator.loop.refs import Done, Outcome, Stalled, Waiting
from tandem_operator.loop.rollout import held_pools, paused_words, progress_words
from tandem_operator.loop.victims import COST, GOES_FIRST, choose_victims
from tandem_operator.plan.facts import Role
from tandem_operator.plan.flips import choose_flips
from tandem_operator.templates import children
from tandem_operator.templates.differ import has_all, lacking
from tandem_operator.templates.groups import GROUP, held, nodes_of
from tandem_operator.templates.model import pull_job
from tandem_operator.templates.monitoring import monitoring, name_of, wanted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from tandem_operator.loop.cache import Key
    from tandem_operator.loop.observe import Seen
    from tandem_operator.loop.planned import Plan
    from tandem_operator.loop.world import World

    Step = Callable[["Plan", Seen, World], Awaitable[Outcome]]

log = logging.getLogger(__name__)
Object = dict[str, Any]
DONE = Done()
CLAIM = "ResourceClaimTemplate"


async def carry_out(plan: Plan, seen: Seen, world: World) -> Outcome:
    """All steps in order, until one cannot be done now; none where all were found done for exactly this."""
    before = standing(plan, seen, world)
    if world.carried.get(seen.ref) == before:
        return DONE
    for step in STEPS:
        outcome = await step(plan, seen, world)
        if not isinstance(outcome, Done):
            return outcome
    if standing(plan, seen, world) == before:
        world.carried[seen.ref] = before
    return DONE


def standing(plan: Plan, seen: Seen, world: World) -> tuple[object, ...]:
    """All that the steps read, apart from settings: while it is the same, a step that was done is done."""
    resource = seen.resource
    spec = (seen.owner.uid, resource.metadata.generation, resource.spec.suspend, seen.accelerators)
    # A pause may come with time alone: nothing moves, and a worker has not come up for too long.
    return (*spec, plan.target, paused_words(seen), frozenset(world.absent), world.cache.stamp(seen.ref))


async def apply_access(plan: Plan, seen: Seen, world: World) -> Outcome:  # noqa: ARG001
    """Service accounts, the router's right to see pods, and who may reach workers."""
    return await apply_all(children.access(seen.owner), seen, world)


async def ensure_key(plan: Plan, seen: Seen, world: World) -> Outcome:  # noqa: ARG001
    """The workers' shared key: a Secret is never read, so it is made again only where a pod seems to lack it.

    One of that name is taken for the resource's own: its name comes from the uid (docs/operations/access.md).
    """
    made = (seen.owner.uid, seen.owner.key_secret)
    if made in world.keys_made and not may_lack_key(seen.pods, datetime.now(UTC)):
        return DONE
    try:
        await world.kube.create(children.transfer_key(seen.owner, secrets.token_hex(32)))
    except AlreadyExistsError:
        log.debug("%s has its transfer key", seen.owner.name)
    world.keys_made.add(made)
    return DONE


async def apply_services(plan: Plan, seen: Seen, world: World) -> Outcome:  # noqa: ARG001
    """The router's Service, and the workers'."""
    return await apply_all(children.services(seen.owner, seen.resource.spec), seen, world)


async def pull_model(plan: Plan, seen: Seen, world: World) -> Outcome:  # noqa: ARG001
    """Fill the shared cache before any worker of this revision starts; those of the former one serve on."""
    job = pull_job(seen.owner, seen.resource.spec.model, world.settings.images.worker)
    if job is None:
        return DONE
    outcome = await apply_one(job, seen, world)
    live = world.cache.find("Job", seen.owner.namespace, job["metadata"]["name"])
    return outcome if live is None or not isinstance(outcome, Done) else end_of_pull(live, seen, world)


def end_of_pull(job: Object, seen: Seen, world: World) -> Outcome:
    """Is the model there? What a failed pull's pod said last tells why it is not."""
    name, source = job["metadata"]["name"], seen.resource.spec.model.source
    if condition_of(job, "Complete").get("status") == "True":
        return DONE
    if condition_of(job, "Failed").get("status") == "True":
        pods = [pod for pod in world.cache.of(seen.ref, "Pod") if pod["metadata"]["name"].startswith(f"{name}-")]
        said = last_words(pods) or quoted(condition_of(job, "Failed").get("message", "it gave no reason"))
        return Stalled("ModelPullFailed", f"Job {name} failed: {said}; delete the Job to try again")
    return Waiting("PullingModel", f"Job {name} pulls {source} into the cache")


async def apply_claims(plan: Plan, seen: Seen, world: World) -> Outcome:  # noqa: ARG001
    """What pods claim, before there are pods."""
    manifests = children.claim_templates(seen.owner, seen.resource.spec, seen.accelerators)
    outcome: Outcome = DONE if CLAIM in world.absent else await apply_all(manifests, seen, world)
    if manifests and CLAIM in world.absent:
        return Stalled("DRAMissing", "spec.transfer.rdma.mode: DRA needs the API resource.k8s.io/v1, Kubernetes 1.34")
    return outcome


async def grow_pools(plan: Plan, seen: Seen, world: World) -> Outcome:
    """Every pool as its spec wants it, none smaller yet: what grows comes first."""
    await note_enlarged(plan, seen, world)
    replicas = {name: max(count, replicas_of(seen.pools.get(name))) for name, count in plan.target.pools.items()}
    if is_pinned(seen, replicas):
        # No room for both at once: the shrinking pool must give first.
        replicas = {n: min(replicas_of(seen.pools.get(n), replicas[n]), plan.target.pools[n]) for n in replicas}
        await mark_victims(plan, seen, world)
    outcome = await apply_all(pools_with(replicas, seen, world), seen, world)
    if GROUP in world.absent and (names := spread_pools(seen)):
        words = f"a replica of {', '.join(sorted(names))} spans nodes, and the cluster has no LeaderWorkerSet"
        return Stalled("LeaderWorkerSetMissing", f"{words}: install it, or choose fewer accelerators a worker")
    return outcome


async def note_enlarged(plan: Plan, seen: Seen, world: World) -> None:
    """Say where somebody, and no target, made a pool larger. It gets smaller as any other: the least loaded go."""
    larger = {name for name, count in plan.target.pools.items() if replicas_of(seen.pools.get(name)) > count}
    for manifest in pools_with(dict(plan.target.pools), seen, world) if larger else ():
        live = seen.pools.get(pool_of(manifest)) if pool_of(manifest) in larger else None
        words = live and drift_of(live, children.stamped(manifest), world.cache)
        if words:
            await announce_drift(world, seen.body, words, datetime.now(UTC))


async def apply_router(plan: Plan, seen: Seen, world: World) -> Outcome:  # noqa: ARG001
    """The front door."""
    router = children.router_deployment(seen.owner, seen.resource.spec, world.settings.images)
    return await apply_all([router], seen, world)


async def apply_budgets(plan: Plan, seen: Seen, world: World) -> Outcome:
    """Disruption budgets, by the roles of the target."""
    return await apply_all(children.budgets(seen.owner, seen.resource.spec, roles_in(plan, seen)), seen, world)


def roles_in(plan: Plan, seen: Seen) -> dict[str, int]:
    """Workers by role that the target wants."""
    both = sum(plan.target.pools.get(pool.name, 0) for pool in seen.facts.limits.pools if pool.role is Role.BOTH)
    found = {Role.PREFILL.value: plan.target.prefill, Role.DECODE.value: plan.target.decode}
    return ({} if not any(found.values()) else found) | ({Role.BOTH.value: both} if both else {})


async def flip_roles(plan: Plan, seen: Seen, world: World) -> Outcome:
    """Patch role labels, once all pods of the target exist: a pod that is still to come brings its pool's role."""
    limits = seen.facts.limits
    living = [worker for worker in seen.facts.workers if not worker.deleting]
    counts = {pool.name: sum(w.pool == pool.name for w in living) for pool in limits.pools}
    if counts != dict(plan.target.pools):
        return DONE
    flips = choose_flips(seen.facts.workers, plan.target, limits.min_prefill, limits.min_decode, limits.pools)
    by_name = {pod["metadata"]["name"]: pod for pod in seen.pods}
    for flip in flips:
        world.cache.put("Pod", await world.kube.patch_pod(by_name[flip.pod], labels={LABEL_ROLE: str(flip.to)}))
        log.info("%s/%s: %s -> %s", seen.owner.namespace, flip.pod, flip.from_, flip.to)
    # Looked at again at once: a flip may have been held back for a role's minimum.
    return Waiting("FlippingRoles", f"{len(flips)} workers change their role", 1.0) if flips else DONE


async def shrink_pools(plan: Plan, seen: Seen, world: World) -> Outcome:
    """Smaller pools get smaller once what grew is ready; the least loaded workers of the surplus role go."""
    shrinking = [name for name, count in plan.target.pools.items() if replicas_of(seen.pools.get(name)) > count]
    if not shrinking:
        return DONE
    lacking = [p.name for p in seen.facts.pools if p.name not in shrinking and p.ready < plan.target.pools[p.name]]
    if lacking:
        return Waiting("GrowingFirst", f"{', '.join(shrinking)} shrink when {', '.join(lacking)} are ready")
    await mark_victims(plan, seen, world)
    return await apply_all(pools_with(dict(plan.target.pools), seen, world), seen, world)


async def mark_victims(plan: Plan, seen: Seen, world: World) -> None:
    """Tell the ReplicaSet controller which pods go first, before the Deployments get smaller."""
    by_name = {pod["metadata"]["name"]: pod for pod in seen.pods}
    for pool in plan.target.pools:
        for victim in choose_victims(seen.facts.workers, pool, plan.target):
            pod = by_name[victim]
            if (pod["metadata"].get("annotations") or {}).get(COST) != GOES_FIRST:
                world.cache.put("Pod", await world.kube.patch_pod(pod, annotations={COST: GOES_FIRST}))


async def apply_monitoring(plan: Plan, seen: Seen, world: World) -> Outcome:  # noqa: ARG001
    """What the monitoring stack looks at, as far as this cluster serves its kinds."""
    settings = world.settings
    manifests = monitoring(seen.owner, seen.resource.spec, settings.metrics_window_seconds, settings.labels_of_monitors)
    return await apply_all([m for m in manifests if m["kind"] not in world.absent], seen, world)


async def prune(plan: Plan, seen: Seen, world: World) -> Outcome:
    """Delete owned children that the resource no longer has: a pool that was taken out of the spec.

    Pools of the mode that is no more in effect stay until those of the new one serve: no request is lost.
    """
    if seen.leaving and (lacking := [p.name for p in seen.facts.pools if p.ready < plan.target.pools[p.name]]):
        return Waiting("ChangingMode", f"{', '.join(seen.leaving)} go when {', '.join(lacking)} are ready")
    wanted = wanted_names(plan, seen, world.settings.images)
    for kind in MADE:
        for item in world.cache.of(seen.ref, kind):
            metadata = item["metadata"]
            if (kind, metadata["name"]) in wanted or metadata.get("deletionTimestamp"):
                continue
            if kind == CLAIM and progress_words(seen) is not None:
                continue  # a pod of the former template, made again, still claims by it
            if is_owned(item, seen.owner.uid):
                world.cache.pruned(key_of(kind, item))
                await world.kube.delete(item)
                log.info("pruned %s %s/%s", kind, seen.owner.namespace, metadata["name"])
    return DONE


STEPS: tuple[Step, ...] = (
    apply_access,
    ensure_key,
    apply_services,
    pull_model,
    apply_claims,
    grow_pools,
    apply_router,
    apply_budgets,
    flip_roles,
    shrink_pools,
    apply_monitoring,
    prune,
)


async def apply_all(manifests: Iterable[Object], seen: Seen, world: World) -> Outcome:
    """Apply the manifests whose live objects differ; stop at a name that somebody else has."""
    for manifest in manifests:
        outcome = await apply_one(manifest, seen, world)
        if not isinstance(outcome, Done):
            return outcome
    return DONE


async def apply_one(manifest: Object, seen: Seen, world: World) -> Outcome:
    """Apply one manifest, unless its live object is as wanted already or is not ours."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    live = world.cache.find(kind, seen.owner.namespace, name)
    if live is None:
        # The watch shows only what carries our labels, so a foreign object of this name must be asked for.
        live = await world.kube.get(kind, seen.owner.namespace, name)
    if live is not None and not is_owned(live, seen.owner.uid):
        return not_ours(kind, live, seen)
    wanted = children.stamped(manifest)
    if live is not None and is_as_wanted(live, wanted, world.stays.get(seen.ref, {})):
        return DONE
    drift = drift_of(live, wanted, world.cache)
    try:
        applied = await world.kube.apply(wanted, uid=live["metadata"]["uid"] if live else None)
    except (ConflictError, NotFoundError) as error:
        if isinstance(error, NotFoundError) and kind in OPTIONAL:
            world.absent.add(kind)  # its API was taken out since the last list
            return DONE
        return Waiting("Conflict", error.message, 1.0)
    world.cache.put(kind, applied)
    note_what_stays(applied, wanted, world.stays.setdefault(seen.ref, {}))
    if drift is not None and has_all(applied, wanted):
        await announce_drift(world, seen.body, drift, datetime.now(UTC))
    return DONE


def is_as_wanted(live: Object, wanted: Object, stays: Mapping[Key, object]) -> bool:
    """Neither the manifest nor the live object has moved since the last apply."""
    if stamp_of(live) != stamp_of(wanted):
        return False
    return has_all(live, wanted) or stays.get(key_of(wanted["kind"], live)) == moment_of(live)


def note_what_stays(applied: Object, wanted: Object, stays: dict[Key, object]) -> None:
    """Remember and say, once, what is otherwise even in the answer to an apply.

    Somebody else added to a list, or a webhook changes what is applied: applying it again and again would not help.
    """
    key = key_of(wanted["kind"], applied)
    if (path := lacking(applied, wanted)) is None:
        stays.pop(key, None)
        return
    if key not in stays:
        log.warning("%s %s/%s: %s is not all as applied: somebody else, or a webhook, has a say in it", *key, path)
    stays[key] = moment_of(applied)


def moment_of(item: Object) -> tuple[str, str, str]:
    """What of an object moves when somebody asks for something else: not its status, where it has a generation."""
    metadata = item["metadata"]
    return metadata["uid"], stamp_of(item), str(metadata.get("generation") or metadata["resourceVersion"])


def not_ours(kind: str, live: Object, seen: Seen) -> Outcome:
    """Somebody else's object has a child's name; one of a former resource of this name is about to be collected."""
    name = live["metadata"]["name"]
    former = any(o.get("kind") == seen.body.get("kind") and o.get("name") == seen.owner.name for o in _owners(live))
    if former or live["metadata"].get("deletionTimestamp"):
        return Waiting("FormerChild", f"{kind} {name} is of a former resource and is being deleted", 2.0)
    return Stalled("NameConflict", f"{kind} {name} exists and is somebody else's: delete it, or rename this resource")


def _owners(item: Object) -> list[Object]:
    owners: list[Object] = item["metadata"].get("ownerReferences") or []
    return owners


def pools_with(replicas: dict[str, int], seen: Seen, world: World) -> list[Object]:
    """The pools' Deployments with these replicas; none at all while the resource is suspended."""
    if seen.resource.spec.suspend:
        replicas = dict.fromkeys(replicas, 0)
    manifests = children.pools_of(seen.owner, seen.resource.spec, seen.accelerators, world.settings.images, replicas)
    waiting = held_pools(seen, {pool_of(m): m for m in manifests})
    return [held(m) if pool_of(m) in waiting else m for m in manifests]


def pool_of(manifest: Object) -> str:
    """The pool that a Deployment is of."""
    return str(manifest["metadata"]["labels"][LABEL_POOL])


def replicas_of(deployment: Object | None, absent: int = 0) -> int:
    """Replicas that a live Deployment asks for."""
    return absent if deployment is None else int(deployment["spec"].get("replicas", 1))


def is_pinned(seen: Seen, replicas: dict[str, int]) -> bool:
    """Would the pools, before any of them shrinks, be above the GPU budget?"""
    limits = seen.facts.limits
    used: dict[str, int] = {}
    for pool in limits.pools:
        used[pool.device.name] = used.get(pool.device.name, 0) + pool.gpus * replicas[pool.name]
    if limits.budget_gpus is not None and sum(used.values()) > limits.budget_gpus:
        return True
    return any(used.get(name, 0) > most for name, most in limits.budget_per_device.items())


def spread_pools(seen: Seen) -> frozenset[str]:
    """Pools whose replicas span nodes."""
    spec = seen.resource.spec
    return frozenset(p.name for p in spec.pools if nodes_of(spec, p, seen.accelerators[p.name]) > 1)


def wanted_names(plan: Plan, seen: Seen, images: children.Images) -> set[tuple[str, str]]:
    """(kind, name) of every child that the resource has."""
    names = {pool.name for pool in seen.resource.spec.pools} | {children.ROUTER}
    spread = spread_pools(seen)
    found = {(GROUP if part in spread else "Deployment", seen.owner.child(part)) for part in names}
    found |= {("PodDisruptionBudget", seen.owner.child(f"role-{role}")) for role in roles_in(plan, seen)}
    found |= {("PodDisruptionBudget", seen.owner.child(children.ROUTER))}
    found |= {("Service", seen.owner.child(part)) for part in (children.ROUTER, children.WORKERS)}
    found |= {("ServiceAccount", seen.owner.child(part)) for part in (children.ROUTER, children.WORKER)}
    found |= {(kind, name_of(kind, seen.owner)) for kind in wanted(seen.resource.spec)}
    if job := pull_job(seen.owner, seen.resource.spec.model, images.worker):
        found.add(("Job", job["metadata"]["name"]))
    claims = children.claim_templates(seen.owner, seen.resource.spec, seen.accelerators)
    found |= {(CLAIM, item["metadata"]["name"]) for item in claims}
    found |= {("NetworkPolicy", seen.owner.child(children.WORKERS))}
    return found | {("RoleBinding", seen.owner.child(children.ROUTER))}
