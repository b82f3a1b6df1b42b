"""The resource's status from what was seen, the plan and the outcome. Pure: an idle pass gives an equal status."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tandem_operator.api.conditions import CONDITIONS, READY, STALLED
from tandem_operator.api.constants import COMPONENT_WORKER, LABEL_COMPONENT
from tandem_operator.api.status import (
    AlternativeStatus,
    ChangeStatus,
    Condition,
    DecisionStatus,
    ObservedStatus,
    PoolStatus,
    PredictedStatus,
    RoleCounts,
    Status,
    TargetStatus,
    TransferStatus,
)
from tandem_operator.loop.faults import is_ready
from tandem_operator.loop.judgements import LIVE, judge_all, serving_roles
from tandem_operator.loop.modes import mode_status
from tandem_operator.loop.observe import label_of
from tandem_operator.loop.sleep import sleep_status
from tandem_operator.plan.facts import Action, Answer, Decision, Prediction, Target, Verdict, Window
from tandem_operator.templates import children
from tandem_operator.templates.model import REVISION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tandem_operator.loop.observe import Seen
    from tandem_operator.loop.planned import Plan
    from tandem_operator.loop.refs import Outcome

ORDER = tuple(kind.name for kind in CONDITIONS)
OBSERVED_EVERY = timedelta(minutes=1)
MOVED = 0.10  # a value that moved by more than this is news
# Holds that only say that the last move is not over: the move's own words stay.
IN_A_MOVE = frozenset({"MoveOpen", "Cooldown", "WindowFilling"})
MAX_ALTERNATIVES = 16
MAX_CHANGES = 64
LONGEST_PERIOD = timedelta(seconds=1800)  # of periodSeconds
AT_REST = frozenset({"Suspended", "Asleep"})
# Reasons whose message quotes the scheduler or the API server, or says which pools it is about.
QUOTING = frozenset({"Unschedulable", "PodsRefused", "PodsNotReady", "WithinBounds"})
# Reasons whose message has no figure that changes by itself: it is always what is true now.
LASTING = frozenset({"AtMaximum", "BudgetExhausted", "QuotaExhausted"})
NUMBERS = re.compile(r"[0-9]+")


def status_of(seen: Seen, plan: Plan, outcome: Outcome, now: datetime) -> Status:
    """The whole status. Live numbers alone change it at most once a minute, and only when they moved."""
    old = seen.status
    generation = seen.resource.metadata.generation
    verdicts = judge_all(seen, plan, outcome, now)
    decision = decision_status(old.decision, plan, now)
    quiet = conditions_of(old, verdicts, generation, now, live=False)
    newest = seen.facts.history[-1] if seen.facts.history else None
    changed = quiet != old.conditions or decision != old.decision
    rewrite = newest is not None and (changed or has_moved(old.observed, newest, now))
    pools = {pool.name: pool_status(seen, plan, pool.name) for pool in seen.resource.spec.pools}
    roles = RoleCounts(prefill=serving_roles(seen)[0], decode=serving_roles(seen)[1])
    # What is written for its counts must not tell former ones in its words.
    counted = (pools, roles) != (old.pools, old.roles)
    return Status(
        observed_generation=generation,
        endpoint=children.endpoint(seen.owner, seen.resource.spec),
        model_revision=revision_that_runs(seen),
        mode=mode_status(seen, plan.mode, now),
        sleep=sleep_status(seen, plan.sleep, now),
        pools=pools,
        roles=roles,
        ratio=":".join(map(str, serving_roles(seen))),
        observed=observed_status(newest) if rewrite and newest else old.observed,
        transfer=transfer_status(old.transfer, seen, rewrite=rewrite),
        decision=decision,
        conditions=conditions_of(old, verdicts, generation, now, live=rewrite or counted),
    )


def revision_that_runs(seen: Seen) -> str | None:
    """The model's revision of the ready workers; both, by comma, while a rollout replaces one by the other."""
    ready = [pod for pod in seen.pods if label_of(pod, LABEL_COMPONENT) == COMPONENT_WORKER and is_ready(pod)]
    found = {(pod["metadata"].get("annotations") or {}).get(REVISION, "") for pod in ready}
    return ",".join(sorted(found - {""}))[:128] or None


def refused_status(old: Status, generation: int, reason: str, message: str, now: datetime) -> Status:
    """The status of a resource that cannot be carried out: the intent stays, so that an edit heals it."""
    verdicts = {READY: Verdict(Answer.NO, "Stalled", message), STALLED: Verdict(Answer.YES, reason, message)}
    conditions = conditions_of(old, verdicts, generation, now, live=True)
    return old.model_copy(update={"observed_generation": generation, "conditions": conditions})


def conditions_of(
    old: Status, verdicts: Mapping[str, Verdict], generation: int, now: datetime, *, live: bool
) -> list[Condition]:
    """Conditions in a fixed order. Without `live`, a message of live numbers stays while its answer and reason do."""
    return [
        condition_of(old.condition(kind), kind, verdicts[kind], generation, now, keep=not live and kind in LIVE)
        for kind in ORDER
        if kind in verdicts
    ]


def condition_of(
    old: Condition | None, kind: str, verdict: Verdict, generation: int, now: datetime, *, keep: bool
) -> Condition:
    """One condition; its transition time moves only with its status."""
    same = old is not None and old.status == verdict.answer
    kept = keep and old is not None and same and old.reason == verdict.reason and is_alike(old.message, verdict)
    return Condition(
        type=kind,
        status=verdict.answer.value,
        observed_generation=generation,
        last_transition_time=old.last_transition_time if old is not None and same else now,
        reason=verdict.reason,
        message=old.message if old is not None and kept else verdict.message,
    )


def is_alike(old: str, new: Verdict) -> bool:
    """Say both the same, numbers apart? Words are followed where they change, in messages that are not all numbers."""
    if new.reason in LASTING:
        return old == new.message
    return new.reason not in QUOTING or NUMBERS.sub("", old) == NUMBERS.sub("", new.message)


def decision_status(old: DecisionStatus | None, plan: Plan, now: datetime) -> DecisionStatus | None:
    """The decision on record. `id` and `at` are the target's: a hold confirms a target and does not make it younger."""
    new = plan.decision
    if new is None:
        return old
    target = target_status(new.target)
    # What was suspended starts anew: its workers get the time that those of a fresh decision get.
    resumed = old is not None and old.reason in AT_REST and new.reason not in AT_REST
    if old is not None and old.target == target and not resumed:
        in_a_move = new.action is Action.HOLD and new.reason in IN_A_MOVE and old.action != Action.HOLD.value
        if in_a_move or is_same_word(old, new):
            return old
        return spelled(new, target, old.id, old.at, old.changes)
    return spelled(new, target, next_id(old), now, changes_of(old, target, now))


def changes_of(old: DecisionStatus | None, target: TargetStatus, now: datetime) -> list[ChangeStatus]:
    """What was decided for pools within the longest period that a policy may count, this decision's part last."""
    if old is None:
        return []
    recent = [change for change in old.changes if now - change.at < LONGEST_PERIOD]
    new = [
        ChangeStatus(at=now, pool=pool, workers=count - old.target.pools[pool])
        for pool, count in target.pools.items()
        if count != old.target.pools.get(pool, count)
    ]
    return [*recent, *new][-MAX_CHANGES:]


def is_same_word(old: DecisionStatus, new: Decision) -> bool:
    """The same action for the same reason, whatever the numbers in its sentence; a new recommendation is a new word.

    Under Off the heading counts as well: what Auto would do, and why.
    """
    same = (old.action, old.reason) == (new.action.value, new.reason)
    if new.action is Action.RECOMMEND:
        return same and old.message == new.message
    return same and (new.reason != "RebalanceOff" or heading(old.message) == heading(new.message))


def heading(message: str) -> str:
    """What stands before a sentence's first colon."""
    return message.partition(":")[0]


def spelled(
    new: Decision, target: TargetStatus, number: str, at: datetime, changes: list[ChangeStatus]
) -> DecisionStatus:
    """A decision in the API's form."""
    return DecisionStatus(
        id=number,
        target=target,
        action=new.action.value,
        reason=new.reason,
        message=new.message,
        predicted=predicted_status(new.predicted),
        alternatives=[
            AlternativeStatus(
                target=target_status(other.target),
                predicted=predicted_status(other.predicted),
                gpus=other.gpus,
                rejected=other.rejected,
            )
            for other in new.alternatives[:MAX_ALTERNATIVES]
        ],
        at=at,
        changes=changes,
    )


def next_id(old: DecisionStatus | None) -> str:
    """The decisions of a resource are counted; a lost status begins again."""
    return str(int(old.id) + 1) if old is not None and old.id.isdigit() else "1"


def target_status(target: Target) -> TargetStatus:
    """The intent in the API's form."""
    return TargetStatus(pools=dict(target.pools), roles=RoleCounts(prefill=target.prefill, decode=target.decode))


def predicted_status(found: Prediction | None) -> PredictedStatus | None:
    """A prediction in the API's form; None where it says nothing: the API server makes null of an empty one."""
    if found is None or found == Prediction(None, None, None):
        return None
    return PredictedStatus(
        ttft_milliseconds=found.ttft_ms, tpot_milliseconds=found.tpot_ms, attainment_percent=percent(found.attainment)
    )


def pool_status(seen: Seen, plan: Plan, name: str) -> PoolStatus:
    """A pool's counts."""
    ready = next(pool.ready for pool in seen.facts.pools if pool.name == name)
    desired = 0 if seen.resource.spec.suspend else plan.target.pools.get(name, 0)
    return PoolStatus(desired=desired, ready=ready)


def transfer_status(old: TransferStatus | None, seen: Seen, *, rewrite: bool) -> TransferStatus | None:
    """How the KV cache travels; the bandwidth is a live number, and written as those are."""
    look, known = seen.look, old.bandwidth if old else None
    measured = f"{look.bandwidth / 1e9:.2g} GB/s" if look.bandwidth else None
    bandwidth = measured or known if rewrite or known is None else known
    return TransferStatus(backend=look.backend, bandwidth=bandwidth) if look.backend else old


def observed_status(window: Window) -> ObservedStatus:
    """A window in the API's form: integers and strings."""
    return ObservedStatus(
        ttft_milliseconds=window.ttft_ms,
        tpot_milliseconds=window.tpot_ms,
        attainment_percent=percent(window.attainment),
        requests_per_second=None if window.arrival_rate is None else f"{window.arrival_rate:.3f}",
        prompt_tokens=None if window.prompt_tokens is None else round(window.prompt_tokens),
        output_tokens=None if window.output_tokens is None else round(window.output_tokens),
        as_of=window.at,
    )


def percent(share: float | None) -> str | None:
    """`0.973` as `97.3`."""
    return None if share is None else f"{min(max(share, 0.0), 1.0) * 100:.1f}"


def has_moved(old: ObservedStatus | None, window: Window, now: datetime) -> bool:
    """Did a value move by more than a tenth, a minute after the last writing? A changed time alone is no change."""
    if old is None or old.as_of is None:
        return True
    if now - old.as_of < OBSERVED_EVERY:
        return False
    new = observed_status(window)
    return any(is_news(getattr(old, name), getattr(new, name)) for name in type(old).model_fields if name != "as_of")


def is_news(old: Any, new: Any) -> bool:
    """Did one value appear, vanish, or move by more than a tenth?"""
    if old is None or new is None:
        return (old is None) != (new is None)
    before, after = float(old), float(new)
    return abs(after - before) > MOVED * max(abs(before), 1e-9)
