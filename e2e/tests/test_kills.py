"""Operators are killed after each write to the real API server, one after the other, and the end is as without.

With the shipped role's rights. The fault table tells more stories, with one kill each, on an API server in memory.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from e2e.harness.asleep import asleep, brought, differences, gone
from e2e.harness.killable import environment, none_in_cluster, operator
from e2e.harness.kube import RESOURCE, Kube
from e2e.harness.waiting import GaveUpError, until
from e2e.harness.world import NAMESPACE, if_settled, roles
from e2e.tests.test_operations import edit, revisions

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1200)]

WORKERS = "tandem.dev/resource=smollm2,tandem.dev/component=worker"
MAX_WRITES = 60  # of one story


@pytest.fixture(scope="module")
def settings(kube: Kube, smollm2: dict, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """How to start an operator while the cluster's own rests."""
    with none_in_cluster(kube):
        yield environment(kube, tmp_path_factory.mktemp("operator"))


def kills(settings: dict[str, str], log: Path, left: Callable[[], list[str]]) -> int:
    """Each operator is killed after its first write, until one finds nothing to write; how many were killed.

    `left` tells what the story's end still lacks.
    """
    for number in range(MAX_WRITES):
        with operator(settings, 1, log) as process:
            with contextlib.suppress(GaveUpError):
                until("it is killed, or done", lambda p=process: p.poll() is not None or not left(), 90)
            if process.poll() is None:
                assert left() == [], f"after {number} kills it writes no more"
                return number
            assert process.returncode == -signal.SIGKILL, log.read_text()[-2000:]
    raise AssertionError(f"after {MAX_WRITES} kills there is left: {left()}")


@pytest.fixture
def cleared(kube: Kube) -> Iterator[None]:
    yield
    gone(kube)


def test_a_new_resource(kube: Kube, settings: dict[str, str], cleared: None, tmp_path: Path) -> None:
    body = asleep("vllm:none", 500)
    expected = brought(kube, settings, body, tmp_path / "log")
    gone(kube)
    kube.apply(yaml.safe_dump(body))

    left = partial(differences, kube, body, expected)
    assert kills(settings, tmp_path / "log", left) >= 10


def test_an_edit(kube: Kube, settings: dict[str, str], cleared: None, tmp_path: Path) -> None:
    """From A to B, whatever was written before the kill, ends as a B that has never been anything else."""
    before, after = asleep("vllm:none", 500), asleep("vllm:other", 700)
    expected = brought(kube, settings, after, tmp_path / "log")
    gone(kube)
    brought(kube, settings, before, tmp_path / "log")
    kube.apply(yaml.safe_dump(after))

    left = partial(differences, kube, after, expected)
    assert kills(settings, tmp_path / "log", left) >= 3


def test_flips_of_running_workers(kube: Kube, settings: dict[str, str], smollm2: dict, tmp_path: Path) -> None:
    uids = {pod["metadata"]["uid"] for pod in kube.items("pods", NAMESPACE, WORKERS)}
    for prefill, decode in ((2, 1), (1, 2)):
        change = {"status": {"decision": {"target": {"roles": {"prefill": prefill, "decode": decode}}}}}
        words = ("-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", json.dumps(change))
        kube.run("patch", RESOURCE, "smollm2", *words)

        def left(wanted: tuple[int, int] = (prefill, decode)) -> list[str]:
            found = roles(kube, "smollm2")
            return [] if found == wanted else [f"prefill, decode: {found}"]

        assert kills(settings, tmp_path / "log", left) >= 1
    assert {pod["metadata"]["uid"] for pod in kube.items("pods", NAMESPACE, WORKERS)} == uids, "nothing is restarted"


def is_done(kube: Kube, wanted: tuple[int, int]) -> list[str]:
    """What running workers still lack of these roles, one revision and a settled status."""
    found, kinds = roles(kube, "smollm2"), revisions(kube)
    done = found == wanted and len(kinds) == 1 and if_settled(kube, "smollm2", NAMESPACE)
    return [] if done else [f"prefill, decode: {found}; revisions: {kinds}"]


def test_a_rollout_of_running_workers(kube: Kube, settings: dict[str, str], smollm2: dict, tmp_path: Path) -> None:
    (old,) = revisions(kube)
    edit(kube, engine=smollm2["spec"]["engine"] | {"args": ["--max-batch=15"]})
    try:

        def left() -> list[str]:
            return [f"pods of {old}"] if old in revisions(kube) else is_done(kube, (1, 2))

        assert kills(settings, tmp_path / "log", left) >= 3
    finally:
        edit(kube, engine=smollm2["spec"]["engine"])
        with operator(settings, 0, tmp_path / "log"):
            until("the first revision is back", lambda: old in revisions(kube) and not is_done(kube, (1, 2)), 240)


def test_fewer_workers_and_more_again(kube: Kube, settings: dict[str, str], smollm2: dict, tmp_path: Path) -> None:
    prefill, decode = smollm2["spec"]["pools"]
    for number in (1, 2):
        edit(kube, pools=[prefill, decode | {"replicas": {"min": number, "max": number}}])
        left = partial(is_done, kube, (1, number))
        assert kills(settings, tmp_path / "log", left) >= 1
    edit(kube, pools=[prefill, decode])
