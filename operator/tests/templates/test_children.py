"""The children of a resource, as the API server gets them."""

from __future__ import annotations

import copy

import jinja2
import pytest

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.v1alpha1 import read
from tandem_operator.loop.catalogue import accelerators_of
from tandem_operator.templates import children
from tandem_operator.templates.names import Owner
from tandem_operator.templates.render import render

OWNER = Owner("chat", "serving", "uid-1")
IMAGES = children.Images("worker:1", "router:1")
BODY = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "DisaggregatedInference",
    "metadata": {"name": "chat", "namespace": "serving", "uid": "uid-1", "generation": 1},
    "spec": {
        "model": {"source": "file:///models/m", "servedName": "m", "maxContext": 2048},
        "pools": [
            {
                "name": "prefill",
                "role": "Prefill",
                "hardware": {"accelerator": "h100-sxm"},
                "replicas": {"min": 1, "max": 4},
            },
            {
                "name": "decode",
                "role": "Decode",
                "hardware": {"accelerator": "h200-sxm"},
                "replicas": {"min": 1, "max": 4},
            },
        ],
        "slo": {"ttftMilliseconds": 500, "tpotMilliseconds": 40},
    },
}


def spec(**changed):
    body = copy.deepcopy(BODY)
    body["spec"].update(changed)
    return read(body).spec


def everything(found):
    pools = children.pools_of(
        OWNER, found, accelerators_of(found, CATALOGUE), IMAGES, {pool.name: 2 for pool in found.pools}
    )
    router = children.router_deployment(OWNER, found, IMAGES)
    key = children.transfer_key(OWNER, "ab" * 32)
    return [
        *children.access(OWNER),
        *children.services(OWNER, found),
        *pools,
        router,
        *children.budgets(OWNER, found),
        key,
    ]


def worker(found, pool=0):
    return children.pools_of(OWNER, found, accelerators_of(found, CATALOGUE), IMAGES, {p.name: 1 for p in found.pools})[
        pool
    ]


def container(deployment):
    return deployment["spec"]["template"]["spec"]["containers"][0]


def test_names_and_kinds():
    found = {(m["kind"], m["metadata"]["name"]) for m in everything(spec())}
    assert found == {
        ("ServiceAccount", "chat-worker"),
        ("ServiceAccount", "chat-router"),
        ("RoleBinding", "chat-router"),
        ("NetworkPolicy", "chat-workers"),
        ("Service", "chat-router"),
        ("Service", "chat-workers"),
        ("Deployment", "chat-prefill"),
        ("Deployment", "chat-decode"),
        ("Deployment", "chat-router"),
        ("PodDisruptionBudget", "chat-role-prefill"),
        ("PodDisruptionBudget", "chat-role-decode"),
        ("PodDisruptionBudget", "chat-router"),
        ("Secret", OWNER.key_secret),
    }


@pytest.mark.parametrize("manifest", everything(spec()), ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")
def test_every_child_is_labelled_and_owned(manifest):
    metadata = manifest["metadata"]
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "tandem-operator"
    assert metadata["labels"]["tandem.dev/resource"] == "chat"
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("uid-1", True, False)
    assert metadata["namespace"] == "serving"


def test_the_role_is_on_the_pod_and_in_no_selector_that_owns_it():
    """A disruption budget owns nothing: a pod that flips leaves one and comes into the other."""
    for manifest in everything(spec()):
        if manifest["kind"] == "PodDisruptionBudget":
            continue
        selector = manifest.get("spec", {}).get("selector", {})
        assert "tandem.dev/role" not in selector.get("matchLabels", selector)
    assert worker(spec())["spec"]["template"]["metadata"]["labels"]["tandem.dev/role"] == "prefill"
    assert worker(spec(), 1)["spec"]["template"]["metadata"]["labels"]["tandem.dev/role"] == "decode"


def test_a_workers_command_is_as_the_borders_say():
    found = container(worker(spec(engine={"args": ["--max-batch", "8"]})))
    assert found["command"] == ["tandem-worker"]
    assert found["args"] == [
        "--model",
        "file:///models/m",
        "--served-name",
        "m",
        "--dtype",
        "bfloat16",
        "--max-context",
        "2048",
        "--host",
        "$(POD_IP)",
        "--port",
        "8000",
        "--kv-port",
        "8001",
        "--transfer-backend",
        "tcp",
        "--max-batch",
        "8",
    ]
    threads = children.Images("w", "r", worker_threads=1)
    (pool, _) = children.pools_of(
        OWNER, spec(), accelerators_of(spec(), CATALOGUE), threads, {"prefill": 1, "decode": 1}
    )
    assert "--threads 1" in " ".join(container(pool)["args"])


def test_a_routers_command_has_the_targets():
    found = container(children.router_deployment(OWNER, spec(), IMAGES))
    assert found["command"] == ["tandem-router"]
    words = "--namespace serving --resource chat --host 0.0.0.0 --port 8000 --ttft-ms 500 --tpot-ms 40 --engine tandem"
    assert found["args"] == words.split()


RDMA = {"rdma": {"mode": "SharedDevice", "resource": "rdma/hca", "count": 2}}


@pytest.mark.parametrize(
    ("transfer", "devices", "capabilities"),
    [
        pytest.param({}, {"nvidia.com/gpu": "1"}, {"drop": ["ALL"]}, id="no RDMA, no capability"),
        pytest.param(RDMA, {"nvidia.com/gpu": "1", "rdma/hca": "2"}, {"drop": ["ALL"], "add": ["IPC_LOCK"]}, id="RDMA"),
    ],
)
def test_devices(transfer, devices, capabilities):
    found = container(worker(spec(transfer=transfer)))
    assert found["resources"] == {"limits": devices, "requests": devices}
    assert found["securityContext"]["capabilities"] == capabilities


def test_a_gpu_worker_asks_for_its_product_and_tolerates_its_taint():
    pod = worker(spec(), 1)["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    products = ["NVIDIA-H200", "NVIDIA-H200-141GB-HBM3e"]
    product = {"key": "nvidia.com/gpu.product", "operator": "In", "values": products}
    assert terms[0] == {"matchExpressions": [product]}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def test_a_cpu_worker_asks_for_no_device():
    pools = copy.deepcopy(BODY["spec"]["pools"])
    pools[0]["hardware"] = {"accelerator": "cpu"}
    pod = worker(spec(pools=pools))["spec"]["template"]["spec"]
    assert "nodeAffinity" not in pod["affinity"]
    assert "tolerations" not in pod
    assert "resources" not in pod["containers"][0]


@pytest.mark.parametrize(
    "deployment", [m for m in everything(spec()) if m["kind"] == "Deployment"], ids=lambda m: m["metadata"]["name"]
)
def test_pods_are_restricted_and_probed(deployment):
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (found,) = pod["containers"]
    assert found["securityContext"]["readOnlyRootFilesystem"] is True
    assert found["securityContext"]["allowPrivilegeEscalation"] is False
    assert found["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert found["livenessProbe"]["httpGet"]["path"] == "/health"
    assert found["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert pod["terminationGracePeriodSeconds"] == 40
    assert [e["name"] for e in found["env"]][:4] == ["POD_NAME", "POD_IP", "POD_NAMESPACE", "TANDEM_RESOURCE"]


def test_a_workers_account_has_no_token():
    _, account, router, binding = children.access(OWNER)
    assert account["automountServiceAccountToken"] is False
    assert worker(spec())["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert router["automountServiceAccountToken"] is True
    assert binding["roleRef"]["name"] == "tandem-router"
    assert binding["subjects"][0] == {"kind": "ServiceAccount", "name": "chat-router", "namespace": "serving"}


def test_all_of_a_workers_ports_but_http_are_for_the_resources_own_workers():
    """The transfer libraries choose their ports themselves, and ask nobody there who he is."""
    policy = children.access(OWNER)[0]["spec"]
    workers = {"matchLabels": {"tandem.dev/resource": "chat", "tandem.dev/component": "worker"}}
    labels = worker(spec())["spec"]["template"]["metadata"]["labels"]
    assert workers["matchLabels"].items() <= labels.items()
    assert policy["podSelector"] == workers
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": workers}]}, {"ports": [{"protocol": "TCP", "port": 8000}]}]


@pytest.mark.parametrize("text", ['x"y', "a: b", "{{ 7*7 }}", "line\nbreak", "# none", "<&>'"])
def test_every_scalar_is_quoted(text):
    manifest = render("secret", metadata={"name": text}, key=text)
    assert manifest["metadata"]["name"] == text
    assert manifest["stringData"]["key"] == text


def test_a_missing_value_is_an_error():
    with pytest.raises((jinja2.UndefinedError, TypeError)):
        render("secret", metadata={"name": "x"})


def test_the_stamp_follows_every_change():
    def stamp(found):
        return children.stamped(worker(found))["metadata"]["annotations"]["tandem.dev/applied"]

    template = {"nodeSelector": {"disk": "fast"}}
    pools = copy.deepcopy(BODY["spec"]["pools"])
    pools[0]["template"] = template
    assert stamp(spec()) == stamp(spec())
    assert stamp(spec()) != stamp(spec(pools=pools))


@pytest.mark.parametrize(
    ("roles", "kept"),
    [
        pytest.param(None, {"prefill": 0, "decode": 0, None: None}, id="as the pools begin: one of each"),
        pytest.param({"prefill": 3, "decode": 1}, {"prefill": 2, "decode": 0, None: None}, id="by the target's roles"),
        pytest.param({"both": 4}, {"both": 3, None: None}, id="colocated"),
    ],
)
def test_a_drain_takes_one_worker_of_a_role(roles, kept):
    found = children.budgets(OWNER, spec(), roles)
    by_role = {b["spec"]["selector"]["matchLabels"].get("tandem.dev/role"): b["spec"] for b in found}
    assert {role: budget.get("minAvailable") for role, budget in by_role.items()} == kept
    assert by_role[None]["maxUnavailable"] == 1, "the router's"
    assert all(budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow" for budget in by_role.values())
    pods = [budget["selector"]["matchLabels"] for budget in by_role.values()]
    assert len({str(sorted(labels.items())) for labels in pods}) == len(pods), (
        "the eviction API allows a pod one budget"
    )


@pytest.mark.parametrize(
    ("minimum", "workers", "left"),
    [
        pytest.param(1, 1, 0, id="everybody's minimum: the only worker's node can be renewed"),
        pytest.param(1, 3, 2, id="one at a time"),
        pytest.param(2, 2, 2, id="at the minimum that was asked for: none goes"),
        pytest.param(2, 3, 2, id="above it: down to it"),
        pytest.param(2, 5, 4, id="far above it: one at a time"),
        pytest.param(2, 1, 1, id="below it, while the second still comes: none goes"),
        pytest.param(2, 0, 0, id="suspended"),
    ],
)
def test_a_drain_keeps_a_roles_minimum(minimum, workers, left):
    rebalance = {"roles": {"minPrefill": 1, "minDecode": minimum}}
    budgets = children.budgets(OWNER, spec(rebalance=rebalance), {"prefill": 1, "decode": workers})
    assert budgets[1]["spec"]["minAvailable"] == left


FORMER = Owner("chat", "serving", "uid-1", former_key=True)
OTHER = Owner("chat", "serving", "uid-2")


def test_the_transfer_keys_name_comes_from_the_uid_and_fits():
    long = Owner("x" * 46, "serving", "uid-1")
    assert OWNER.key_secret.startswith("chat-transfer-key-")
    assert len({OWNER.key_secret, OTHER.key_secret, FORMER.key_secret}) == 3
    assert FORMER.key_secret == "chat-transfer-key"
    assert len(long.key_secret) <= 253, "a Secret's name is no label"


@pytest.mark.parametrize(
    ("engine", "same"), [({"name": "tandem"}, False), ({"name": "vllm", "image": "vllm/vllm-openai:v0.14.0"}, True)]
)
def test_workers_of_different_keys_are_of_different_revisions(engine, same):
    found = spec(engine=engine, transfer={"backend": "nixl"})
    revisions = {children.revision_of(owner, found, IMAGES) for owner in (OWNER, FORMER)}
    assert (len(revisions) == 1) is same, "only tandem's own workers have a key"
