"""Every reason that `status.decision` may give: what it means, what to do. The reference page is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DecisionReason:
    """One CamelCase word, what the planner means by it, and what a person does about it."""

    name: str
    meaning: str
    action: str = "Nothing."


_WAIT = "Wait; the message says for what."
_METRICS = "As the condition MetricsAvailable says."

DECISION_REASONS: Final = (
    DecisionReason("InitialTarget", "The first target, from the pools' `initial` replicas."),
    DecisionReason("StatusLost", "The status was lost; what the running pools do was adopted as the target."),
    DecisionReason("BoundsChanged", "The resource was edited, and its bounds allow no more of the old target."),
    DecisionReason(
        "ImpossibleBounds",
        "The pools' minima, the roles' minima and the budget contradict each other.",
        "Lower a minimum, or raise the budget.",
    ),
    DecisionReason("RebalanceOff", "`rebalance.mode` is Off; the message says what Auto would do."),
    DecisionReason("Suspended", "`suspend` is true: there are no pods, and the target is kept for the return."),
    DecisionReason("Asleep", "`scaleToZero`: there are no workers, and the target is kept for the next request."),
    DecisionReason("ModeChanged", "Mode Auto: the advisor's answer is the other mode, for as long as it asks for."),
    DecisionReason("ColocatedPools", "Workers of role Both on unlike hardware: how many of each is not chosen."),
    DecisionReason("NoSamples", "There are no figures yet, or none of what has finished.", _METRICS),
    DecisionReason("StaleSamples", "The newest figures are too old to decide by.", _METRICS),
    DecisionReason("PrometheusUnreachable", "Prometheus does not answer: the target is held.", _METRICS),
    DecisionReason("PrometheusRefused", "Prometheus refuses the query: the target is held.", _METRICS),
    DecisionReason("WindowFilling", "Metrics without a gap do not cover one window yet.", _WAIT),
    DecisionReason("MoveOpen", "The workers of the last move do not all serve in their roles yet.", _WAIT),
    DecisionReason(
        "MoveStuck",
        "Pods of the last move were not ready by the deadline: what serves decides, and nothing of it shrinks.",
        "Look at the pods that are not ready; the message counts them by role.",
    ),
    DecisionReason("Cooldown", "The newest window began before the last move: it tells of another plan.", _WAIT),
    DecisionReason("ModelUnknown", "No worker has told the model's shape yet.", _WAIT),
    DecisionReason("NotCalibrated", "No window shows a role at work that the load needs.", _WAIT),
    DecisionReason("NoTraffic", "No request arrived in the window."),
    DecisionReason("WithinTargets", "Both targets are met at the percentile."),
    DecisionReason("BreachNotConfirmed", "A target is missed, but not for long enough to be more than chance.", _WAIT),
    DecisionReason("Recovering", "A target is missed, and the present plan is predicted to meet it.", _WAIT),
    DecisionReason("TargetsMissed", "A target is missed, and another plan is predicted to meet both."),
    DecisionReason("BoundedStep", "A target is missed; this move is as far as one step may go, and more may follow."),
    DecisionReason(
        "Infeasible",
        "No plan within the bounds meets the targets; the closest one is chosen or kept.",
        "Relax spec.slo, or raise the pools' maxima or the budget.",
    ),
    DecisionReason(
        "LoadRising", "The targets are met, and the load forecast over a replica's start is more than the plan carries."
    ),
    DecisionReason("SlackConfirmed", "The targets were met with room to spare for the whole scale-down window."),
)
