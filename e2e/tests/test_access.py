"""The API server's own word: the operator's rights are its role's, and a second version of the API is carried out.

So is a resource of a CRD that is newer than the operator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.harness.kube import REPO, RESOURCE, Kube
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, sample, wait_condition, wait_settled
from e2e.tables.rights import ROLE, rights_of
from e2e.tests.test_faults import passes_go_by

OPERATOR = "--as=system:serviceaccount:tandem-system:tandem-operator"
CRD = REPO / "crds/tandem.dev_disaggregatedinferences.yaml"
# What every account may: look at the API's own pages, at itself, and at whom to trust.
EVERYBODY = (
    "clustertrustbundles",
    "selfsubject",
    "/api",
    "/healthz",
    "/livez",
    "/openapi",
    "/readyz",
    "/version",
    "/.well-known",
    "selfsubjectreviews",
)


def test_the_operator_may_what_its_role_says_and_nothing_else(kube: Kube) -> None:
    lines = kube.run("auth", "can-i", "--list", OPERATOR, "-n", NAMESPACE).splitlines()[1:]
    found = set()
    for line in lines:
        resource, verbs = line.split()[0], re.findall(r"\[([^\]]*)\]", line)[-1].split()
        if resource.startswith(("[", *EVERYBODY)):
            continue
        name, _, group = resource.partition(".")
        name, _, sub = name.partition("/")
        if "/" in group:
            group, _, sub = group.partition("/")
        found |= {(group, f"{name}/{sub}" if sub else name, verb) for verb in verbs}
    assert found == set(rights_of(ROLE))


@pytest.mark.parametrize(
    "words",
    [
        ("get", "secrets"),
        ("list", "secrets"),
        ("delete", "pods"),
        ("create", "pods"),
        ("create", "pods/exec"),
        ("patch", "nodes"),
        ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
        ("update", "disaggregatedinferences.tandem.dev"),
    ],
    ids=" ".join,
)
def test_it_may_not(kube: Kube, words: tuple[str, str]) -> None:
    answer = kube.run("auth", "can-i", *words, OPERATOR, "-n", NAMESPACE, check=False)
    assert answer.strip() == "no"


@pytest.fixture
def crd(kube: Kube) -> Iterator[dict[str, Any]]:
    """The CRD, to be changed and applied; afterwards it is the shipped one again."""
    try:
        yield yaml.safe_load(CRD.read_text())
    finally:
        kube.run("delete", RESOURCE, "beta", "-n", NAMESPACE, "--ignore-not-found")
        kube.apply(CRD.read_text(), "--force-conflicts")


def test_a_second_version_of_the_api_is_carried_out_by_this_operator(kube: Kube, crd: dict[str, Any]) -> None:
    """The rehearsal of v1beta1 (docs/decisions/0014-v1beta1.md): served beside v1alpha1, converted by name alone."""
    versions = crd["spec"]["versions"]
    versions.append({**json.loads(json.dumps(versions[0])), "name": "v1beta1", "storage": False})
    kube.apply(yaml.safe_dump(crd), "--force-conflicts")
    body = {**sample("beta"), "apiVersion": "tandem.dev/v1beta1"}
    until("v1beta1 is served", lambda: served(kube, body), 30)
    until("its router is there", lambda: kube.find("deployment", "beta-router", NAMESPACE), 60)
    kube.patch("disaggregatedinferences.v1beta1.tandem.dev", "beta", NAMESPACE, {"spec": {"router": {"replicas": 2}}})
    until("and follows", lambda: kube.find("deployment", "beta-router", NAMESPACE)["spec"]["replicas"] == 2, 60)
    old = kube.find("disaggregatedinferences.v1alpha1.tandem.dev", "beta", NAMESPACE)
    assert old["apiVersion"] == "tandem.dev/v1alpha1"
    assert old["status"]["decision"]["target"]["pools"]


def test_fields_of_a_newer_crd_are_carried_along_and_what_is_known_is_carried_out(
    kube: Kube, crd: dict[str, Any]
) -> None:
    """An operator of before under the CRD of after, as while an upgrade is half done, or taken back."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for part in (schema["spec"], schema["spec"]["properties"]["pools"]["items"], schema["status"]):
        part["properties"]["later"] = {"type": "object", "properties": {"x": {"type": "integer"}}}
    kube.apply(yaml.safe_dump(crd), "--force-conflicts")
    body, later = sample("beta", suspend=True, later={"x": 1}), {"later": {"x": 2}}
    body["spec"]["pools"][0] |= later
    until("the newer CRD is served", lambda: served(kube, body), 30)
    seen = wait_condition(kube, "beta", "Ready", "True", "Suspended")
    assert seen["reason"] == "Suspended"
    status = json.dumps({"status": later})
    kube.run("patch", RESOURCE, "beta", "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", status)
    kube.patch(RESOURCE, "beta", NAMESPACE, {"spec": {"engine": {"image": "worker:2"}}})
    until("an edit is carried out", lambda: "worker:2" in images(kube), 60)
    found = wait_settled(kube, "beta")
    assert (found["spec"]["later"], found["spec"]["pools"][0]["later"]) == ({"x": 1}, {"x": 2})
    assert found["status"]["later"] == {"x": 2}
    kube.patch(RESOURCE, "beta", NAMESPACE, {"metadata": {"annotations": {"looked": "at"}}})
    version = version_of(kube)
    passes_go_by(kube, 3)
    assert version_of(kube) == version, "what another wrote in the status is not written against"


def test_a_value_that_only_a_newer_operator_knows_is_refused_in_words(kube: Kube, crd: dict[str, Any]) -> None:
    engine = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["engine"]
    engine["properties"]["name"]["enum"].append("later")
    kube.apply(yaml.safe_dump(crd), "--force-conflicts")
    body = sample("beta", suspend=True)
    del body["spec"]["rebalance"]
    another = {**body, "spec": body["spec"] | {"engine": {"name": "later", "image": "later:1"}}}
    until("the newer CRD is served", lambda: served(kube, another), 30)
    seen = wait_condition(kube, "beta", "Stalled", "True", "InvalidSpec")
    assert "engine.name" in seen["message"]
    kube.apply(yaml.safe_dump(body))
    wait_condition(kube, "beta", "Ready", "True", "Suspended")


def version_of(kube: Kube) -> str:
    return str(kube.json("get", RESOURCE, "beta", "-n", NAMESPACE)["metadata"]["resourceVersion"])


def images(kube: Kube) -> list[str]:
    """What the decode workers' containers would run."""
    pod = kube.json("get", "deployment", "beta-decode", "-n", NAMESPACE)["spec"]["template"]["spec"]
    return [container["image"] for container in pod["containers"]]


def served(kube: Kube, body: dict) -> bool:
    try:
        kube.apply(yaml.safe_dump(body))
    except RuntimeError as error:
        if any(words in str(error) for words in ("no matches for kind", "field not declared", "Unsupported value")):
            return False
        raise
    return True
