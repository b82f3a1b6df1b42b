"""Fixed seeds for all tests, and one cluster, with Tandem installed as a user installs it, for those that need it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from e2e.harness import audit
from e2e.harness import cluster as clusters
from e2e.harness.cluster import Cluster
from e2e.harness.kube import REPO, Kube
from e2e.harness.ports import free_port
from e2e.harness.world import install

DIRECTORY = REPO / "build/e2e"

# The same examples on every machine; `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("fixed")


def pytest_configure() -> None:
    """Processes of a parallel run export a width, which a console made at import would keep for good."""
    os.environ.pop("COLUMNS", None)


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook, too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one cluster run in one process, and so does each file: what they share is set up once."""
    for item in items:
        group = item.nodeid.partition("::")[0]
        if "tandem" in getattr(item, "fixturenames", ()):
            group = "cluster"
            item.add_marker("cluster")
            item.add_marker(pytest.mark.timeout(600))
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def tandem(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with Tandem on it; afterwards nothing of it is left on the machine."""
    up = clusters.up(DIRECTORY, free_port(), audit.declared(tmp_path_factory.mktemp("audit")))
    try:
        install(up.kube)
        up.kube.run("apply", "--server-side", "-f", "manifests/samples/namespace.yaml")
        yield up
    except BaseException:
        print_state(up.kube)
        raise
    finally:
        up.down()
    if up.directory is not None:
        assert clusters.leftovers(DIRECTORY) == []


@pytest.fixture(scope="session")
def kube(tandem: Cluster) -> Kube:
    return tandem.kube


def print_state(kube: Kube) -> None:
    """What a person would look at first when a test failed."""
    for words in (
        ("get", "di,deployments,pods", "-A", "-o", "wide"),
        ("logs", "-n", "tandem-system", "deployment/tandem-operator", "--tail=60"),
    ):
        try:
            print(kube.run(*words))
        except Exception as error:  # noqa: BLE001 - this is the report of another failure
            print(f"(no {' '.join(words)}: {error})")
