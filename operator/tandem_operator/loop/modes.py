"""Mode Auto in a pass: which pools are in effect, what is asked of the choice, and what is kept of it in the status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tandem_operator.api.conditions import MODE_CHOSEN
from tandem_operator.api.status import ModeStatus
from tandem_operator.plan.facts import Action, Answer, Decision, Verdict
from tandem_operator.plan.limits import limits_of
from tandem_operator.plan.modes import A_DAY, MOST_CHANGES, UNOBSERVED_MODE, ModeCase, ModeChoice, choose_mode
from tandem_operator.plan.sizing import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.v1alpha1 import DisaggregatedInference
    from tandem_operator.loop.observe import Seen

    Object = dict[str, Any]


def in_effect(resource: DisaggregatedInference, live: Collection[str]) -> DisaggregatedInference:
    """A resource of mode Auto as one of the mode in effect, others as they are; `live`: pools that there are."""
    if resource.spec.mode != "Auto":
        return resource
    return resource.model_copy(update={"spec": resource.spec.in_mode(mode_of(resource, live).value)})


def mode_of(resource: DisaggregatedInference, live: Collection[str]) -> Mode:
    """By the status; where it has none (lost, or Auto is new), the mode whose pools run, else the safe one."""
    if (known := resource.status.mode) is not None:
        return Mode(known.effective)
    shared = {pool.name for pool in resource.spec.pools if pool.role == "Both"}
    return Mode.DISAGGREGATED if live and not shared & set(live) else UNOBSERVED_MODE


def leaving_of(spec: Spec, live: Mapping[str, Object]) -> dict[str, int]:
    """Pools of the mode that is no more in effect and still have their Deployment, with the GPUs that they hold."""
    stay = {pool.name for pool in spec.pools}
    return {
        pool.name: pool.parallelism.gpus * int(live[pool.name]["spec"].get("replicas", 1))
        for pool in spec.written.pools
        if pool.name in live and pool.name not in stay
    }


def choice_of(seen: Seen, catalogue: Mapping[str, Accelerator], now: datetime) -> ModeChoice | None:
    """What is to be said of the mode now; None unless it is the operator's to choose, and there is news."""
    spec, known = seen.resource.spec, seen.status.mode
    if spec.written.mode != "Auto":
        return None
    case = ModeCase(
        observed=seen.facts,
        mode=Mode(spec.mode),
        pools=limits_of(spec.written, catalogue).pools,
        changes=tuple(known.changes) if known else (),
        leaving=bool(seen.leaving),
    )
    return choose_mode(case, now)


def changing(seen: Seen, choice: ModeChoice | None) -> Decision | None:
    """The decision that changes the mode; None where it stays."""
    if choice is None or choice.target is None or choice.mode == seen.resource.spec.mode:
        return None
    return Decision(Action.SCALE, "ModeChanged", choice.verdict.message, choice.target, choice.predicted)


def judge_mode(seen: Seen, choice: ModeChoice | None) -> Verdict | None:
    """The condition ModeChosen: the choice's words; without news those that stand."""
    if seen.resource.spec.written.mode != "Auto":
        return None
    if choice is not None:
        return choice.verdict
    if (old := seen.status.condition(MODE_CHOSEN)) is not None:
        return Verdict(Answer(old.status), old.reason, old.message)
    return Verdict(Answer.UNKNOWN, "Unobserved", f"{seen.resource.spec.mode}: nothing was observed yet")


def mode_status(seen: Seen, choice: ModeChoice | None, now: datetime) -> ModeStatus | None:
    """The mode in effect, a change included."""
    spec, old = seen.resource.spec, seen.status.mode
    if spec.written.mode != "Auto":
        return None
    changes = old.changes if old else []
    if changing(seen, choice) is None:
        return old or ModeStatus(effective=Mode(spec.mode).value, changes=changes)
    recent = [at for at in changes if now - at < A_DAY]
    return ModeStatus(effective=choice.mode.value if choice else "Colocated", changes=[*recent, now][-MOST_CHANGES:])
