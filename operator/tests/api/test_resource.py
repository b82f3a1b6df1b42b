# ruff: noqa: E501  (a table reads by its rows)
"""One table of edits to the sample, judged twice: by the models, and by a real API server with the CRD ."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tandem_operator.api.v1alpha1 import InvalidResourceError, read

ROOT = Path(__file__).parents[3]
SAMPLE = yaml.safe_load((ROOT / "manifests/samples/smollm2.yaml").read_text())
# The sample pins its pools; edits here need room to move in.
SAMPLE["spec"]["pools"][0]["replicas"] = {"min": 1, "max": 2, "initial": 1}
SAMPLE["spec"]["pools"][1]["replicas"] = {"min": 1, "max": 3, "initial": 2}


def edited(*edits):
    """The sample with (path, value) edits; a step that is a number is an index; value None removes."""
    body = copy.deepcopy(SAMPLE)
    for path, value in edits:
        *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        node = body
        for step in steps:
            node = node.setdefault(step, {}) if isinstance(node, dict) else node[step]
        if value is None:
            del node[last]
        else:
            node[last] = copy.deepcopy(value)
    return body


def case(name, *edits):
    return pytest.param(edited(*edits), id=name)


def bad(name, path, message, *edits):
    return pytest.param(edited(*edits), path, message, id=name)


POOL = SAMPLE["spec"]["pools"][0]
COLOCATED = (
    ("spec.mode", "Colocated"),
    ("spec.pools", [{**POOL, "name": "all", "role": "Both"}]),
    ("spec.rebalance", {}),
)
VLLM = (("spec.engine", {"name": "vllm", "image": "vllm:1"}), ("spec.transfer.backend", "nixl"))
SGLANG = (
    ("spec.engine", {"name": "sglang", "image": "sglang:1"}),
    ("spec.transfer.backend", "mooncake"),
    ("spec.rebalance.roleFlips", False),
)
EIGHT = ("spec.rebalance.budget.gpus", 99)
AUTO = (
    ("spec.mode", "Auto"),
    ("spec.pools", [*SAMPLE["spec"]["pools"], {**POOL, "name": "all", "role": "Both"}]),
    EIGHT,
)
HUB = (("spec.model.source", "hf://meta-llama/Llama-3.1-70B"), ("spec.model.revision", "1605565"))
MANY = [{**POOL, "name": f"p{i}"} for i in range(17)]
TWINS = [{**POOL}, {**POOL}, SAMPLE["spec"]["pools"][1]]

GOOD = [
    case("the sample"),
    case("colocated", *COLOCATED),
    case("whichever mode is better", *AUTO),
    case("the least that can be written", ("spec.engine", None), ("spec.transfer", None), ("spec.rebalance", None),
         ("spec.router", None), ("spec.mode", None), ("spec.slo.percentile", None), ("spec.pools.0.template", None)),
    case("a hub's model", *HUB, ("spec.model.authSecretRef", {"name": "hub-token"}),
         ("spec.model.cache", {"persistentVolumeClaim": "models"})),
    case("a hub's model, on the nodes", *HUB, ("spec.model.cache", {"hostPath": "/var/cache/models"})),
    case("a claim", ("spec.model.source", "pvc://models/llama/8b")),
    case("an image of weights", ("spec.model.source", f"oci://example.com:5000/models/llama@sha256:{'0a' * 32}/8b")),
    case("scale to zero", ("spec.scaleToZero", {"afterSeconds": 1800, "holdSeconds": 600})),
    case("float32", ("spec.model.dtype", "float32")),
    case("no initial", ("spec.pools.1.replicas.initial", None)),
    case("no RDMA", ("spec.transfer.rdma", {"mode": "None"})),
    *(case(f"RDMA by {fields['mode']}", ("spec.transfer.rdma", fields)) for fields in (
        {"mode": "SRIOV", "networks": ["net/rdma-0"], "devices": ["mlx5_0:1"], "gidIndex": 3},
        {"mode": "HostDevice", "networks": ["rdma-0"], "attachment": "GKE"},
        {"mode": "HostDevice", "resource": "nvidia.com/hostdev", "count": 8},
        {"mode": "DRA", "deviceClass": "mrdma.google.com"},
        {"mode": "EFA", "count": 16})),
    case("RDMA required", ("spec.transfer.require", "RDMA")),
    case("flips off", ("spec.rebalance.roleFlips", False)),
    case("empty is unset", ("spec.transfer.rdma.networks", []), ("spec.router.template", {"volumes": [], "labels": {}})),
    case("no budget", ("spec.rebalance.budget", {})),
    case("budget by kind", ("spec.rebalance.budget", {"perAccelerator": {"h100-sxm": 1, "b200": 4}})),
    case("behavior", ("spec.rebalance.behavior", {
        "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 2}], "selectPolicy": "Max"}})),
    case("template", ("spec.pools.0.template", {
        "resources": {"limits": {"cpu": 8, "memory": "64Gi"}, "requests": {"cpu": "500m"}},
        "nodeSelector": {"topology.kubernetes.io/zone": "a"},
        "tolerations": [{"operator": "Exists"}, {"key": "a/b", "value": "c", "effect": "NoExecute", "tolerationSeconds": 3}],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net"}})),
    case("the whole template", ("spec.router.template", {
        "labels": {"a": "b"}, "affinity": {"podAffinity": {}}, "topologySpreadConstraints": [{"topologyKey": "zone"}],
        "priorityClassName": "high", "runtimeClassName": "nvidia", "schedulerName": "volcano",
        "imagePullSecrets": [{"name": "x"}], "volumes": [{"name": "x", "emptyDir": {}}],
        "volumeMounts": [{"name": "x", "mountPath": "/x"}], "containers": [{"name": "x", "image": "x"}],
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]})),
    case("hardware in full", ("spec.pools.0.hardware", {
        "accelerator": "mine", "teraflops": 500, "memoryGibibytes": 64, "memoryGigabytesPerSecond": 2000,
        "linkGigabytesPerSecond": 25, "priceMillidollarsPerHour": 900, "resourceName": "amd.com/gpu",
        "nodeSelector": {"example.com/card": "mine"}, "capacityType": "Spot"})),
    case("engine arguments", ("spec.engine.args", ["--max-batch", "32", "--chunk-tokens=128"])),
    *(case(f"tandem over {name}", ("spec.transfer.backend", name)) for name in ("nixl", "mooncake")),
    case("vllm", *VLLM, EIGHT, ("spec.model.dtype", "float16"), ("spec.engine.args", ["--max-num-seqs=64"]),
         ("spec.pools.0.parallelism", {"tensor": 4, "data": 2, "expert": 8}), ("spec.pools.1.parallelism", {"pipeline": 2})),
    case("sglang", *SGLANG, EIGHT, ("spec.pools.0.parallelism", {"tensor": 8})),
    case("tandem's equal ranks over nixl", EIGHT, ("spec.transfer.backend", "nixl"), ("spec.pools.0.parallelism", {"tensor": 2}),
         ("spec.pools.1.parallelism", {"tensor": 2})),
    case("tandem's pools of unequal ranks", EIGHT, ("spec.pools.0.parallelism", {"tensor": 4}), ("spec.pools.1.parallelism", {"tensor": 2})),
    case("colocated vllm transfers nothing", ("spec.engine", {"name": "vllm", "image": "vllm:1"}), *COLOCATED),
    case("46 characters", ("metadata.name", "a" * 46)),
    case("an explicit false", ("spec.monitoring", {"rules": False}), ("spec.suspend", False), ("spec.priority", 0)),
]  # fmt: skip

BAD = [
    bad("Auto without a colocated pool", "spec.pools", "at least one pool of each role", ("spec.mode", "Auto")),
    bad("Auto without a split", "spec.pools", "at least one pool of each role", *COLOCATED, ("spec.mode", "Auto")),
    bad("name of 47", "metadata.name", "46 characters", ("metadata.name", "a" * 47)),
    bad("name with a dot", "metadata.name", "", ("metadata.name", "a.b")),
    bad("SLO of 0", "spec.slo.ttftMilliseconds", "greater than or equal to 1", ("spec.slo.ttftMilliseconds", 0)),
    bad("TPOT below 0", "spec.slo.tpotMilliseconds", "greater than or equal to 1", ("spec.slo.tpotMilliseconds", -1)),
    bad("percentile 100", "spec.slo.percentile", "less than or equal to 99", ("spec.slo.percentile", 100)),
    bad("percentile 49", "spec.slo.percentile", "greater than or equal to 50", ("spec.slo.percentile", 49)),
    bad("no SLO", "spec.slo", "equired", ("spec.slo", None)),
    bad("no hardware", "spec.pools[0].hardware", "equired", ("spec.pools.0.hardware", None)),
    bad("no pools", "spec.pools", "at least 1 item", ("spec.pools", [])),
    bad("17 pools", "spec.pools", "at most 16 items", ("spec.pools", MANY)),
    bad("twins", "spec.pools", "", ("spec.pools", TWINS)),
    bad("two prefill pools only", "spec.pools", "one of role Decode", ("spec.pools.1.role", "Prefill")),
    bad("Both beside others", "spec.pools", "none of role Both", ("spec.pools", [*SAMPLE["spec"]["pools"], {**POOL, "name": "b", "role": "Both"}])),
    bad("colocated with roles", "spec.pools", "Both in every pool", ("spec.mode", "Colocated"), ("spec.rebalance.roleFlips", False)),
    bad("flips, colocated", "spec.rebalance.roleFlips", "roleFlips needs", *COLOCATED, ("spec.rebalance.roleFlips", True)),
    bad("a worker's name", "spec.pools[0].name", "operator's", ("spec.pools.0.name", "workers")),
    bad("the router's name", "spec.pools[0].name", "operator's", ("spec.pools.0.name", "router")),
    bad("pool name of 17", "spec.pools[0].name", "", ("spec.pools.0.name", "p" * 17)),
    bad("pool name no label", "spec.pools[0].name", "", ("spec.pools.0.name", "Pre_fill")),
    bad("initial over max", "spec.pools[0].replicas", "min <= initial <= max", ("spec.pools.0.replicas.initial", 3)),
    bad("initial under min", "spec.pools[0].replicas", "min <= initial <= max", ("spec.pools.0.replicas.initial", 0)),
    bad("min over max", "spec.pools[0].replicas", "min <= initial <= max", ("spec.pools.0.replicas", {"min": 3, "max": 2})),
    bad("minima over budget", "spec.rebalance.budget.gpus", "more accelerators", ("spec.pools.1.replicas", {"min": 3, "max": 3})),
    bad("minima over a kind's", "spec.rebalance.budget.perAccelerator", "more of it", ("spec.pools.0.replicas.initial", 2),
        ("spec.pools.0.replicas.min", 2), ("spec.rebalance.budget.perAccelerator", {"h100-sxm": 1})),
    bad("roles over budget", "spec.rebalance.budget.gpus", "minPrefill + roles.minDecode", ("spec.rebalance.roles.minDecode", 3)),
    bad("roles over maxima", "spec.rebalance.roles", "maxima", ("spec.rebalance.budget", {}), ("spec.rebalance.roles.minDecode", 5)),
    bad("quote in the name", "spec.model.servedName", "", ("spec.model.servedName", 'a"} or up{b="')),
    bad("backslash in the source", "spec.model.source", "", ("spec.model.source", "file:///a\\b")),
    bad("model twice", "spec.engine.args", "follows from the resource", ("spec.engine.args", ["--model=file:///x"])),
    bad("a hub's model by no revision", "spec.model.revision", "needs a revision", HUB[0]),
    bad("a revision of a folder", "spec.model.revision", "needs a revision", HUB[1]),
    bad("a hub's model without an owner", "spec.model.source", "", ("spec.model.source", "hf://llama"), HUB[1]),
    bad("a cache for a folder", "spec.model.source", "hf:// sources alone", ("spec.model.cache", {"hostPath": "/x"})),
    bad("a Secret for a claim", "spec.model.source", "hf:// sources alone", ("spec.model.source", "pvc://a/b"),
        ("spec.model.authSecretRef", {"name": "hub-token"})),
    *(bad(f"an image by {what}", "spec.model.source", "needs a digest", ("spec.model.source", f"oci://example.com/m{what}"))
      for what in (":latest", "@sha256:0a", "")),
    bad("asleep at once", "spec.scaleToZero.afterSeconds", "greater than or equal to 30", ("spec.scaleToZero", {"afterSeconds": 1})),
    bad("scale to zero by hand", "spec.scaleToZero", "needs rebalance.mode Auto", ("spec.scaleToZero", {"afterSeconds": 60}),
        ("spec.rebalance.mode", "Off")),
    bad("two caches", "spec.model.cache", "exactly one", *HUB,
        ("spec.model.cache", {"hostPath": "/x", "persistentVolumeClaim": "models"})),
    bad("no cache", "spec.model.cache", "exactly one", *HUB, ("spec.model.cache", {})),
    bad("one key of the connector", "spec.engine.args", "follows from the resource", *VLLM,
        ("spec.engine.args", ["--kv-transfer-config.kv_role", "kv_both"])),
    bad("vllm without an image", "spec.engine.image", "need the image", ("spec.engine.name", "vllm"), ("spec.transfer.backend", "nixl")),
    bad("vllm over tcp", "spec.transfer.backend", "vllm takes nixl", *VLLM, ("spec.transfer.backend", "tcp")),
    bad("tandem over shm", "spec.transfer.backend", "cannot transfer", ("spec.transfer.backend", "shm")),
    bad("sglang cannot flip", "spec.rebalance.roleFlips", "can change their role", *SGLANG, ("spec.rebalance.roleFlips", True)),
    bad("tandem in float16", "spec.model.dtype", "tandem takes bfloat16, float32", ("spec.model.dtype", "float16")),
    *(bad(f"tandem with {name}", "spec.pools", "lacks this kind", EIGHT, (f"spec.pools.0.parallelism.{name}", 2))
      for name in ("pipeline", "expert", "data")),
    bad("unequal ranks that nixl would read in place", "spec.pools", "tcp: it alone reshards", EIGHT, ("spec.transfer.backend", "nixl"),
        ("spec.pools.0.parallelism", {"tensor": 4})),
    bad("experts on some ranks", "spec.pools", "tensor * data", *VLLM, EIGHT, ("spec.pools.0.parallelism", {"tensor": 4, "expert": 2})),
    bad("GPU by hand", "spec.pools[0].template.resources", "follows from", ("spec.pools.0.template.resources.limits", {"nvidia.com/gpu": 1})),
    bad("the operator's env", "spec.pools[0].template.env[0].name", "operator's", ("spec.pools.0.template.env", [{"name": "TANDEM_TRANSFER_KEY"}])),
    bad("value and source", "spec.pools[0].template.env[0].valueFrom", "exclude", ("spec.pools.0.template.env", [
        {"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}])),
    bad("the operator's annotation", "spec.router.template", "operator's", ("spec.router.template.annotations", {"tandem.dev/role": "both"})),
    bad("no quantity", "spec.pools[0].template.resources.limits", "", ("spec.pools.0.template.resources.limits.cpu", "much")),
    bad("toleration of nothing", "spec.router.template.tolerations[0].operator", "needs operator Exists", ("spec.router.template.tolerations", [{"value": "x"}])),
    *(bad(f"{mode} without a device", "spec.transfer.rdma.networks", "need a resource, or networks", ("spec.transfer.rdma", {"mode": mode}))
      for mode in ("SRIOV", "HostDevice")),
    bad("DRA without a class", "spec.transfer.rdma.deviceClass", "required with mode DRA", ("spec.transfer.rdma", {"mode": "DRA"})),
    bad("a class without DRA", "spec.transfer.rdma.deviceClass", "required with mode DRA", ("spec.transfer.rdma.deviceClass", "a")),
    bad("DRA with a resource", "spec.transfer.rdma.resource", "no meaning", ("spec.transfer.rdma", {"mode": "DRA", "deviceClass": "a", "resource": "a.b/c"})),
    bad("EFA with devices", "spec.transfer.rdma.devices", "no meaning", ("spec.transfer.rdma", {"mode": "EFA", "devices": ["a"]})),
    bad("RDMA without resource", "spec.transfer.rdma.resource", "resource is required", ("spec.transfer.rdma", {"mode": "SharedDevice"})),
    bad("resource without RDMA", "spec.transfer.rdma.resource", "no meaning", ("spec.transfer.rdma.mode", "None")),
]  # fmt: skip


@pytest.mark.parametrize("body", GOOD)
def test_good(body):
    read(body)


@pytest.mark.parametrize(("body", "path", "message"), BAD)
def test_bad(body, path, message):
    with pytest.raises(InvalidResourceError) as caught:
        read(body)
    assert any(found.startswith(path) and message in found for found in caught.value.problems), caught.value.problems


def test_round_trip():
    spec = read(SAMPLE).spec
    assert read({**SAMPLE, "spec": spec.to_wire()}).spec == spec


def test_unknown_fields_of_a_newer_crd_are_dropped():
    assert read(edited(("spec.model.later", 1), ("spec.later", {"a": 1}))).spec == read(SAMPLE).spec


@pytest.mark.parametrize(
    ("edits", "flips"),
    [
        pytest.param((("spec.rebalance.roleFlips", None),), True, id="unset"),
        pytest.param((("spec.rebalance.roleFlips", False),), False, id="off"),
        pytest.param(COLOCATED, False, id="colocated"),
        pytest.param((*VLLM, ("spec.rebalance.roleFlips", None)), True, id="vllm can"),
        pytest.param((*SGLANG, ("spec.rebalance.roleFlips", None)), False, id="engine cannot"),
    ],
)
def test_flips_roles(edits, flips):
    assert read(edited(*edits)).spec.flips_roles is flips


KUBECTL = Path(sys.executable).with_name("kubectl")


def kubectl(*arguments, body=None):
    text = None if body is None else yaml.safe_dump(body)
    return subprocess.run([KUBECTL, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def server(tandem):
    """An API server that has the CRD of this checkout; kubectl finds it by KUBECONFIG."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(tandem.kube.kubeconfig))
        yield


def dry_run(body):
    body = copy.deepcopy(body)
    body["metadata"]["namespace"] = "default"
    return kubectl("create", "--dry-run=server", "-o", "yaml", "-f", "-", body=body)


@pytest.mark.cluster
@pytest.mark.parametrize("body", GOOD)
def test_server_takes_good(server, body):
    done = dry_run(body)
    assert done.returncode == 0, done.stderr
    # What the server filled in and what the models fill in are the same.
    assert read(yaml.safe_load(done.stdout)).spec == read(body).spec


@pytest.mark.cluster
@pytest.mark.parametrize(("body", "path", "message"), BAD)
def test_server_refuses_bad(server, body, path, message):
    done = dry_run(body)
    said = done.stderr.replace("should have at least 1 items", "at least 1 item").replace(
        "must have at most 16 items", "at most 16 items"
    )
    assert done.returncode != 0
    assert path in said
    assert message in said
