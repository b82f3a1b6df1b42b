"""One pass: parse, observe, plan, write the intent, carry out, write status if it changed."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tandem_operator.api.catalogue import UnknownAcceleratorError, UnknownDTypeError
from tandem_operator.api.status import Status
from tandem_operator.api.v1alpha1 import InvalidResourceError
from tandem_operator.edges.errors import ApiError, ConflictError, NotFoundError
from tandem_operator.edges.events import Event
from tandem_operator.edges.kinds import RESOURCE
from tandem_operator.loop.announce import announce
from tandem_operator.loop.carry_out import carry_out, standing
from tandem_operator.loop.growth import listen
from tandem_operator.loop.leader import LEASE_S
from tandem_operator.loop.modes import changing, choice_of
from tandem_operator.loop.observe import Seen, observe, parse_known
from tandem_operator.loop.planned import Plan, is_possible, make_plan
from tandem_operator.loop.quota import note_quota
from tandem_operator.loop.refs import BEGUN, Done, Failed, Outcome, Ref, Stalled, Waiting
from tandem_operator.loop.sleep import sleep_choice
from tandem_operator.loop.status import decision_status, refused_status, status_of
from tandem_operator.loop.transitions import events_between
from tandem_operator.plan.judge import is_move
from tandem_operator.templates.overlay import TemplateRefusedError

if TYPE_CHECKING:
    from tandem_operator.loop.world import World

log = logging.getLogger(__name__)
Object = dict[str, Any]


async def reconcile(world: World, ref: Ref) -> Outcome:
    """A pass, timed; a resource that is gone or going is left to the cluster's garbage collector."""
    body = world.cache.resource(ref)
    if body is None or body["metadata"].get("deletionTimestamp"):
        forget(world, ref)
        return Done()
    began = time.monotonic()
    try:
        now = datetime.now(UTC)
        outcome = await left_to_other(world, ref, body, now) or await one_pass(world, ref, body, now)
    except NotFoundError:
        outcome = Done()  # deleted meanwhile; the watch will say so
    except ConflictError as error:
        outcome = Waiting("Conflict", error.message, 1.0)
    except ApiError as error:
        outcome = Failed(error.reason, error.message)
    world.metrics.reconcile_seconds.labels(type(outcome).__name__).observe(time.monotonic() - began)
    return outcome


async def left_to_other(world: World, ref: Ref, body: Object, now: datetime) -> Outcome | None:
    """Where the resource's namespace has an operator of its own: one event and no status, which is the other's."""
    if world.neighbours is None or not (holder := await world.neighbours.holder_in(ref.namespace)):
        world.left.discard(ref)
        return None
    words = f"{holder} holds the Lease of namespace {ref.namespace}: this cluster-wide operator stays out of it"
    if ref not in world.left:
        world.left.add(ref)
        await announce(world, body, Event("LeftToOther", "Reconcile", words), now)
    return Waiting("LeftToOther", words, LEASE_S)


async def one_pass(world: World, ref: Ref, body: Object, now: datetime) -> Outcome:
    """The pass itself; raises ApiError when not even the status can be written."""
    await listen(world, ref)
    seen = read_all(world, ref, body, now)
    if isinstance(seen, Stalled):
        return await refuse(world, ref, body, seen, now)
    look = seen.look.number
    edited = seen.status.observed_generation != seen.resource.metadata.generation
    ask = edited or world.asked.get(ref, 0) != look
    seen, plan = await planned(world, seen, now, ask=ask)
    if ask and (sleep := sleep_choice(seen, now)) is not None:
        return await turn_over(world, seen, body, replace(plan, sleep=sleep), now)
    note_decision(world, seen, plan, now)
    # The intent is written before any child is touched: a crash from here on is carried on from the status.
    if decision_status(seen.status.decision, plan, now) != seen.status.decision:
        # Judged as with its target, so that the steps' end changes no more of it than they did: one write less.
        intent = status_of(replace(seen, facts=replace(seen.facts, target=plan.target)), plan, begun(seen), now)
        body = await write_status(world, body, seen.status, intent, now)
        if body["metadata"]["generation"] != seen.resource.metadata.generation:
            return Waiting("Edited", "the spec changed while it was judged", 0.1)
    world.asked[ref] = look
    if changing(seen, plan.mode):
        return Waiting("ModeChanged", "the pools of the other mode are in effect", 0.1)
    before = standing(plan, seen, world)
    outcome = await end_of(plan, seen, world)
    # Judged on what the steps left behind, not on what they found.
    moved = body is not seen.body or standing(plan, seen, world) != before
    after = observe(world, ref, body, parse_known(world, ref, body), now) if moved else seen
    found = status_of(after, plan, outcome, now)
    await write_status(world, body, after.status, found, now)
    world.metrics.show_target(ref, plan.target)
    world.metrics.show_status(ref, found)
    return outcome


async def planned(world: World, seen: Seen, now: datetime, *, ask: bool) -> tuple[Seen, Plan]:
    """The plan; made once more, with what the quotas leave, where it wants more than they do."""
    plan = make_plan(seen, now, ask=ask, mode=choice_of(seen, world.catalogue, now) if ask else None)
    if plan.decision is None or not await note_quota(world, seen, plan):
        return seen, plan
    seen = observe(world, seen.ref, seen.body, parse_known(world, seen.ref, seen.body), now)
    return seen, make_plan(seen, now, ask=ask, mode=plan.mode)


def begun(seen: Seen) -> Outcome:
    """Before any child follows the spec's newest generation, nobody may take the resource for done (kstatus)."""
    generation = seen.resource.metadata.generation
    if seen.status.observed_generation == generation:
        return Done()
    return Waiting(BEGUN, f"carrying out generation {generation}")


async def turn_over(world: World, seen: Seen, body: Object, plan: Plan, now: datetime) -> Outcome:
    """Write that the resource falls asleep, or wakes; the next pass carries it out. The intent comes first, as ever."""
    stands = replace(plan, target=seen.facts.target or plan.target, decision=None, mode=None)
    await write_status(world, body, seen.status, status_of(seen, stands, begun(seen), now), now)
    return Waiting("Sleep", plan.sleep.message if plan.sleep else "", 0.1)


def read_all(world: World, ref: Ref, body: Object, now: datetime) -> Seen | Stalled:
    """All facts, or why the resource cannot be carried out."""
    try:
        resource = parse_known(world, ref, body)
        return observe(world, ref, body, resource, now)
    except (InvalidResourceError, UnknownDTypeError) as error:
        return Stalled("InvalidSpec", str(error))
    except UnknownAcceleratorError as error:
        return Stalled("UnknownAccelerator", str(error))


async def end_of(plan: Plan, seen: Seen, world: World) -> Outcome:
    """How carrying out ended, refusals of the API server included."""
    if not is_possible(seen, plan):
        return Stalled("InvalidSpec", plan.decision.message if plan.decision else "the target fits no pool")
    try:
        return await carry_out(plan, seen, world)
    except TemplateRefusedError as error:
        return Stalled("TemplateRefused", str(error))
    except ConflictError as error:
        return Waiting("Conflict", error.message, 1.0)
    except ApiError as error:
        if error.reason == "Invalid":  # no retry makes the same child valid
            return Stalled("InvalidSpec", error.message)
        return Failed(error.reason, error.message)


async def refuse(world: World, ref: Ref, body: Object, why: Stalled, now: datetime) -> Outcome:
    """Say in the status why nothing is done; children stay as they are."""
    old = status_in(body)
    generation = body["metadata"].get("generation", 0)
    found = refused_status(old, generation, why.reason, why.message, now)
    await write_status(world, body, old, found, now)
    world.metrics.show_status(ref, found)
    return why


def status_in(body: Object) -> Status:
    """The status of a body, empty where it cannot be read."""
    try:
        return Status.model_validate(body.get("status") or {})
    except ValueError:
        return Status()


async def write_status(world: World, body: Object, old: Status, new: Status, now: datetime) -> Object:
    """Write the status if it differs, then post what turned; gives the resource as it is afterwards.

    Fields that a newer CRD fills in, and conditions of others, stay whatever is applied: that is no difference.
    """
    ref, wanted, live = Ref(*(body["metadata"][k] for k in ("namespace", "name"))), new.to_wire(), body.get("status")
    if wanted == (live or {}) or world.told.get(ref) == (wanted, live):
        return body
    written = await world.kube.write_status(body, wanted)
    world.metrics.status_writes.inc()
    world.cache.put(RESOURCE, written)
    note_told(world, ref, wanted, written.get("status"))
    for event in events_between(old, new):
        await announce(world, body, event, now)
    return written


def note_told(world: World, ref: Ref, wanted: Object, found: Object | None) -> None:
    """Remember what the API server made of a status that is not all that it has now."""
    world.told.pop(ref, None)
    if found is not None and found != wanted:
        world.told[ref] = wanted, found


def note_decision(world: World, seen: Seen, plan: Plan, now: datetime) -> None:
    """Record, count and log a decision that was asked for."""
    if plan.decision is None:
        return
    decision, of = plan.decision, (seen.ref.namespace, seen.ref.name)
    if changing(seen, plan.mode) is None:  # what is on record can be decided again from its facts
        world.recorder.write(seen.ref, seen.facts, now, decision)
    world.metrics.decisions.labels(*of, str(decision.action), decision.reason).inc()
    level = logging.INFO if is_move(decision.action) else logging.DEBUG
    log.log(level, "%s: %s %s: %s", seen.ref, decision.action, decision.reason, decision.message)


def forget(world: World, ref: Ref) -> None:
    """The resource is gone: nothing of it is kept."""
    world.carried.pop(ref, None)
    world.heard.pop(ref, None)
    world.left.discard(ref)
    world.rooms.pop(ref, None)
    world.asked.pop(ref, None)
    world.parsed.pop(ref, None)
    world.stays.pop(ref, None)
    world.told.pop(ref, None)
    world.metrics.forget(ref)
