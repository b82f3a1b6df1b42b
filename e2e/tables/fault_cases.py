"""The faults of the table, on an API server in memory: how each is made, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from e2e.tables.memory import CREATED, DEPLOYMENTS, PODS, Case, Object, copied, refusal
from e2e.tables.paths import put
from e2e.tables.watching import Way, and_what_was_before, in_order, listed, twice_and_backwards, without_deletions
from tandem_operator.edges.errors import ApiError
from tandem_operator.loop import reconcile as reconciling
from tandem_operator.templates.names import TEMPLATE

Do = Callable[[Case], None]


def nothing(case: Case) -> None:
    """No change."""


def new_image(case: Case) -> None:
    """An edit that is to be carried out."""
    case.edit(put(copied(case.body()), "spec.router.replicas", 3)["spec"])


def open_gate(case: Case) -> None:
    """The API server does as asked again."""
    case.kube.gate = lambda _verb, _path: None
    case.kube.after = lambda _count: None


@dataclass(frozen=True, slots=True)
class Fault:
    """`past` and `before` happen with and without the fault; what is past was carried out before it."""

    name: str
    inject: Do
    heal: Do = nothing
    before: Do = nothing
    past: Do = nothing
    way: Way | None = None  # how events come while the fault lasts, and nothing is listed; None: each pass lists
    sees: bool = True  # a pass runs before the fault is over
    restarts: bool = False
    instead: Do = nothing  # what the end is compared with, where it is not simply the end without the fault
    ends: str = "the same"


def refusing(error: Callable[[], ApiError], *verbs: str, path: str = "") -> Do:
    """Requests of these verbs, to paths that hold these words, are refused."""

    def inject(case: Case) -> None:
        def gate(verb: str, where: str) -> None:
            if (not verbs or verb in verbs) and path in where:
                raise error()

        case.kube.gate = gate

    return inject


def every_third(error: Callable[[], ApiError]) -> Do:
    """Every third request is refused, whatever it is."""

    def inject(case: Case) -> None:
        asked = 0

        def gate(_verb: str, _where: str) -> None:
            nonlocal asked
            asked += 1
            if asked % 3 == 0:
                raise error()

        case.kube.gate = gate

    return inject


def lost_answers(case: Case) -> None:
    """What is written is done, and the operator does not hear of it."""

    def after(_count: int) -> None:
        raise ApiError("Unreachable", "the connection broke")

    case.kube.after = after


def remove(plural: str) -> Do:
    """All objects of a kind are deleted."""

    def inject(case: Case) -> None:
        for key in [key for key in case.kube.items if key[0] == plural]:
            case.kube.remove(key)

    return inject


def scaled_to(count: int) -> Do:
    """Somebody scales the decode pool."""

    def inject(case: Case) -> None:
        decode = case.kube.items[DEPLOYMENTS, "serving", "chat-decode"]
        case.kube.store(DEPLOYMENTS, put(copied(decode), "spec.replicas", count))

    return inject


def status_is(status: object) -> Do:
    """Somebody overwrites the status."""

    def inject(case: Case) -> None:
        case.kube.store(case.plural, {**case.body(), "status": status})

    return inject


def target_is(pools: dict[str, int], prefill: int, decode: int) -> Do:
    """Somebody writes a target that no spec allows."""

    def inject(case: Case) -> None:
        roles = {"prefill": prefill, "decode": decode}
        body = put(copied(case.body()), "status.decision.target", {"pools": pools, "roles": roles})
        case.kube.store(case.plural, body)

    return inject


def nodes_gone(case: Case) -> None:
    """No pod is ready any more."""
    for pod in case.kube.of(PODS):
        case.kube.store(
            PODS, {**pod, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}
        )


def nodes_back(case: Case) -> None:
    """Pods are made anew elsewhere."""
    remove(PODS)(case)
    case.kube.settle()


def two_of_each(case: Case) -> None:
    """Pools of two workers."""
    spec = copied(case.body()["spec"])
    for pool in spec["pools"]:
        pool["replicas"] = {"min": 2, "max": 4}
    case.edit(spec)


def stands(kind: str, status: str, **more: str) -> Object:
    """A pod's condition that has long been so."""
    return {"type": kind, "status": status, "lastTransitionTime": CREATED, **more}


def half_way(*conditions: Object, waiting: Object | None = None) -> Do:
    """A rollout that has renewed one worker of each pool; the decode pool's does not come up."""

    def inject(case: Case) -> None:
        for name in ("chat-prefill", "chat-decode"):
            former, new = (pod for pod in case.kube.of(PODS) if pod["metadata"]["name"].startswith(f"{name}-"))
            former = copied(former)
            former["metadata"]["annotations"][TEMPLATE] = "former"
            case.kube.store(PODS, former)
            if name == "chat-decode":
                container = {"name": "worker", "state": {"waiting": waiting}} if waiting else {"name": "worker"}
                status = {"conditions": list(conditions), "containerStatuses": [container]}
                case.kube.store(PODS, {**new, "status": {"phase": "Pending", **status}})

    return inject


NO_SECRET = {"reason": "CreateContainerConfigError", "message": 'secret "token" not found'}
NO_NODE = {"reason": "Unschedulable", "message": "0/3 nodes are available"}


def other_pools(case: Case) -> None:
    """One pool grows, another takes the place of the second."""
    spec = put(copied(case.body()), "spec.pools[].replicas", {"min": 3, "max": 4})["spec"]
    spec["pools"][1]["name"] = "other"
    case.edit(spec)


def some_are_gone(case: Case) -> None:
    """Services, and the decode pool with its pods."""
    remove("services")(case)
    case.kube.remove((DEPLOYMENTS, "serving", "chat-decode"))
    case.kube.settle()


def clock_jumps(by: timedelta) -> Do:
    """The machine's clock is set while the operator runs."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + by

    def inject(_case: Case) -> None:
        reconciling.datetime = Shifted  # type: ignore[attr-defined]

    return inject


def clock_is_right(_case: Case) -> None:
    """And is set back."""
    reconciling.datetime = datetime  # type: ignore[attr-defined]


def _unreachable() -> ApiError:
    return ApiError("Unreachable", "no answer")


FAULTS: tuple[Fault, ...] = (
    Fault("API server away", refusing(_unreachable, "PATCH", "POST", "DELETE"), open_gate, new_image),
    Fault(
        "API server away, the operator restarts", refusing(_unreachable, "PATCH"), open_gate, new_image, restarts=True
    ),
    Fault(
        "429, every third request is rejected",
        every_third(lambda: refusal(429, "TooManyRequests")),
        open_gate,
        new_image,
        sees=False,
    ),
    Fault("answers of writes are lost", lost_answers, open_gate, new_image),
    Fault(
        "a webhook denies Deployments",
        refusing(lambda: refusal(400, "BadRequest", "admission webhook denied it"), "PATCH", path="deployments"),
        open_gate,
        new_image,
    ),
    Fault(
        "quota exhausted",
        refusing(lambda: refusal(403, "Forbidden", "exceeded quota: team"), "PATCH", path="deployments"),
        open_gate,
        new_image,
    ),
    Fault(
        "a child is invalid",
        refusing(lambda: refusal(422, "Invalid", "port 0"), "PATCH", path="deployments"),
        open_gate,
        new_image,
    ),
    Fault(
        "status cannot be written",
        refusing(lambda: refusal(403, "Forbidden"), "PATCH", path="/status"),
        open_gate,
        new_image,
    ),
    Fault(
        "events cannot be posted",
        refusing(lambda: refusal(403, "Forbidden"), "POST", path="events"),
        open_gate,
        new_image,
    ),
    Fault(
        "lists expire (410: etcd was compacted)",
        refusing(lambda: refusal(410, "Expired", "the provided continue parameter is too old"), "GET", path="/"),
        open_gate,
        new_image,
    ),
    Fault("the clock jumps a day ahead", clock_jumps(timedelta(days=1)), clock_is_right, new_image),
    Fault("the clock jumps a day back", clock_jumps(timedelta(days=-1)), clock_is_right, new_image),
    Fault("all Services deleted", remove("services"), way=in_order),
    Fault("all Deployments deleted", remove(DEPLOYMENTS), way=in_order),
    Fault("all service accounts deleted", remove("serviceaccounts"), way=in_order),
    Fault("all bindings deleted", remove("rolebindings"), way=in_order),
    Fault("all network policies deleted", remove("networkpolicies"), way=in_order),
    Fault("all disruption budgets deleted", remove("poddisruptionbudgets"), way=in_order),
    Fault("a pool is scaled to 0", scaled_to(0)),
    Fault("a pool is scaled to 9", scaled_to(9)),
    Fault("status deleted", status_is({})),
    Fault("status is nonsense", status_is({"conditions": [{"type": "Ready"}], "decision": {"id": "x"}})),
    Fault(
        "target beyond the bounds",
        target_is({"prefill": 90, "decode": 1}, 90, 1),
        instead=target_is({"prefill": 4, "decode": 1}, 4, 1),
        ends="the pool's maximum",
    ),
    Fault("target of a pool that is not there", target_is({"other": 1}, 1, 0)),
    Fault("target without a role", target_is({"prefill": 1, "decode": 1}, 2, 0)),
    Fault("all nodes gone", nodes_gone, nodes_back),
    Fault(
        "a rollout whose new worker names a Secret that is not there",
        half_way(stands("PodScheduled", "True"), waiting=NO_SECRET),
        nodes_back,
        past=two_of_each,
    ),
    Fault(
        "a rollout whose new worker never turns Ready",
        half_way(stands("PodScheduled", "True"), stands("Ready", "False")),
        nodes_back,
        past=two_of_each,
    ),
    Fault(
        "a rollout whose new worker finds no node",
        half_way(stands("PodScheduled", "False", **NO_NODE)),
        nodes_back,
        past=two_of_each,
    ),
    Fault("events come late: an old spec, old children", nothing, past=other_pools, way=and_what_was_before),
    Fault("events come twice and backwards", remove("services"), before=other_pools, way=twice_and_backwards),
    Fault("deletions are in no event, until the next list", some_are_gone, listed, way=without_deletions),
    Fault("the operator restarts", nothing, restarts=True),
)
