"""Every condition and every reason that it may give: what it means, what to do. The reference page is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
METRICS_AVAILABLE: Final = "MetricsAvailable"
SLO_MET: Final = "SLOMet"
SCALING_LIMITED: Final = "ScalingLimited"
REBALANCING: Final = "Rebalancing"
KV_TRANSFER_READY: Final = "KVTransferReady"
MONITORING_READY: Final = "MonitoringReady"
MODE_CHOSEN: Final = "ModeChosen"

Answer = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class ConditionType:
    """A standing judgement. `abnormal`: True is the unusual answer; the condition is absent when steady (kstatus)."""

    name: str
    question: str
    abnormal: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    """One answer with one CamelCase word, its meaning, and what a person does about it."""

    condition: str
    status: Answer
    name: str
    meaning: str
    action: str = "Nothing."


CONDITIONS: Final = (
    ConditionType(READY, "Can clients be served, or is it suspended as asked? A rebalance never changes it."),
    ConditionType(RECONCILING, "Is the operator still bringing the cluster to what the spec says?", abnormal=True),
    ConditionType(STALLED, "Is there something that only an edit or a person can mend?", abnormal=True),
    ConditionType(METRICS_AVAILABLE, "Does the planner have fresh figures? Without them it holds; it never shrinks."),
    ConditionType(SLO_MET, "Are both targets met at the SLO's percentile?"),
    ConditionType(SCALING_LIMITED, "Does a bound keep the operator from what it would choose or has chosen?"),
    ConditionType(REBALANCING, "Is a move of the ratio under way?"),
    ConditionType(KV_TRANSFER_READY, "Does the KV cache travel as spec.transfer demands?"),
    ConditionType(MONITORING_READY, "Is there all that spec.monitoring asks for? Absent where it asks for nothing."),
    ConditionType(MODE_CHOSEN, "Is the mode in effect the advisor's answer? Absent unless spec.mode is Auto."),
)

_WAIT = "Wait; the message says for what."
_TARGETS = "Look at Prometheus' scrape targets."
_DECISION = "Read status.decision: it says what is done about it."
_PROMETHEUS = "Look at the operator's Prometheus address and at Prometheus itself."

REASONS: Final = (
    Reason(READY, "True", "Serving", "Prefill, decode and router can take requests."),
    Reason(READY, "True", "Suspended", "spec.suspend is true and all pods are gone: nothing is served, as asked."),
    Reason(
        READY,
        "True",
        "Asleep",
        "spec.scaleToZero: nothing was asked for, and the workers are gone; the routers hold the first request.",
    ),
    Reason(READY, "Unknown", "Progressing", "The first rollout, or one after an edit, is under way.", _WAIT),
    Reason(
        READY,
        "False",
        "NoReadyWorkers",
        "A role that was served has no ready worker, or the router has no ready pod.",
        "Look at the pods that the message names.",
    ),
    Reason(READY, "False", "Stalled", "See the condition Stalled.", "As the condition Stalled says."),
    Reason(
        READY,
        "False",
        "KVTransferNotReady",
        "spec.transfer.require is RDMA and the KV cache would travel over TCP.",
        "As the condition KVTransferReady says.",
    ),
    Reason(RECONCILING, "True", "Progressing", "Children differ from the target, or pods are not ready yet.", _WAIT),
    Reason(
        RECONCILING,
        "True",
        "Retrying",
        "A write to the API server failed and is tried again with growing pauses.",
        "Look at the message if it lasts.",
    ),
    Reason(
        RECONCILING,
        "True",
        "PullingModel",
        "A Job pulls the model into the shared cache; workers of this revision start when it has ended.",
        _WAIT,
    ),
    Reason(
        STALLED,
        "True",
        "LeaderWorkerSetMissing",
        "A replica spans nodes, which needs the API leaderworkerset.x-k8s.io/v1, and the cluster does not serve it.",
        "Install LeaderWorkerSet, or choose fewer accelerators a worker.",
    ),
    Reason(
        STALLED,
        "True",
        "ModelPullFailed",
        "The Job that pulls the model has failed; the message quotes its last words.",
        "Correct spec.model, its Secret or its claim, and delete the Job that the message names.",
    ),
    Reason(
        STALLED,
        "True",
        "UnknownAccelerator",
        "A pool names an accelerator that the catalogue does not have.",
        "Correct the name, or add an entry to the ConfigMap tandem-catalogue.",
    ),
    Reason(
        STALLED,
        "True",
        "InvalidSpec",
        "The spec breaks a rule that the installed CRD does not know.",
        "Correct the field that the message names, and bring the CRD up to date.",
    ),
    Reason(
        STALLED,
        "True",
        "TemplateRefused",
        "A template asks for what this cluster's operator does not allow, or contradicts the operator's own value; the "
        "message names each field.",
        "Take the field out, or have the cluster's operator allow it (TANDEM_TEMPLATE_ALLOW, Helm: templateAllow).",
    ),
    Reason(
        STALLED,
        "True",
        "DRAMissing",
        "spec.transfer.rdma.mode is DRA, and this cluster does not serve resource.k8s.io/v1.",
        "Bring the cluster to Kubernetes 1.34 or newer, or choose another mode.",
    ),
    Reason(
        STALLED,
        "True",
        "ModelLoadFailed",
        "A worker could not load the model; the message quotes it.",
        "Correct spec.model, or the image that carries the model.",
    ),
    Reason(
        STALLED,
        "True",
        "ImagePullFailed",
        "A node cannot pull the workers' or the router's image.",
        "Correct spec.engine.image, or give the nodes access to the registry.",
    ),
    Reason(
        STALLED,
        "True",
        "ContainerConfigFailed",
        "A container cannot be made of what its pod names (a Secret, a ConfigMap, a key in it, a command); the message "
        "quotes the kubelet.",
        "Make what is missing: the kubelet tries again by itself. Or correct the field of spec that names it.",
    ),
    Reason(
        STALLED,
        "True",
        "CrashLoop",
        "A container ends again and again; the message quotes its last words.",
        "Read the pod's log.",
    ),
    Reason(
        STALLED,
        "True",
        "RolloutPaused",
        "Workers of the new template are unhealthy, find no node for 15 minutes, or are not Ready for 45 minutes "
        "(three times as long as starts take, where that is more): the rollout is paused, and those of the former "
        "template serve on.",
        "Mend spec, or the cluster, as the message says, or revert spec: both go on from where the rollout is.",
    ),
    Reason(
        STALLED,
        "True",
        "NameConflict",
        "An object with a child's name exists and belongs to somebody else; it is never taken.",
        "Rename the resource or the pool, or remove the object.",
    ),
    Reason(METRICS_AVAILABLE, "True", "Fresh", "The newest samples are younger than three intervals."),
    Reason(METRICS_AVAILABLE, "True", "NoTraffic", "Samples are fresh, and no request arrived in the window."),
    Reason(
        METRICS_AVAILABLE, "Unknown", "NoSamples", "Prometheus answers, but has no series of this resource.", _TARGETS
    ),
    Reason(METRICS_AVAILABLE, "False", "StaleSamples", "The newest sample is too old to decide by.", _TARGETS),
    Reason(METRICS_AVAILABLE, "False", "PrometheusUnreachable", "Prometheus does not answer.", _PROMETHEUS),
    Reason(METRICS_AVAILABLE, "False", "PrometheusRefused", "Prometheus refuses the query.", _PROMETHEUS),
    Reason(SLO_MET, "True", "WithinTargets", "Both targets are met at the percentile."),
    Reason(SLO_MET, "False", "TTFTAboveTarget", "TTFT at the percentile is above its target.", _DECISION),
    Reason(SLO_MET, "False", "TPOTAboveTarget", "TPOT at the percentile is above its target.", _DECISION),
    Reason(SLO_MET, "False", "BothAboveTargets", "TTFT and TPOT at the percentile are above their targets.", _DECISION),
    Reason(
        SLO_MET,
        "False",
        "AttainmentBelowTarget",
        "Each target is met at the percentile alone, but too few requests meet both.",
        _DECISION,
    ),
    Reason(
        SLO_MET,
        "False",
        "ArrivalsOutrunCompletions",
        "Requests arrive faster than they finish: the queue grows, and what has finished does not tell how long it is.",
        _DECISION,
    ),
    Reason(
        SLO_MET,
        "False",
        "Infeasible",
        "No plan within the bounds reaches the targets; the message has the closest that can be reached.",
        "Relax spec.slo, or raise the pools' maxima or the budget.",
    ),
    Reason(SLO_MET, "Unknown", "Unknown", "It cannot be judged; the message says why."),
    Reason(SLO_MET, "Unknown", "NoTraffic", "No request arrived in the window."),
    Reason(SLO_MET, "Unknown", "NoSamples", "Requests arrive, but there are no figures of them yet."),
    Reason(SLO_MET, "Unknown", "StaleSamples", "The newest figures are too old.", _PROMETHEUS),
    Reason(SLO_MET, "Unknown", "PrometheusUnreachable", "There are no figures; see MetricsAvailable.", _PROMETHEUS),
    Reason(SLO_MET, "Unknown", "PrometheusRefused", "There are no figures; see MetricsAvailable.", _PROMETHEUS),
    Reason(SCALING_LIMITED, "False", "WithinBounds", "No bound keeps the planner from its choice."),
    Reason(SCALING_LIMITED, "Unknown", "NoTarget", "No target is chosen yet."),
    Reason(
        SCALING_LIMITED,
        "True",
        "Unschedulable",
        "Pods of the target find no node; the message quotes the scheduler.",
        "Add nodes, or lower the pools' maxima.",
    ),
    Reason(
        SCALING_LIMITED,
        "True",
        "PodsRefused",
        "The API server refuses pods of the target (a quota, an admission policy); the message quotes it.",
        "Raise the quota, or satisfy the policy that the message names.",
    ),
    Reason(
        SCALING_LIMITED,
        "True",
        "PodsNotReady",
        "Pods of the target have not become ready.",
        "Look at the pods of the pools that the message names.",
    ),
    Reason(
        SCALING_LIMITED,
        "True",
        "AtMaximum",
        "More workers are wanted than a pool's maximum.",
        "Raise replicas.max, or relax spec.slo.",
    ),
    Reason(
        SCALING_LIMITED,
        "True",
        "BudgetExhausted",
        "More accelerators are wanted than this resource's part of those that all resources share.",
        "Raise the operator's TANDEM_FLEET_GPUS or spec.priority, or relax spec.slo.",
    ),
    Reason(
        SCALING_LIMITED,
        "True",
        "QuotaExhausted",
        "More accelerators are wanted than a ResourceQuota of the namespace leaves; the message has its figures.",
        "Raise the quota, or relax spec.slo.",
    ),
    Reason(REBALANCING, "True", "Flipping", "Workers change their role.", _WAIT),
    Reason(REBALANCING, "True", "Scaling", "Pools grow or shrink.", _WAIT),
    Reason(REBALANCING, "False", "Steady", "Roles and replicas are as the target says."),
    Reason(KV_TRANSFER_READY, "True", "Connected", "The workers transfer by the backend that is demanded."),
    Reason(
        KV_TRANSFER_READY,
        "False",
        "NotRDMA",
        "spec.transfer.require is RDMA, and the backend in use is another, or no RDMA device is asked for.",
        "Give the nodes RDMA devices and spec.transfer.rdma, or set require to Any.",
    ),
    Reason(KV_TRANSFER_READY, "Unknown", "NoTransferYet", "No worker has told its transfer backend yet."),
    Reason(KV_TRANSFER_READY, "True", "NotNeeded", "Mode Colocated transfers nothing."),
    Reason(MODE_CHOSEN, "True", "Advised", "The mode in effect is the one that meets the targets for least."),
    Reason(
        MODE_CHOSEN,
        "True",
        "NotClear",
        "The other mode seems better, but not at every cost within a standard deviation, or not all the time.",
    ),
    Reason(
        MODE_CHOSEN,
        "True",
        "ChangesSpent",
        "The other mode is advised, but the mode changed too lately, or four times in a day.",
        "If it goes on, set spec.mode to the one that you prefer.",
    ),
    Reason(
        MODE_CHOSEN,
        "True",
        "NoRoom",
        "The other mode is advised, but the budget has no room for the pools of both while the new ones start.",
        "Raise spec.rebalance.budget, or set spec.mode, which replaces the pools with a gap.",
    ),
    Reason(
        MODE_CHOSEN,
        "True",
        "NoModeReaches",
        "Neither mode is predicted to meet the targets within the bounds.",
        "Relax spec.slo, or raise the pools' maxima or the budget.",
    ),
    Reason(
        MODE_CHOSEN,
        "True",
        "Recommended",
        "The other mode is advised, and spec.rebalance.mode is not Auto.",
        "Set spec.rebalance.mode to Auto, or spec.mode to the advised one.",
    ),
    Reason(
        MODE_CHOSEN,
        "Unknown",
        "Unobserved",
        "Traffic is not known for long enough: what is in effect stays, at the beginning Colocated.",
        _WAIT,
    ),
    Reason(MONITORING_READY, "True", "Made", "The objects that spec.monitoring asks for are there."),
    Reason(
        MONITORING_READY,
        "False",
        "ApiMissing",
        "The cluster does not serve a kind that spec.monitoring asks for; the rest is made.",
        "Install the project that the message names (the operator looks again at each resync), or unset the field.",
    ),
)


def is_known(condition: str, status: str, reason: str) -> bool:
    """Does the reference page list this answer?"""
    return any((known.condition, known.status, known.name) == (condition, status, reason) for known in REASONS)
