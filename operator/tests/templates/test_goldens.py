"""What the samples become: as committed, valid by Kubernetes' and LeaderWorkerSet's schemas, taken by an API server."""

from __future__ import annotations

import json

import jsonschema
import kubernetes_validate
import pytest
import yaml

from e2e.goldens import GOLDENS, REPO, samples, templates_of, text_of
from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.v1alpha1 import read
from tandem_operator.plan.limits import limits_of
from tandem_operator.templates.groups import GROUP

SAMPLES = [pytest.param(path, id=path.stem) for path in samples()]
OLDEST, NEWEST = "1.34", "1.37"  # of the schemas: resource.k8s.io/v1 is there since 1.34
PUBLISHED = REPO / "operator/tests/schemas/leaderworkersets.yaml"


def manifests(path):
    return list(yaml.safe_load_all((GOLDENS / path.name).read_text()))


@pytest.mark.parametrize("path", SAMPLES)
def test_current(path):
    assert (GOLDENS / path.name).read_text() == text_of(path), "run python -m e2e.goldens and look at the difference"


def test_no_golden_without_its_sample():
    assert {path.name for path in GOLDENS.glob("*.yaml")} == {path.name for path in samples()}


@pytest.mark.parametrize("path", SAMPLES)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_valid_by_the_schemas(path, version):
    for manifest in manifests(path):
        if manifest["kind"] != GROUP:
            kubernetes_validate.validate(manifest, version, strict=True)
        for template in templates_of(manifest):
            pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
            kubernetes_validate.validate(pods, version, strict=True)


def strict(schema):
    """The schema as an API server reads it that validates fields strictly: what it does not name is refused."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: strict(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed["additionalProperties"] = False
    return closed


def check_groups(spec):
    text = "".join(line for line in PUBLISHED.read_text().splitlines() if not line.startswith("#"))
    jsonschema.Draft202012Validator(strict(json.loads(text))).validate(spec)


GROUPS = {path.stem: manifest for path in samples() for manifest in manifests(path) if manifest["kind"] == GROUP}


def test_both_engines_have_groups():
    assert set(GROUPS) == {"sglang-nodes", "vllm-nodes"}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_what_their_project_publishes(name):
    check_groups(GROUPS[name]["spec"])


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        pytest.param("leaderTemplate", 1, "'leaderTemplate' was unexpected", id="a field of another place"),
        pytest.param("leaderWorkerTemplate.restart", 1, "'restart' was unexpected", id="a field that there is not"),
        pytest.param("leaderWorkerTemplate.size", "2", "'2' is not of type 'integer'", id="a number as text"),
        pytest.param("leaderWorkerTemplate.restartPolicy", "Never", "'Never' is not one of", id="no such policy"),
        pytest.param("leaderWorkerTemplate.workerTemplate.spec.gpus", 8, "'gpus' was unexpected", id="in a pod"),
        pytest.param("startupPolicy", "Leader", "'Leader' is not one of", id="no such startup"),
        pytest.param("rolloutStrategy.maxSurge", 0, "'maxSurge' was unexpected", id="one level too high"),
        pytest.param("replicas", -1, "-1 is less than the minimum", id="fewer than none"),
    ],
)
def test_the_check_of_groups_refuses(path, value, words):
    spec = json.loads(json.dumps(GROUPS["sglang-nodes"]["spec"]))
    *above, last = path.split(".")
    holder = spec
    for name in above:
        holder = holder[name]
    holder[last] = value
    with pytest.raises(jsonschema.ValidationError, match=words):
        check_groups(spec)


@pytest.mark.parametrize("path", SAMPLES)
def test_a_sample_can_be_planned(path):
    spec = read(yaml.safe_load(path.read_text())).spec
    assert [pool.gpus for pool in limits_of(spec, CATALOGUE).pools] == [pool.parallelism.gpus for pool in spec.pools]


@pytest.mark.cluster
@pytest.mark.parametrize("path", SAMPLES)
def test_taken_by_the_api_server(kube, path):
    if path.stem not in GROUPS:  # the cluster has no LeaderWorkerSet
        kube.apply(elsewhere(GOLDENS / path.name), "--dry-run=server")
    kube.apply(elsewhere(path), "--dry-run=server")


def elsewhere(path):
    """What is in the file, under names that nobody has: one of the samples serves in this cluster."""
    items = list(yaml.safe_load_all(path.read_text()))
    for item in items:
        item["metadata"]["name"] = f"golden-{item['metadata']['name']}"
    return yaml.safe_dump_all(items)
