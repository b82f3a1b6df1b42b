"""What the API server refuses, with the field's path and a sentence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from e2e.harness.kube import Kube, KubectlError
from e2e.harness.world import sample


def changed(path: str, value: Any) -> dict:
    """The sample with one value replaced; `value` None removes it."""
    body = copy.deepcopy(sample())
    *way, last = path.split(".")
    at: Any = body
    for part in way:
        at = at[int(part)] if part.isdigit() else at.setdefault(part, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return body


REFUSED = [
    pytest.param("spec.pools.0.replicas", {"min": 3, "max": 2, "initial": 2}, "spec.pools", "min", id="min over max"),
    pytest.param("spec.pools.0.hardware", None, "spec.pools[0].hardware", "Required", id="no hardware"),
    pytest.param("spec.pools.0.hardware", {"accelerator": "h9000"}, "h9000", "accelerator", id="unknown accelerator"),
    pytest.param(
        "spec.slo.ttftMilliseconds", 0, "spec.slo.ttftMilliseconds", "greater than or equal to 1", id="SLO of 0"
    ),
    pytest.param("metadata.name", "x" * 47, "name", "46", id="name too long"),
    pytest.param("spec.engine", {"name": "vllm"}, "spec.engine", "need the image", id="an engine without its image"),
    pytest.param("spec.model.source", "hf://org/model", "spec.model", "needs a revision", id="a hub's, unpinned"),
    pytest.param("spec.transfer.backend", "shm", "spec.transfer.backend", "cannot transfer", id="a backend"),
]


def check_refused(kube: Kube, path: str, value: Any, field: str, words: str) -> None:
    """The API server refuses the sample with this value, and says which field and why."""
    with pytest.raises(KubectlError) as refused:
        kube.apply(yaml.safe_dump(changed(path, value)), "--dry-run=server")
    message = str(refused.value)
    assert field in message
    assert words in message


@pytest.mark.parametrize(("path", "value", "field", "words"), REFUSED)
def test_refused_by_the_api_server(kube: Kube, path: str, value: Any, field: str, words: str) -> None:
    check_refused(kube, path, value, field, words)


def test_explain_reads_like_a_manual(kube: Kube) -> None:
    text = kube.run("explain", "di", "--recursive")
    assert "ttftMilliseconds" in text
    for path in ("di.spec.slo.ttftMilliseconds", "di.spec.pools.replicas.min", "di.status.decision.target"):
        description = kube.run("explain", path).split("DESCRIPTION:")[1]
        assert len(description.split()) >= 4, path
