"""Scale to zero in a pass: what is asked of the choice, and what is kept of it in the status."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tandem_operator.api.status import SleepStatus
from tandem_operator.plan.sleep import SleepCase, SleepChoice, choose_sleep

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.api.v1alpha1 import DisaggregatedInference
    from tandem_operator.loop.observe import Seen


def as_it_sleeps(resource: DisaggregatedInference) -> DisaggregatedInference:
    """A resource that sleeps as one whose workers are suspended; others as they are."""
    spec, known = resource.spec, resource.status.sleep
    if spec.suspend or spec.scale_to_zero is None or known is None or not known.asleep:
        return resource
    return resource.model_copy(update={"spec": spec.at_rest()})


def sleep_choice(seen: Seen, now: datetime) -> SleepChoice | None:
    """The change to make now; None unless the resource may sleep, and nothing else is on its way."""
    spec, known = seen.resource.spec, seen.status.sleep
    if spec.scale_to_zero is None or spec.written.suspend or seen.leaving:
        return None
    case = SleepCase(
        # While it sleeps its pools' limits say so, and the routers' figures are all that there is.
        observed=replace(seen.facts, limits=replace(seen.facts.limits, suspended=False)),
        after_s=spec.scale_to_zero.after_seconds,
        asleep=spec.asleep,
        since=known.since if known else None,
        held=seen.look.held,
        running=sum(seen.look.loads.values()) if seen.look.loads else None,
    )
    return choose_sleep(case, now)


def sleep_status(seen: Seen, choice: SleepChoice | None, now: datetime) -> SleepStatus | None:
    """Whether it sleeps, a change included; None where it never does."""
    spec, old = seen.resource.spec, seen.status.sleep
    if spec.scale_to_zero is None:
        return None
    if choice is None or choice.asleep == spec.asleep:
        return old
    start = None if seen.facts.start_s is None else round(seen.facts.start_s)
    known = start if start is not None else old.start_seconds if old else None
    words = f"{choice.message}; a start takes about {known} s" if known is not None else choice.message
    return SleepStatus(asleep=choice.asleep, since=now, start_seconds=known, message=words)
