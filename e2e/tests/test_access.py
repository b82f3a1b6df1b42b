"""The API server's own word: the operator's rights are its role's, and a second version of the API is carried out."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from e2e.harness.cluster import Cluster
from e2e.harness.kube import REPO, Kube
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, sample
from e2e.tables.rights import ROLE, rights_of

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


def test_a_second_version_of_the_api_is_carried_out_by_this_operator(tandem: Cluster) -> None:
    """The rehearsal of v1beta1 (docs/decisions/0014-v1beta1.md): served beside v1alpha1, converted by name alone."""
    kube = tandem.kube
    crd = yaml.safe_load(CRD.read_text())
    versions = crd["spec"]["versions"]
    versions.append({**json.loads(json.dumps(versions[0])), "name": "v1beta1", "storage": False})
    kube.apply(yaml.safe_dump(crd), "--force-conflicts")
    try:
        body = {**sample("beta"), "apiVersion": "tandem.dev/v1beta1"}
        until("v1beta1 is served", lambda: served(kube, body), 30)
        until("its router is there", lambda: kube.find("deployment", "beta-router", NAMESPACE), 60)
        kube.patch(
            "disaggregatedinferences.v1beta1.tandem.dev", "beta", NAMESPACE, {"spec": {"router": {"replicas": 2}}}
        )
        until("and follows", lambda: kube.find("deployment", "beta-router", NAMESPACE)["spec"]["replicas"] == 2, 60)
        old = kube.find("disaggregatedinferences.v1alpha1.tandem.dev", "beta", NAMESPACE)
        assert old["apiVersion"] == "tandem.dev/v1alpha1"
        assert old["status"]["decision"]["target"]["pools"]
    finally:
        kube.run("delete", "di", "beta", "-n", NAMESPACE, "--ignore-not-found")
        kube.apply(CRD.read_text(), "--force-conflicts")


def served(kube: Kube, body: dict) -> bool:
    try:
        kube.apply(yaml.safe_dump(body))
    except RuntimeError as error:
        if "no matches for kind" in str(error):
            return False
        raise
    return True
