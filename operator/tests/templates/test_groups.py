"""The pods of a replica that spans nodes: what its leader runs, what the others do."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.v1alpha1 import InvalidResourceError, read
from tandem_operator.loop.catalogue import accelerators_of
from tandem_operator.templates import children
from tandem_operator.templates.groups import held, is_held, template_in
from tests.templates.test_children import BODY, IMAGES, OWNER


def pool(engine, parallelism, accelerator="h100-sxm", template=None):
    """The first pool's manifest."""
    spec = copy.deepcopy(BODY["spec"])
    spec["pools"][0]["template"] = template or {}
    spec |= {"transfer": {"backend": "nixl"}, "engine": {"name": engine, "image": "engine:1"}}
    spec["pools"][0] |= {"parallelism": parallelism, "hardware": {"accelerator": accelerator}}
    found = read({**BODY, "spec": spec}).spec
    replicas = {p.name: 3 for p in found.pools}
    return children.pools_of(OWNER, found, accelerators_of(found, CATALOGUE), IMAGES, replicas)[0]


def pods(groups):
    inner = groups["spec"]["leaderWorkerTemplate"]
    return inner["leaderTemplate"], inner["workerTemplate"]


@pytest.mark.parametrize(
    ("parallelism", "accelerator", "kind", "size", "gpus"),
    [
        pytest.param({"tensor": 8}, "h100-sxm", "Deployment", None, "8", id="a whole node"),
        pytest.param({"tensor": 8, "pipeline": 2}, "h100-sxm", "LeaderWorkerSet", 2, "8", id="two nodes"),
        pytest.param({"tensor": 12}, "h100-sxm", "LeaderWorkerSet", 2, "6", id="a node and a half"),
        pytest.param({"tensor": 8}, "gb200", "LeaderWorkerSet", 2, "4", id="nodes of four"),
    ],
)
def test_a_replica_takes_as_few_nodes_as_it_can(parallelism, accelerator, kind, size, gpus):
    made = pool("vllm", parallelism, accelerator)
    assert (made["kind"], made["metadata"]["name"]) == (kind, "chat-prefill")
    assert made["spec"].get("leaderWorkerTemplate", {}).get("size") == size
    container = template_in(made)["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": gpus}


@pytest.mark.parametrize(
    ("engine", "leader", "rank"),
    [
        pytest.param(
            "vllm",
            "--nnodes 2 --node-rank $(LWS_WORKER_INDEX) --master-addr $(LWS_LEADER_ADDRESS)",
            "--nnodes 2 --node-rank $(LWS_WORKER_INDEX) --master-addr $(LWS_LEADER_ADDRESS) --headless",
            id="vllm",
        ),
        pytest.param(
            "sglang",
            *["--dist-init-addr $(LWS_LEADER_ADDRESS):5000 --nnodes 2 --node-rank $(LWS_WORKER_INDEX)"] * 2,
            id="sglang",
        ),
    ],
)
def test_the_pods_find_each_other(engine, leader, rank):
    for template, words in zip(pods(pool(engine, {"tensor": 16})), (leader, rank), strict=True):
        assert " ".join(template["spec"]["containers"][0]["args"]).endswith(words)


def test_the_leader_alone_serves():
    leader, rank = pods(pool("vllm", {"tensor": 16}))
    assert leader["metadata"]["labels"]["tandem.dev/component"] == "worker"
    assert leader["metadata"]["labels"]["tandem.dev/role"] == "prefill"
    assert rank["metadata"]["labels"]["tandem.dev/component"] == "rank"
    assert "tandem.dev/role" not in rank["metadata"]["labels"]
    assert "prometheus.io/scrape" not in rank["metadata"]["annotations"]
    assert not {"ports", "startupProbe", "readinessProbe", "livenessProbe"} & rank["spec"]["containers"][0].keys()
    assert rank["spec"]["containers"][0]["image"] == leader["spec"]["containers"][0]["image"]


def test_a_group_goes_before_its_successor_comes_and_a_rollout_can_be_held():
    made = pool("vllm", {"tensor": 16})
    strategy = made["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
    assert strategy == {"partition": 0, "maxSurge": 0, "maxUnavailable": 1}
    stopped = held(made)
    assert stopped["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"] == 3
    assert (is_held(made), is_held(stopped)) == (False, True)
    deployment = pool("vllm", {"tensor": 8})
    assert (is_held(deployment), is_held(held(deployment))) == (False, True)


QUEUE = {"kueue.x-k8s.io/queue-name": "gpu", "kueue.x-k8s.io/priority-class": "serving"}
TOPOLOGY = {"kueue.x-k8s.io/podset-preferred-topology": "rack"}


def asked(metadata):
    return {k: v for field in ("labels", "annotations") for k, v in metadata.get(field, {}).items() if "kueue" in k}


@pytest.mark.parametrize(
    ("tensor", "on_pods"),
    [
        pytest.param(8, {**QUEUE, **TOPOLOGY}, id="Deployment: each pod for itself"),
        pytest.param(16, TOPOLOGY, id="groups: whole, so no pod names the queue"),
    ],
)
def test_a_queue_is_named_where_kueue_reads_it(tensor, on_pods):
    labels = {**QUEUE, "team": "a"}
    made = pool("vllm", {"tensor": tensor}, template={"labels": labels, "annotations": TOPOLOGY})
    assert asked(made["metadata"]) == QUEUE
    assert "team" not in made["metadata"]["labels"]
    for template in pods(made) if tensor == 16 else [made["spec"]["template"]]:
        assert asked(template["metadata"]) == on_pods
        assert template["metadata"]["labels"]["team"] == "a"
    selected = made["spec"].get("selector", {}).get("matchLabels", {})
    assert not asked({"labels": selected})


def test_a_router_is_queued_too():
    found = read({**BODY, "spec": {**BODY["spec"], "router": {"template": {"labels": QUEUE}}}}).spec
    made = children.router_deployment(OWNER, found, IMAGES)
    assert asked(made["metadata"]) == asked(made["spec"]["template"]["metadata"]) == QUEUE


def test_a_tandem_worker_is_one_nodes():
    spec = copy.deepcopy(BODY["spec"])
    spec["pools"][0]["parallelism"] = {"tensor": 16}
    found = read(
        {**BODY, "spec": {**spec, "engine": {"name": "vllm", "image": "e:1"}, "transfer": {"backend": "nixl"}}}
    )
    tandem = found.spec.model_copy(update={"engine": found.spec.engine.model_copy(update={"name": "tandem"})})
    with pytest.raises(InvalidResourceError, match="one node's"):
        children.pools_of(OWNER, tandem, accelerators_of(tandem, CATALOGUE), IMAGES, {p.name: 1 for p in tandem.pools})
