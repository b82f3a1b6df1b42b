"""What is shipped: it renders, it asks for no more rights than the operator uses, and every setting in it is known."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tandem_operator.edges.kinds import KINDS
from tandem_operator.loop.handlers import CHILDREN
from tandem_operator.loop.settings import from_environment
from tandem_operator.templates.allowed import ALLOWABLE

REPO = Path(__file__).resolve().parents[3]
CHART = REPO / "charts/tandem"
RULES = yaml.safe_load((REPO / "manifests/base/role.yaml").read_text())["rules"]


def kustomized(folder):
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, cwd=REPO, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def rendered():
    return kustomized("manifests/overlays/local")


def verbs(group, resource):
    return {v for rule in RULES if group in rule["apiGroups"] and resource in rule["resources"] for v in rule["verbs"]}


def test_no_right_is_a_star_and_no_secret_is_read():
    assert "*" not in str(RULES)
    assert verbs("", "secrets") == {"create"}
    assert verbs("events.k8s.io", "events") == {"create", "list"}
    assert "pods/exec" not in str(RULES)
    assert verbs("tandem.dev", "disaggregatedinferences") == {"list", "watch"}
    assert verbs("tandem.dev", "disaggregatedinferences/status") == {"patch"}


@pytest.mark.parametrize("kind", CHILDREN)
def test_every_child_that_is_watched_may_be_watched_and_written(kind):
    place = KINDS[kind]
    found = verbs(place.group, place.plural)
    assert {"list", "watch", "patch"} <= found
    assert ("get" in found) == (kind != "Pod"), "what is known of pods comes from the watch"
    assert ("delete" in found) == (kind != "Pod"), "pods are never deleted by the operator"


def test_what_the_router_may_the_operator_may_too():
    router = yaml.safe_load((REPO / "manifests/base/router-role.yaml").read_text())
    for rule in router["rules"]:
        for resource in rule["resources"]:
            assert set(rule["verbs"]) <= verbs(rule["apiGroups"][0], resource), (
                "else the API server refuses the binding"
            )


def test_the_local_overlay_renders_with_local_images_and_known_settings(rendered):
    deployments = {d["metadata"]["name"]: d for d in rendered if d["kind"] == "Deployment"}
    assert set(deployments) == {"tandem-operator", "prometheus"}
    for deployment in deployments.values():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"].endswith(":local")
        assert container["command"], "the one-machine cluster starts commands, not images"
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
    env = deployments["tandem-operator"]["spec"]["template"]["spec"]["containers"][0]["env"]
    found = from_environment({e["name"]: e.get("value", "x") for e in env if e["name"].startswith("TANDEM_")})
    assert found.images.worker.endswith(":local")
    assert found.metrics_window_seconds == 20


# An overlay of a user's: base, components, and what puts `namespace:` right.
OVERLAYS = {"base alone": [], "admission": ["admission"], "all": ["admission", "rdma/by-operator"]}


def moved(components, tmp_path):
    inside = Path("../" * len(tmp_path.parts[1:])) / str(REPO / "manifests").lstrip("/")
    body = {
        "namespace": "ml-system",
        "resources": [f"{inside}/base"],
        "components": [f"{inside}/components/{name}" for name in components],
        "transformers": [f"{inside}/transformers/namespace"],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(body))
    return kustomized(str(tmp_path))


@pytest.mark.parametrize("components", OVERLAYS.values(), ids=OVERLAYS)
def test_another_namespace_moves_the_operator_and_nothing_that_must_stay(components, tmp_path):
    found = {(item["kind"], item["metadata"]["name"]): item for item in moved(components, tmp_path)}
    places = {key: item["metadata"].get("namespace") for key, item in found.items()}
    stay = {(kind, f"tandem-operator-{name}") for kind in ("Role", "RoleBinding") for name in ("lease", "rdma")}
    cluster = {"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    for key, place in places.items():
        wide = key[0] in cluster or key[0].startswith("ValidatingAdmission")
        assert place == (None if wide else "kube-system" if key in stay else "ml-system"), key
    assert ("Role", "tandem-operator-lease") in places
    account = {"kind": "ServiceAccount", "name": "tandem-operator", "namespace": "ml-system"}
    assert [item["subjects"] for item in found.values() if "subjects" in item] == [[account]] * (
        2 + ("rdma/by-operator" in components)
    )
    if components:
        binding = found["ValidatingAdmissionPolicyBinding", "tandem-accelerators"]
        catalogue = found["ConfigMap", binding["spec"]["paramRef"]["name"]]
        assert binding["spec"]["paramRef"]["namespace"] == catalogue["metadata"]["namespace"]


def test_the_overlay_that_is_shipped_for_it_is_one_of_these(tmp_path):
    assert kustomized("manifests/overlays/elsewhere") == moved(OVERLAYS["admission"], tmp_path)


def test_promtool_reads_the_local_configuration(rendered, tmp_path):
    (config,) = [d for d in rendered if d["kind"] == "ConfigMap" and d["metadata"]["name"] == "prometheus"]
    path = tmp_path / "prometheus.yaml"
    path.write_text(config["data"]["prometheus.yaml"])
    done = subprocess.run(
        ["promtool", "check", "config", str(path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    address = {s["metadata"]["name"]: s["spec"].get("clusterIP") for s in rendered if s["kind"] == "Service"}
    assert address["tandem-operator"] in path.read_text()
    assert address["prometheus"] in str(rendered)


def test_the_chart_gives_the_rights_of_the_base():
    assert yaml.safe_load((CHART / "files/operator-rules.yaml").read_text()) == RULES


def test_the_chart_carries_the_generated_crd():
    assert not (CHART / "files/crd.yaml").is_symlink(), "Flux leaves links out of what it hands to Helm"
    assert (CHART / "files/crd.yaml").read_text() == (REPO / "crds/tandem.dev_disaggregatedinferences.yaml").read_text()


def test_the_chart_uses_every_value_and_knows_no_other():
    used = set(re.findall(r"\.Values\.([a-zA-Z]+)", "".join(p.read_text() for p in (CHART / "templates").iterdir())))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert used == set(values)
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert schema["templateAllow"]["items"]["enum"] == list(ALLOWABLE)
    settings = set(re.findall(r"name: (TANDEM_\w+)", (CHART / "templates/deployment.yaml").read_text()))
    fields = {f"TANDEM_{name.upper()}" for name in type(from_environment({})).model_fields}
    assert settings <= fields
