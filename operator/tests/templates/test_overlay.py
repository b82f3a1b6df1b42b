"""The overlay of `template`: each field once, and what it cannot reach."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.api.spec_template import PodTemplate
from tandem_operator.templates.overlay import overlaid

BASE = {
    "spec": {
        "template": {
            "metadata": {"annotations": {"prometheus.io/port": "8000"}, "labels": {"a": "b"}},
            "spec": {
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "containers": [
                    {
                        "name": "worker",
                        "env": [{"name": "HOME", "value": "/tmp"}],
                        "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
                    }
                ],
            },
        }
    }
}


def at(deployment, path):
    found = deployment["spec"]["template"]
    for part in path.split("/"):
        found = found[int(part)] if part.isdigit() else found[part]
    return found


GPU = {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("template", "path", "expected"),
    [
        pytest.param({}, "spec/containers/0/resources/limits", GPU, id="nothing laid over"),
        pytest.param(
            {"resources": {"limits": {"cpu": 2}}},
            "spec/containers/0/resources/limits",
            {"cpu": "2", **GPU},
            id="limits are added",
        ),
        pytest.param(
            {"resources": {"limits": {"cpu": 2}}}, "spec/containers/0/resources/requests", GPU, id="requests stay"
        ),
        pytest.param({"nodeSelector": {"disk": "fast"}}, "spec/nodeSelector", {"disk": "fast"}, id="node selector"),
        pytest.param(
            {"tolerations": [{"key": "spot", "operator": "Exists"}]},
            "spec/tolerations",
            [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "spot", "operator": "Exists"}],
            id="tolerations are added",
        ),
        pytest.param(
            {"env": [{"name": "X", "value": "1"}]},
            "spec/containers/0/env",
            [{"name": "HOME", "value": "/tmp"}, {"name": "X", "value": "1"}],
            id="environment is added",
        ),
        pytest.param(
            {"env": [{"name": "HOME", "value": "/x"}]},
            "spec/containers/0/env",
            [{"name": "HOME", "value": "/tmp"}],
            id="the operator's own variable stays",
        ),
        pytest.param(
            {"annotations": {"note": "x", "prometheus.io/port": "1"}},
            "metadata/annotations",
            {"note": "x", "prometheus.io/port": "8000"},
            id="the operator's own annotation stays",
        ),
    ],
)
def test_overlay(template, path, expected):
    before = copy.deepcopy(BASE)
    assert at(overlaid(BASE, PodTemplate.model_validate(template)), path) == expected
    assert before == BASE, "the input is not changed"
