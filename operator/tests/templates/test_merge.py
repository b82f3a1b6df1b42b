"""One merge of two halves of a pod, as a table; its keys are those of a real API server."""

from __future__ import annotations

import copy
import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.api.spec_template import PodTemplate
from tandem_operator.templates.differ import has_all
from tandem_operator.templates.merge import MERGE_KEYS, RETAIN_KEYS, conflicts, merged
from tandem_operator.templates.overlay import overlaid


def row(name, over, under, expected, disputes=()):
    return pytest.param(over, under, expected, list(disputes), id=name)


@pytest.mark.parametrize(
    ("over", "under", "expected", "disputes"),
    [
        row("one field each", {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        row("one field twice", {"a": 1}, {"a": 2}, {"a": 1}, ["a"]),
        row("the same value", {"a": 1}, {"a": 1}, {"a": 1}),
        row("below", {"a": {"b": 1}}, {"a": {"b": 2, "c": 3}}, {"a": {"b": 1, "c": 3}}, ["a.b"]),
        row("a list without a key is one value", {"args": [1]}, {"args": [2]}, {"args": [1]}, ["args"]),
        row("kinds differ", {"a": {}}, {"a": []}, {"a": {}}, ["a"]),
        row(
            "by key, own first",
            {"volumeMounts": [{"mountPath": "/b", "name": "b"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "a"}, {"mountPath": "/b", "readOnly": True}]},
            {"volumeMounts": [{"mountPath": "/b", "name": "b", "readOnly": True}, {"mountPath": "/a", "name": "a"}]},
        ),
        row(
            "a key's item differs",
            {"ports": [{"containerPort": 1, "name": "a"}]},
            {"ports": [{"containerPort": 1, "name": "b"}]},
            {"ports": [{"containerPort": 1, "name": "a"}]},
            ["ports[1].name"],
        ),
        row(
            "a volume has one source",
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            {"volumes": [{"name": "v", "secret": {}}]},
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            ["volumes[v]"],
        ),
        row(
            "a variable has one source",
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "valueFrom": {}}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            ["env[A]"],
        ),
        row("an item without its key", {"env": [{"name": "A"}]}, {"env": [{}]}, {"env": [{"name": "A"}]}, ["env"]),
        row("no objects", {"env": [{"name": "A"}]}, {"env": ["A"]}, {"env": [{"name": "A"}]}, ["env"]),
        row("a key that is no text", {"env": [{"name": 1}]}, {"env": [{"name": {}}]}, {"env": [{"name": 1}]}, ["env"]),
    ],
)  # fmt: skip
def test_merged(over, under, expected, disputes):
    before = copy.deepcopy((over, under))
    assert merged(over, under) == expected
    assert conflicts(over, under) == disputes
    assert (over, under) == before, "neither is changed"


NAMES = st.sampled_from(["env", "volumes", "args", "name", "a"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@given(JSON, JSON)
def test_any_two_values_merge_and_nothing_of_the_first_is_lost(over, under):
    both = merged(over, under)
    assert conflicts(both, over) == [], "all of the first half is in it"
    assert merged(both, under) == both, "once more changes nothing"
    if conflicts(over, under) == [] and isinstance(over, dict) and isinstance(under, dict):
        assert set(both) == {*over, *under}


POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"


def lists_below(schemas, name, seen):
    """Every list below a type that merges by key: field, key, whether an item replaces the whole item."""
    if name in seen:
        return
    seen.add(name)
    for field, schema in schemas[name].get("properties", {}).items():
        if key := schema.get("x-kubernetes-patch-merge-key"):
            yield field, key, "retainKeys" in schema["x-kubernetes-patch-strategy"]
        for part in json.dumps(schema).split('"#/')[1:]:
            yield from lists_below(schemas, part.split('"')[0].rpartition("/")[2], seen)


def test_the_keys_are_the_api_servers(kube):
    schemas = json.loads(kube.run("get", "--raw", "/openapi/v3/api/v1"))["components"]["schemas"]
    found = list(lists_below(schemas, POD_TEMPLATE, set()))
    keys = {field: key for field, key, _ in found}
    assert len({(field, key) for field, key, _ in found}) == len(keys), "one key for a field's name, wherever it is"
    assert keys.items() <= MERGE_KEYS.items(), "an older API server knows fewer lists"
    assert set(MERGE_KEYS) - set(keys) <= {"evictionResponders"}
    assert {field for field, _, whole in found if whole} == RETAIN_KEYS


# What a user may write and the API server writes differently: zero values, other spellings, defaults of its own.
ODD = {
    "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
    "env": [{"name": "EMPTY"}, {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1024Mi", "medium": ""}}],
    "volumeMounts": [{"name": "tmp", "mountPath": "/y", "readOnly": False, "subPath": ""}],
    "topologySpreadConstraints": [
        {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}],
    "affinity": {"nodeAffinity": {}, "podAffinity": None},
    "imagePullSecrets": [{"name": "a"}],
    "priorityClassName": "system-node-critical",
    "containers": [
        {
            "name": "log",
            "image": "log",
            "tty": False,
            "args": [],
            "command": ["x"],
            "readinessProbe": {"initialDelaySeconds": 0, "periodSeconds": 5, "tcpSocket": {"port": 1}},
            "securityContext": {"privileged": False, "runAsUser": 5},
            "ports": [{"containerPort": 9000, "hostPort": 0}],
        },
        {"name": "worker", "lifecycle": {"preStop": {"sleep": {"seconds": 0}}}},
    ],
}


def test_what_the_api_server_spells_otherwise_is_no_drift(kube):
    base = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "odd", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}, "annotations": {}},
                "spec": {"containers": [{"name": "worker", "image": "i", "env": [{"name": "HOME", "value": "/tmp"}]}]},
            },
        },
    }
    wanted = overlaid(base, PodTemplate.model_validate(ODD))
    answer = kube.run(
        "apply", "--server-side", "--dry-run=server", "-o", "yaml", "-f", "-", stdin=yaml.safe_dump(wanted)
    )
    live = yaml.safe_load(answer)
    lost = [field for field in wanted["spec"]["template"]["spec"] if not has_all(
        live["spec"]["template"]["spec"].get(field), wanted["spec"]["template"]["spec"][field])]  # fmt: skip
    assert lost == []
    assert has_all(live, wanted)
