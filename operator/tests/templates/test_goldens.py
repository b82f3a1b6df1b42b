"""What each cloud's sample becomes: as committed, valid by Kubernetes' own schemas, taken by a real API server."""

from __future__ import annotations

import kubernetes_validate
import pytest
import yaml

from e2e.goldens import GOLDENS, samples, text_of
from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.v1alpha1 import read
from tandem_operator.plan.limits import limits_of

SAMPLES = [pytest.param(path, id=path.stem) for path in samples()]
OLDEST, NEWEST = "1.34", "1.37"  # of the schemas: resource.k8s.io/v1 is there since 1.34


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
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("path", SAMPLES)
def test_a_sample_can_be_planned(path):
    spec = read(yaml.safe_load(path.read_text())).spec
    assert all(pool.gpus > 1 for pool in limits_of(spec, CATALOGUE).pools)


@pytest.mark.cluster
@pytest.mark.parametrize("path", SAMPLES)
def test_taken_by_the_api_server(kube, path):
    kube.apply((GOLDENS / path.name).read_text(), "--dry-run=server")
    kube.apply(path.read_text(), "--dry-run=server")
