"""The conditions of one resource as verdicts: pure, from what was seen, the plan and how the pass ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tandem_operator.api.conditions import (
    KV_TRANSFER_READY,
    METRICS_AVAILABLE,
    MODE_CHOSEN,
    MONITORING_READY,
    READY,
    REBALANCING,
    RECONCILING,
    SCALING_LIMITED,
    SLO_MET,
    STALLED,
)
from tandem_operator.api.constants import COMPONENT_ROUTER, LABEL_COMPONENT
from tandem_operator.loop.faults import Fault, is_ready, refused_fault, scheduling_fault, stalling_fault
from tandem_operator.loop.modes import judge_mode
from tandem_operator.loop.refs import BEGUN, Failed, Outcome, Stalled, Waiting
from tandem_operator.loop.rollout import all_workers, fault_of_new, live_digests, paused_words, progress_words
from tandem_operator.plan.facts import Answer, Role, Verdict
from tandem_operator.plan.judge import judge_metrics, judge_scaling, judge_slo
from tandem_operator.templates.monitoring import APIS, wanted

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.loop.observe import Seen
    from tandem_operator.loop.planned import Plan

Object = dict[str, Any]
# Their messages carry live numbers: a changed message alone is no reason to write.
LIVE = frozenset({METRICS_AVAILABLE, MODE_CHOSEN, SLO_MET, SCALING_LIMITED})


def judge_all(seen: Seen, plan: Plan, outcome: Outcome, now: datetime) -> dict[str, Verdict]:
    """All conditions by type; Reconciling and Stalled only where they are True (kstatus: abnormal-true)."""
    stalled = judge_stalled(seen, outcome)
    transfer = judge_transfer(seen)
    serving = judge_serving(seen)
    found = {
        READY: judge_ready(seen, serving, transfer, stalled),
        METRICS_AVAILABLE: judge_metrics(seen.facts, now),
        SLO_MET: judge_slo(seen.facts, now, plan.decision),
        SCALING_LIMITED: judge_limits(seen, now),
        REBALANCING: judge_rebalancing(seen, plan, serving),
        KV_TRANSFER_READY: transfer,
    }
    if (watched := judge_monitoring(seen)) is not None:
        found[MONITORING_READY] = watched
    if (mode := judge_mode(seen, plan.mode)) is not None:
        found[MODE_CHOSEN] = mode
    if not seen.look.number:
        # What the spec alone answers needs no memory, which is of another spec perhaps.
        found |= {kind: v for kind, v in remembered(seen).items() if found[kind].answer is Answer.UNKNOWN}
    if stalled is not None:
        found[STALLED] = stalled
    elif (progress := judge_progress(seen, serving, outcome)) is not None:
        found[RECONCILING] = progress
    return found


def remembered(seen: Seen) -> dict[str, Verdict]:
    """Before Prometheus is asked for the first time, what the status says of it stands: a restart is no news."""
    old = (seen.status.condition(kind) for kind in (METRICS_AVAILABLE, SLO_MET, KV_TRANSFER_READY))
    return {
        c.type: Verdict(Answer(c.status), c.reason, c.message) for c in old if c is not None and c.reason != "NotRDMA"
    }


def judge_stalled(seen: Seen, outcome: Outcome) -> Verdict | None:
    """What only an edit heals: said by the pass itself, or by a pod."""
    fault = stalling_fault(seen.pods)
    if (paused := paused_words(seen)) is not None:
        fault = Fault("RolloutPaused", paused)
    elif fault is not None and progress_words(seen) is not None and fault_of_new(seen, live_digests(seen)) is None:
        fault = None  # of a worker that is being replaced
    if isinstance(outcome, Stalled):
        fault = Fault(outcome.reason, outcome.message)
    return None if fault is None else Verdict(Answer.YES, fault.reason, fault.message)


def judge_serving(seen: Seen) -> Verdict:
    """Is there a ready router, and a ready worker for each role?"""
    prefill, decode = serving_roles(seen)
    routers = sum(is_ready(p) for p in seen.pods if p["metadata"]["labels"].get(LABEL_COMPONENT) == COMPONENT_ROUTER)
    wanted = seen.resource.spec.router.replicas
    words = f"{prefill} prefill and {decode} decode workers and {routers} of {wanted} routers serve"
    lacking = [name for name, count in (("router", routers), ("prefill", prefill), ("decode", decode)) if not count]
    if lacking:
        return Verdict(Answer.NO, "NoReadyWorkers", f"{words}: none of {', '.join(lacking)}")
    return Verdict(Answer.YES, "Serving", words)


def serving_roles(seen: Seen) -> tuple[int, int]:
    """(prefill, decode) ready workers; one that does both counts in each."""
    ready = [worker.role for worker in seen.facts.workers if worker.ready]
    both = ready.count(Role.BOTH)
    return ready.count(Role.PREFILL) + both, ready.count(Role.DECODE) + both


def judge_transfer(seen: Seen) -> Verdict:
    """Does the KV cache travel as the spec demands? `require: RDMA` never settles for TCP."""
    transfer = seen.resource.spec.transfer
    if seen.resource.spec.mode == "Colocated":
        return Verdict(Answer.YES, "NotNeeded", "colocated workers keep their KV cache to themselves")
    if transfer.require == "RDMA" and (words := no_rdma(seen)) is not None:
        return Verdict(Answer.NO, "NotRDMA", f"transfer.require is RDMA, but {words}, or require Any")
    if seen.look.backend is None:
        return Verdict(Answer.UNKNOWN, "NoTransferYet", "no worker has reported its transfer backend yet")
    return Verdict(Answer.YES, "Connected", f"the KV cache travels over {seen.look.backend}")


OVER_TCP = (
    "the KV cache travels over tcp, at least of workers with the series "
    'tandem_transfer_backend_info{backend="tcp"} or tandem_kv_transfer_copied_bytes_total above 0: choose an '
    "RDMA backend, give workers more pages"
)
NO_DEVICE = "transfer.rdma.mode is None: workers have no RDMA device, and go over TCP without a word: choose a mode"


def no_rdma(seen: Seen) -> str | None:
    """Why the KV cache cannot travel, or does not travel, by RDMA, and what would help; None: nothing says so."""
    spec = seen.resource.spec
    backend, mode, is_tandem = spec.transfer.backend, spec.transfer.rdma.mode, spec.engine.name == "tandem"
    reasons = {
        OVER_TCP: (seen.look.backend or backend) == "tcp",
        NO_DEVICE: mode == "None" and backend != "shm",  # shm: between workers of one machine, no wire at all
        "tandem's mooncake uses TCP alone: choose nixl": is_tandem and backend == "mooncake",
        "tandem's nixl does not speak EFA, and goes over TCP there: choose engine vllm": is_tandem and mode == "EFA",
    }
    return next((words for words, holds in reasons.items() if holds), None)


def judge_monitoring(seen: Seen) -> Verdict | None:
    """Is there all that `spec.monitoring` asks for? A kind that the cluster does not serve is no error."""
    kinds = wanted(seen.resource.spec)
    if not kinds:
        return None
    missing = [f"{kind} (of {APIS[kind]})" for kind in kinds if kind in seen.absent]
    if missing:
        return Verdict(Answer.NO, "ApiMissing", f"this cluster does not serve {', '.join(missing)}")
    return Verdict(Answer.YES, "Made", f"{', '.join(kinds)} made")


def judge_ready(seen: Seen, serving: Verdict, transfer: Verdict, stalled: Verdict | None) -> Verdict:
    """Can clients be served? A rebalance never makes this False: it keeps a worker for each role."""
    if stalled is None and (rest := judge_rest(seen)) is not None:
        return rest
    if transfer.answer is Answer.NO:
        return Verdict(Answer.NO, "KVTransferNotReady", transfer.message)
    if serving.answer is Answer.YES:
        return serving
    if stalled is not None:
        return Verdict(Answer.NO, "Stalled", stalled.message)
    before = seen.status.condition(READY)
    same = seen.status.observed_generation == seen.resource.metadata.generation
    if before is not None and same and before.reason in {"Serving", "NoReadyWorkers"}:
        return serving
    return Verdict(Answer.UNKNOWN, "Progressing", serving.message)


def judge_rest(seen: Seen) -> Verdict | None:
    """Is nothing to be served, and is it so? Suspended by its spec, or asleep until a request comes."""
    if seen.resource.spec.asleep:
        words = seen.status.sleep.message if seen.status.sleep else "there are no workers until a request comes"
        return None if all_workers(seen) else Verdict(Answer.YES, "Asleep", words)
    if seen.resource.spec.suspend and not seen.pods:
        return Verdict(Answer.YES, "Suspended", "there are no pods, as spec.suspend asks; nothing is served")
    return None


def judge_progress(seen: Seen, serving: Verdict, outcome: Outcome) -> Verdict | None:
    """Is something of the spec still on its way? Moves of the ratio are not: Git waits for the spec alone."""
    if isinstance(outcome, Failed):
        return Verdict(Answer.YES, "Retrying", f"{outcome.reason}: {outcome.message}")
    if isinstance(outcome, Waiting) and outcome.reason == "PullingModel":
        return Verdict(Answer.YES, "PullingModel", outcome.message)
    words = words_of_progress(seen, serving)
    if words is None and isinstance(outcome, Waiting) and outcome.reason == BEGUN:
        words = outcome.message
    return None if words is None else Verdict(Answer.YES, "Progressing", words)


def words_of_progress(seen: Seen, serving: Verdict) -> str | None:
    """What the pods have yet to do; None where they are as the spec wants them."""
    if seen.resource.spec.asleep:
        left = len(all_workers(seen))
        return f"falling asleep: {left} workers still finish what they serve" if left else None
    if seen.resource.spec.suspend:
        return f"suspending: {len(seen.pods)} pods still finish what they serve" if seen.pods else None
    if serving.answer is not Answer.YES:
        return serving.message
    if (renewed := progress_words(seen)) is not None:
        return renewed
    rolling = [name for name, item in deployments(seen).items() if is_rolling(item)]
    return f"{', '.join(rolling)} replace their pods" if rolling else None


def deployments(seen: Seen) -> dict[str, Object]:
    """All of the resource's Deployments, by pool name or `router`."""
    return dict(seen.pools) | ({"router": seen.router} if seen.router else {})


def is_rolling(deployment: Object) -> bool:
    """Are pods of an older template left?"""
    status = deployment.get("status") or {}
    return int(status.get("updatedReplicas", 0)) < int(status.get("replicas", 0))


def judge_limits(seen: Seen, now: datetime) -> Verdict:
    """Does the cluster, or a bound, keep the resource from what it needs?"""
    if seen.resource.spec.suspend:
        return Verdict(Answer.NO, "WithinBounds", "suspended: nothing is wanted")
    if (fault := refused_fault(deployments(seen)) or scheduling_fault(seen.pods, seen.autoscaler)) is not None:
        return Verdict(Answer.YES, fault.reason, fault.message)
    verdict = judge_scaling(seen.facts, now)
    if verdict.reason == "AtMaximum" and seen.cap is not None and seen.facts.limits.budget_gpus == seen.cap.gpus:
        shared = "of the GPUs that all resources share: " if seen.cap.reason == "BudgetExhausted" else ""
        return Verdict(Answer.YES, seen.cap.reason, shared + seen.cap.why)
    return verdict


def judge_rebalancing(seen: Seen, plan: Plan, serving: Verdict) -> Verdict:
    """Are the children on their way to another ratio? Before anything serves, that is the start, not a move."""
    target = plan.target
    if serving.answer is not Answer.YES:
        return Verdict(Answer.NO, "Steady", "nothing serves yet, so nothing is moved")
    living = [w for w in seen.facts.workers if not w.deleting and w.role is not Role.BOTH]
    roles = (sum(w.role is Role.PREFILL for w in living), sum(w.role is Role.DECODE for w in living))
    pools = {pool.name: pool.ready for pool in seen.facts.pools}
    if pools != dict(target.pools):
        words = ", ".join(f"{name} {pools.get(name, 0)} of {count}" for name, count in target.pools.items())
        return Verdict(Answer.YES, "Scaling", f"ready workers by pool: {words}")
    if target.prefill + target.decode and roles != (target.prefill, target.decode):
        words = f"prefill {roles[0]} of {target.prefill}, decode {roles[1]} of {target.decode}"
        return Verdict(Answer.YES, "Flipping", f"workers by role: {words}")
    return Verdict(Answer.NO, "Steady", f"prefill {target.prefill}, decode {target.decode}, as decided")
