"""Stories in which the operator is killed after each of its writes, one run for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from e2e.tables.fields import base, changes, settled
from e2e.tables.memory import Case, Object, copied
from e2e.tables.paths import put

MAX_WRITES = 60  # of one story


class KilledError(BaseException):
    """The operator's process ended here; nothing of it may be caught."""


@dataclass(frozen=True, slots=True)
class Story:
    """Something that a user, or the planner, wants of a resource that runs (or begins)."""

    name: str
    begin: Callable[[Case], None] | None  # None: the resource is new
    spec: dict[str, object] = field(default_factory=dict)  # what the resource has from the start

    def body(self) -> Object:
        """The resource as it was before."""
        body = base()
        for pool in body["spec"]["pools"]:
            pool["replicas"]["initial"] = 2
        return {**body, "spec": body["spec"] | self.spec}


def edited(path: str, value: object) -> Callable[[Case], None]:
    """The spec with another value."""
    return lambda case: case.edit(put(copied(case.body()), path, value)["spec"])


def aimed(pools: dict[str, int], prefill: int, decode: int) -> Callable[[Case], None]:
    """The planner's intent, as it stands in the status before any child is touched."""

    def begin(case: Case) -> None:
        target = {"pools": pools, "roles": {"prefill": prefill, "decode": decode}}
        case.kube.store(case.plural, put(copied(case.body()), "status.decision.target", target))

    return begin


def without_decode_pool(case: Case) -> None:
    """Another decode pool instead of the one there was."""
    spec = copied(case.body()["spec"])
    spec["pools"][1]["name"] = "other"
    case.edit(spec)


MONITORED = {"podMonitor": True, "rules": True, "dashboard": True}


FOLDER = {"source": "file:///models/m", "servedName": "m"}
HUB = {
    "source": "hf://org/model",
    "revision": "0123abc",
    "servedName": "m",
    "cache": {"persistentVolumeClaim": "models"},
}
DRA = {"rdma": {"mode": "DRA", "deviceClass": "dranet"}}


VLLM: dict[str, object] = {"engine": {"name": "vllm", "image": "example.com/vllm:1"}, "transfer": {"backend": "nixl"}}


def parallel(tensor: int, pipeline: int) -> Callable[[Case], None]:
    """Workers that are spread like this."""

    def begin(case: Case) -> None:
        spec = copied(case.body()["spec"])
        for pool in spec["pools"]:
            pool["parallelism"] = {"tensor": tensor, "pipeline": pipeline}
        case.edit(spec)

    return begin


def spanning() -> dict[str, object]:
    """A resource whose replicas span nodes."""
    body = base()
    for pool in body["spec"]["pools"]:
        pool["parallelism"] = {"tensor": 8, "pipeline": 2}
    return {**VLLM, "pools": body["spec"]["pools"]}


def leftovers(case: Case) -> None:
    """Children of names that another version gave them."""
    kinds = dict.fromkeys(("services", "serviceaccounts", "rolebindings", "poddisruptionbudgets"), "chat-router")
    for plural, name in (kinds | {"networkpolicies": "chat-workers"}).items():
        if (own := case.kube.items.get((plural, "serving", name))) is not None:
            item = put(copied(own), "metadata.name", "chat-former")
            del item["metadata"]["uid"]
            case.kube.store(plural, item)


def deleted(case: Case) -> None:
    """The resource is going: what it owns is the garbage collector's."""
    item = copied(case.body())
    item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    case.kube.store(case.plural, item)


def without_node(case: Case) -> None:
    """The scheduler finds no node for one pod."""
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    for pod in case.kube.of("pods")[:1]:  # none, where no right lets any be made
        case.kube.store("pods", {**copied(pod), "status": {"phase": "Pending", "conditions": [said]}})


STORIES = (
    Story("a new resource", None),
    Story("a rollout: another image", edited("spec.engine.image", "example.com/worker:2")),
    Story("a flip", aimed({"prefill": 2, "decode": 2}, 3, 1)),
    Story("a rebalance: one pool grows, one shrinks", aimed({"prefill": 3, "decode": 1}, 3, 1)),
    Story("a pool is replaced", without_decode_pool),
    Story("monitoring is asked for", edited("spec.monitoring", MONITORED)),
    Story("monitoring is no more asked for", edited("spec.monitoring", {}), {"monitoring": MONITORED}),
    Story("a model is pulled from the hub", edited("spec.model", HUB)),
    Story("a model is no more pulled from the hub", edited("spec.model", FOLDER), {"model": HUB}),
    Story("devices by claims", edited("spec.transfer", DRA)),
    Story("devices no more by claims", edited("spec.transfer", {}), {"transfer": DRA}),
    Story("replicas span nodes", parallel(8, 2), VLLM),
    Story("replicas span nodes no more", parallel(8, 1), spanning()),
    Story("children of a former version's names", leftovers),
    Story("a pod finds no node", without_node),
    Story("the resource is deleted", deleted),
)


async def ends_of(story: Story) -> list[tuple[str, ...]]:
    """For each kill: what is otherwise at the end than without it."""
    expected, writes = await told(story, None)
    return [changes(expected, (await told(story, after))[0]) for after in range(1, writes + 1)]


async def told(story: Story, kill_after: int | None) -> tuple[dict[str, object], int]:
    """Tell the story; the state at its end, and how many writes it took."""
    case = Case(story.body())
    if story.begin is not None:
        await settled(case)
        story.begin(case)
    began = len(case.kube.writes)
    if kill_after is not None:
        await killed(case, began + kill_after)
    found, words = await settled(case)
    if words:
        raise ValueError(f"{story.name}: what the story wants is refused: {words}")
    return found, min(len(case.kube.writes) - began, MAX_WRITES)


async def killed(case: Case, at: int) -> None:
    """Run until the write of this number is done, and start another operator."""

    def after(count: int) -> None:
        if count == at:
            raise KilledError

    case.kube.after = after
    try:
        await case.converge()
    except KilledError:
        case.kube.after = lambda _count: None
        case.kube.settle()
        await case.restart()
    case.kube.after = lambda _count: None
