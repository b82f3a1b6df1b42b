"""What prepares nodes for RDMA: it builds, is valid as far as there are schemas, and agrees with the samples."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tandem_operator.loop.settings import from_environment

REPO = Path(__file__).resolve().parents[3]
FOLDER = REPO / "manifests/components/rdma"
OWN_KINDS = {"ConfigMap", "DaemonSet"}  # Kubernetes' own, for which there are schemas


def built(name, tmp_path):
    """A component, built into a kustomization as an overlay of a user's would."""
    inside = Path("../" * len(tmp_path.parts[1:])) / str(FOLDER / name).lstrip("/")
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"components": [str(inside)]}))
    done = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("name", ["shared-device", "sriov", "network-operator"])
def test_builds_and_carries_its_label(name, tmp_path):
    found = built(name, tmp_path)
    assert found
    for item in found:
        assert item["metadata"]["labels"]["app.kubernetes.io/component"] == "rdma"
        if item["kind"] in OWN_KINDS:
            kubernetes_validate.validate(item, "1.37", strict=True)


def test_the_operators_own_way_has_its_rights_and_a_known_setting(tmp_path):
    inside = Path("../" * len(tmp_path.parts[1:])) / str(REPO / "manifests").lstrip("/")
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": [f"{inside}/base"], "components": [f"{inside}/components/rdma/by-operator"]})
    )
    done = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found = {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(done.stdout)}
    chart = yaml.safe_load((REPO / "charts/tandem/files/rdma-rules.yaml").read_text())
    assert found["ClusterRole", "tandem-operator-rdma"]["rules"] == chart
    (container,) = found["Deployment", "tandem-operator"]["spec"]["template"]["spec"]["containers"]
    env = {e["name"]: e.get("value", "x") for e in container["env"] if e["name"].startswith("TANDEM_")}
    assert from_environment(env).rdma_sharing is not None


def sample(name):
    return yaml.safe_load((REPO / f"manifests/samples/rdma/{name}.yaml").read_text())["spec"]["transfer"]["rdma"]


def test_the_shared_devices_are_those_of_the_sample(tmp_path):
    (config,) = [item for item in built("shared-device", tmp_path) if item["kind"] == "ConfigMap"]
    (shared,) = json.loads(config["data"]["config.json"])["configList"]
    assert f"{shared['resourcePrefix']}/{shared['resourceName']}" == sample("bare-shared")["resource"]


def test_the_policys_devices_and_network_are_those_of_the_sample(tmp_path):
    found = {item["kind"]: item for item in built("network-operator", tmp_path)}
    plugin = json.loads(found["NicClusterPolicy"]["spec"]["rdmaSharedDevicePlugin"]["config"])["configList"][0]
    assert f"{plugin['resourcePrefix']}/{plugin['resourceName']}" == sample("bare-shared")["resource"]
    assert [found["MacvlanNetwork"]["metadata"]["name"]] == sample("bare-shared")["networks"]
    assert found["IPPool"]["metadata"]["name"] in found["MacvlanNetwork"]["spec"]["ipam"]


def test_the_virtual_functions_are_those_of_the_sample(tmp_path):
    found = {item["kind"]: item for item in built("sriov", tmp_path)}
    named = {item["spec"]["resourceName"] for item in found.values() if "resourceName" in item["spec"]}
    assert {f"openshift.io/{name}" for name in named} == {sample("bare-sriov")["resource"]}
    assert [found["SriovNetwork"]["metadata"]["name"]] == sample("bare-sriov")["networks"]
