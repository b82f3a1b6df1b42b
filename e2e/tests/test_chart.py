"""The Helm chart by the real helm: what it renders, and what it refuses."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.harness.chart import CHART, HELM, LOCAL, HelmError, Values, helm, render, text
from e2e.harness.cluster import OLDEST
from e2e.harness.kube import REPO
from e2e.harness.world import OVERLAY, SYSTEM
from tandem_operator.loop.settings import LABELS, Settings, from_environment

needs_helm = pytest.mark.skipif(
    not HELM.exists(), reason=f"there is no {HELM.relative_to(REPO)}: `make helm` builds it"
)
pytestmark = [pytest.mark.slow, needs_helm]

POOL = {"key": "cloud.google.com/gke-nodepool", "value": "h100"}
FUNCTIONS = {"resourceName": "hca_vf", "namespace": "sriov", "pfNames": ["ens1f0np0"], "numVfs": 8, "mtu": 9000}
SHARED: Values = {"rdmaSetup": {"nodePools": [POOL]}}

# What people ask of it, and the roles and bindings, as kind/[namespace/]name, that then come and go.
WIDE = {
    "ClusterRole/tandem-operator",
    "ClusterRoleBinding/tandem-operator",
    "Role/kube-system/tandem-operator-lease",
    "RoleBinding/kube-system/tandem-operator-lease",
}
ROUTER = {"ClusterRole/tandem-router"}
RDMA = {"ClusterRole/tandem-operator-rdma", "RoleBinding/kube-system/tandem-operator-rdma"}
POLICIES = {"ClusterRole/tandem-operator-rdma-policies", "RoleBinding/sriov/tandem-operator-rdma-policies"}
NODES = {"ClusterRole/tandem-operator-rdma-nodes", "ClusterRoleBinding/tandem-operator-rdma-nodes"}
ONE = {
    f"{kind}/serving/{name}"
    for kind in ("Role", "RoleBinding")
    for name in ("tandem-operator", "tandem-operator-lease")
}
ASKED: dict[str, tuple[Values, set[str]]] = {
    "nothing": ({}, WIDE | ROUTER),
    "one namespace": ({"namespace": "serving"}, ONE | ROUTER),
    "a second installation": ({"routerRole": False, "crds": {"enabled": False}}, WIDE),
    "shared cards": (SHARED, WIDE | ROUTER | RDMA),
    "shared cards taken away": ({"rdmaSetup": {"enabled": True}}, WIDE | ROUTER | RDMA),
    "virtual functions": (
        {"rdmaSetup": {"nodePools": [POOL], "virtualFunctions": FUNCTIONS}},
        WIDE | ROUTER | RDMA | POLICIES,
    ),
    "the network operator": (
        {"rdmaSetup": {"nodePools": [POOL], "networkOperator": True}},
        WIDE | ROUTER | RDMA | NODES,
    ),
    "switches without node pools": (
        {
            "rdmaSetup": {"virtualFunctions": FUNCTIONS},
            "podMonitor": True,
            "monitorLabels": "release=prometheus,team=ml",
        },
        WIDE | ROUTER,
    ),
}

# Every value of values.yaml, set to something else.
EACH: Values = {
    "image": "registry/operator:1",
    "workerImage": "registry/worker:1",
    "routerImage": "registry/router:1",
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "registry"}],
    "replicas": 2,
    "prometheusUrl": "https://thanos.monitoring.svc:9090/prefix",
    "metricsWindowSeconds": 3600,
    "monitorLabels": "release=prometheus",
    "podMonitor": True,
    "resyncSeconds": 86_400,
    "workerThreads": 256,
    "templateAllow": ["HostPath", "Root"],
    "logLevel": "DEBUG",
    "fleetGpus": 1_000_000,
    "namespace": "serving",
    "rdmaSetup.enabled": True,
    "rdmaSetup.nodePools": [POOL],
    "rdmaSetup.virtualFunctions": FUNCTIONS,
    "rdmaSetup.networkOperator": True,
    "rdmaSetup.resource": "rdma/other",
    "rdmaSetup.vendors": ["15b3", "14e4"],
    "rdmaSetup.image": "registry/plugin:1",
    "routerRole": False,
    "crds.enabled": False,
    "crds.keep": False,
    "resources": {"limits": {"memory": "2Gi"}},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}


def one(path: str) -> tuple[Values, Values]:
    """Values with this one set, and those without it that it is compared with."""
    top, _, name = path.partition(".")
    if not name:
        return {top: EACH[path]}, {}
    # What is shared, and how, matters once something is.
    base = {} if path in {"rdmaSetup.enabled", "rdmaSetup.nodePools"} or top == "crds" else SHARED
    return {top: {**base.get(top, {}), name: EACH[path]}}, base


def called(item: dict[str, Any]) -> str:
    about = item["metadata"]
    return "/".join(filter(None, (item["kind"], about.get("namespace"), about["name"])))


def of_kind(items: list[dict[str, Any]], *kinds: str) -> dict[str, dict[str, Any]]:
    return {called(item): item for item in items if item["kind"] in kinds}


def operator(items: list[dict[str, Any]]) -> dict[str, Any]:
    return of_kind(items, "Deployment")[f"Deployment/{SYSTEM}/tandem-operator"]


def settings(items: list[dict[str, Any]]) -> Settings:
    """The settings as the operator itself reads them: it ends at once where one is wrong."""
    (container,) = operator(items)["spec"]["template"]["spec"]["containers"]
    return from_environment({e["name"]: e.get("value", "pod" if "valueFrom" in e else "") for e in container["env"]})


def kustomized(folder: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, cwd=REPO, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def leaves(values: Values) -> set[str]:
    nested = {"rdmaSetup", "crds"}
    return {k for k in values if k not in nested} | {f"{top}.{name}" for top in nested for name in values[top]}


# Lint and rendering.


@pytest.mark.parametrize("values", [values for values, _ in ASKED.values()], ids=ASKED)
def test_helm_finds_no_fault_and_the_operator_takes_its_settings(values: Values) -> None:
    helm("lint", "--strict", str(CHART), values=values)
    settings(render(values))


def test_each_value_is_in_the_table() -> None:
    assert set(EACH) == leaves(yaml.safe_load((CHART / "values.yaml").read_text()))


@pytest.mark.parametrize("path", EACH)
def test_each_value_does_something_that_helm_and_the_operator_take(path: str) -> None:
    values, without = one(path)
    helm("lint", "--strict", str(CHART), values=values)
    items = render(values)
    assert items != render(without)
    settings(items)


def test_the_largest_number_is_written_in_digits() -> None:
    assert settings(render({"fleetGpus": 1_000_000})).fleet_gpus == 1_000_000


@pytest.mark.parametrize("values", [values for values, _ in ASKED.values()], ids=ASKED)
def test_the_same_values_give_the_same_bytes(values: Values) -> None:
    first = text(values)
    assert first == text(values)
    assert first == text(values, "--is-upgrade")
    assert first == text(values, "--kube-version", "1.99.0", "--api-versions", "example.com/v1")


def test_no_template_asks_the_cluster_the_clock_or_chance() -> None:
    words = re.compile(
        r"\b(lookup|now|ago|date\w*|rand\w+|uuidv4|gen[A-Z]\w+|htpasswd|bcrypt|getHostByName)\b|helm\.sh/hook"
    )
    found = {file.name: words.findall(file.read_text()) for file in (CHART / "templates").iterdir()}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_a_copy_without_links_and_a_package_render_the_same(tmp_path: Path) -> None:
    """Flux leaves links out of what it hands to Helm; a registry has packages."""
    assert [path for path in CHART.rglob("*") if path.is_symlink()] == []
    helm("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("tandem-*.tgz")
    assert text({}, chart=package) == text({})


# The same as the kustomize manifests.

# In the rendering and not in manifests/base, or the other way round; all else is equal.
IN_BASE_ALONE = {f"Namespace/{SYSTEM}": "helm install --create-namespace, or whoever owns the namespace"}
OF_HELM_ALONE = {
    "helm.sh/resource-policy": "the CRD outlives an uninstall",
    "env": "the chart spells out the settings that the base leaves to the operator; they are compared as settings",
    "image": "an overlay's images:, the chart's image",
    "imagePullPolicy": "a value of the chart; the base leaves it to the cluster",
}


def without_the_differences(item: dict[str, Any]) -> dict[str, Any]:
    if item["kind"] == "Deployment":
        (container,) = item["spec"]["template"]["spec"]["containers"]
        item["spec"]["template"]["spec"]["containers"] = [
            {k: v for k, v in container.items() if k not in OF_HELM_ALONE}
        ]
    if notes := item["metadata"].get("annotations"):
        notes.pop("helm.sh/resource-policy", None)
        item["metadata"] = {k: v for k, v in item["metadata"].items() if v != {}}
    return item


def test_default_values_mean_what_the_base_means() -> None:
    chart = {called(item): without_the_differences(item) for item in render({})}
    base = {called(item): without_the_differences(item) for item in kustomized("manifests/base")}
    assert set(base) - set(chart) == set(IN_BASE_ALONE)
    assert {name: item for name, item in base.items() if name not in IN_BASE_ALONE} == chart


@pytest.mark.parametrize(
    ("values", "folder", "overlaid"),
    [({}, "manifests/base", {"worker_image", "router_image"}), (LOCAL, OVERLAY, set())],
    ids=["base", "local"],
)
def test_the_settings_are_those_of_the_manifests(values: Values, folder: str, overlaid: set[str]) -> None:
    chart, manifests = (settings(items).model_dump(exclude=overlaid) for items in (render(values), kustomized(folder)))
    assert chart == manifests


def test_the_rdma_rights_are_those_of_the_component(tmp_path: Path) -> None:
    shutil.copytree(REPO / "manifests/components/rdma/by-operator", tmp_path / "part")
    (tmp_path / "kustomization.yaml").write_text("resources: [part/access.yaml]\n")
    for name, item in of_kind(kustomized(str(tmp_path)), "ClusterRole", "RoleBinding").items():
        ours = of_kind(render(SHARED), "ClusterRole", "RoleBinding")[name]
        keys = {"rules", "roleRef", "subjects"} & set(item)
        assert {k: ours[k] for k in keys} == {k: item[k] for k in keys}


# Rights.


@pytest.mark.parametrize(("values", "expected"), ASKED.values(), ids=ASKED)
def test_rights_come_when_they_are_asked_for_and_no_other(values: Values, expected: set[str]) -> None:
    items = render(values)
    roles, bindings = of_kind(items, "Role", "ClusterRole"), of_kind(items, "RoleBinding", "ClusterRoleBinding")
    assert set(roles) | set(bindings) == expected
    assert "*" not in str([role["rules"] for role in roles.values()])
    account = {"kind": "ServiceAccount", "name": "tandem-operator", "namespace": SYSTEM}
    for binding in bindings.values():
        assert binding["subjects"] == [account]
        ref = binding["roleRef"]
        where = binding["metadata"]["namespace"] + "/" if ref["kind"] == "Role" else ""
        assert f"{ref['kind']}/{where}{ref['name']}" in roles, "a binding to a role that is not there gives nothing"


# Refusals.


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"promethuesUrl": "http://x"}, "promethuesUrl"),
        ({"rdmaSetup": {"nodePool": []}}, "nodePool"),
        ({"crds": {"kep": True}}, "kep"),
        ({"replicas": "two"}, "/replicas"),
        ({"replicas": 0}, "/replicas"),
        ({"crds": {"keep": "yes"}}, "/crds/keep"),
        ({"templateAllow": ["Rot"]}, "/templateAllow/0"),
        ({"namespace": "kube-system"}, "/namespace"),
        ({"monitorLabels": "release"}, "/monitorLabels"),
        ({"prometheusUrl": "http://user@host"}, "/prometheusUrl"),
        ({"imagePullSecrets": ["registry"]}, "/imagePullSecrets/0"),
        ({"rdmaSetup": {"nodePools": [{"key": "a,b", "value": "c"}]}}, "/rdmaSetup/nodePools/0/key"),
        ({"rdmaSetup": {"virtualFunctions": {"numVfs": 8}}}, "resourceName"),
        ({"rdmaSetup": {"networkOperator": True, "virtualFunctions": FUNCTIONS}}, "/rdmaSetup/virtualFunctions"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(values: Values, words: str) -> None:
    with pytest.raises(HelmError) as refused:
        render(values)
    assert words in str(refused.value)


def test_labels_are_what_the_operator_takes() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]
    assert schema["monitorLabels"]["pattern"] == LABELS


@pytest.mark.parametrize("version", ["1.35.0", "v1.35.2-gke.100", "v1.37.1-eks-1a2b3c"])
def test_supported_versions_are_taken(version: str) -> None:
    assert render({}, "--kube-version", version)


@pytest.mark.parametrize("version", ["1.34.9", "v1.32.0"])
def test_an_older_kubernetes_is_refused(version: str) -> None:
    with pytest.raises(HelmError, match="incompatible with Kubernetes"):
        render({}, "--kube-version", version)


def test_the_oldest_is_the_one_that_the_tests_and_the_page_name() -> None:
    oldest = OLDEST.name.rpartition("-")[2]
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["kubeVersion"] == f">={oldest}.0-0"
    assert f"Kubernetes {oldest} or newer" in (REPO / "docs/operations/operators.md").read_text()
