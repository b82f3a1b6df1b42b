"""A replica that spans nodes: a LeaderWorkerSet. Its leader serves, its other pods hold the rest of the model."""

from __future__ import annotations

from copy import deepcopy
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from tandem_operator.api.constants import LABEL_COMPONENT, LABEL_ROLE
from tandem_operator.api.v1alpha1 import InvalidResourceError
from tandem_operator.templates.engines.versions import NODES, has, too_old
from tandem_operator.templates.names import KEY
from tandem_operator.templates.placement import KUEUE

if TYPE_CHECKING:
    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_pool import Pool

Object = dict[str, Any]
GROUP: Final = "LeaderWorkerSet"
COMPONENT_RANK: Final = "rank"  # not `worker`: the router and the planner see a replica's leader alone
LEADER: Final = "$(LWS_LEADER_ADDRESS)"  # both are filled in by the LeaderWorkerSet's controller
RANK: Final = "$(LWS_WORKER_INDEX)"
DIST_PORT: Final = 5000
SERVING: Final = ("ports", "startupProbe", "readinessProbe", "livenessProbe")


def nodes_of(spec: Spec, pool: Pool, accelerator: Accelerator) -> int:
    """Nodes of one replica. Raises InvalidResourceError where the engine cannot be spread like that."""
    ranks = pool.parallelism
    nodes = ceil(ranks.gpus / accelerator.per_node) if accelerator.resource else 1
    if nodes == 1:
        return 1
    words = f"pool {pool.name}: {ranks.gpus} accelerators are on {nodes} nodes of {accelerator.per_node}"
    if ranks.gpus % nodes:
        raise InvalidResourceError([f"{words}, and cannot be shared out evenly"])
    if spec.engine.name == "tandem":
        raise InvalidResourceError([f"{words}; a tandem worker is one node's"])
    if not has(spec.engine, NODES):
        raise InvalidResourceError([f"{words}; {too_old(spec.engine, NODES, 'cannot be spread over nodes')}"])
    if spec.engine.name == "vllm" and ranks.data > 1:
        raise InvalidResourceError([f"{words}; vllm spreads tensor and pipeline ranks over nodes, not data"])
    return nodes


def spread(spec: Spec, nodes: int, *, leads: bool) -> list[str]:
    """The engine's options for one of a replica's pods."""
    if spec.engine.name == "sglang":
        return ["--dist-init-addr", f"{LEADER}:{DIST_PORT}", "--nnodes", str(nodes), "--node-rank", RANK]
    rank = ["--nnodes", str(nodes), "--node-rank", RANK, "--master-addr", LEADER]
    return rank if leads else [*rank, "--headless"]


def group_of(spec: Spec, deployment: Object, nodes: int) -> Object:
    """The pool's Deployment as groups of pods that start, end and are replaced together."""
    template = deployment["spec"]["template"]
    step = step_in(deployment)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": GROUP,
        "metadata": deployment["metadata"],
        "spec": {
            "replicas": deployment["spec"]["replicas"],
            "startupPolicy": "LeaderCreated",
            # As in a Deployment of ours: GPUs are full, so a group goes before its successor comes.
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"partition": 0, "maxSurge": 0, "maxUnavailable": step},
            },
            "leaderWorkerTemplate": {
                "size": nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _with_args(template, spread(spec, nodes, leads=True)),
                "workerTemplate": _rank(_with_args(template, spread(spec, nodes, leads=False))),
            },
        },
    }


def _with_args(template: Object, words: list[str]) -> Object:
    changed = deepcopy(template)
    changed["spec"]["containers"][0]["args"] += words
    # Kueue admits a group whole, by the labels of the group: a pod that names a queue itself would wait on its own.
    metadata = changed["metadata"]
    metadata["labels"] = {k: v for k, v in metadata["labels"].items() if not k.startswith(KUEUE)}
    return changed


def _rank(template: Object) -> Object:
    """A pod that serves nobody itself."""
    metadata, container = template["metadata"], template["spec"]["containers"][0]
    metadata["labels"] = {k: v for k, v in metadata["labels"].items() if k != LABEL_ROLE}
    metadata["labels"][LABEL_COMPONENT] = COMPONENT_RANK
    metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if not k.startswith("prometheus.io/")}
    for field in SERVING:
        container.pop(field, None)
    return template


def step_in(item: Object) -> int:
    """Most workers that a Deployment, or groups, take away at once."""
    spec = item["spec"]
    groups = spec.get("rolloutStrategy", {}).get("rollingUpdateConfiguration", {})
    return int((groups or spec["strategy"]["rollingUpdate"])["maxUnavailable"])


def template_in(item: Object) -> Object:
    """The pod template of those that serve, of a Deployment or of groups; empty where it has none."""
    spec = item["spec"]
    found: Object = spec.get("template") or spec.get("leaderWorkerTemplate", {}).get("leaderTemplate") or {}
    return found


def key_in(item: Object) -> str:
    """The Secret with the transfer key of a Deployment's workers, or of groups; '' where they have none."""
    volumes = template_in(item).get("spec", {}).get("volumes") or []
    return next((str(v["secret"]["secretName"]) for v in volumes if v.get("name") == KEY and "secret" in v), "")


def held(manifest: Object) -> Object:
    """The manifest with its rollout stopped: a Deployment is paused, groups below the partition stay as they are."""
    spec = manifest["spec"]
    if manifest["kind"] != GROUP:
        return manifest | {"spec": spec | {"paused": True}}
    strategy = deepcopy(spec["rolloutStrategy"])
    strategy["rollingUpdateConfiguration"]["partition"] = max(spec["replicas"], 1)
    return manifest | {"spec": spec | {"rolloutStrategy": strategy}}


def is_held(item: Object) -> bool:
    """Is the rollout of this Deployment, or of these groups, stopped?"""
    configuration = item["spec"].get("rolloutStrategy", {}).get("rollingUpdateConfiguration", {})
    return bool(item["spec"].get("paused")) or int(configuration.get("partition", 0)) > 0
