"""What rooms that do not import each other must spell the same way (docs/reference/borders.md)."""

from __future__ import annotations

import re
import urllib.request

import pytest

from e2e.demo.chat import ask
from e2e.harness.kube import REPO, Kube
from e2e.harness.world import NAMESPACE
from tandem_operator.api import constants
from tandem_operator.edges.query import branches
from tandem_router import pods

PAGE = (REPO / "docs/reference/borders.md").read_text()


@pytest.mark.parametrize("room", ["workers/tandem_router", "workers/tandem_worker"])
def test_headers_between_router_and_worker_are_the_agreed_ones(room: str) -> None:
    sources = "".join(path.read_text() for path in (REPO / room).rglob("*.py"))
    used = set(re.findall(r'"(x-tandem-[a-z-]+)"', sources))
    assert used
    assert used <= set(re.findall(r"`(x-tandem-[a-z-]+)", PAGE))


def test_labels_and_ports_are_the_agreed_ones() -> None:
    assert constants.LABEL_ROLE == pods.ROLE_LABEL
    assert (constants.HTTP_PORT, constants.KV_PORT) == (pods.HTTP_PORT, pods.KV_PORT)
    for label in (constants.LABEL_RESOURCE, constants.LABEL_COMPONENT, constants.LABEL_POOL, constants.LABEL_ROLE):
        assert f"`{label}`" in PAGE


def test_the_operator_asks_for_metrics_that_are_there(kube: Kube, smollm2: dict, router_url: str) -> None:
    # A labelled counter shows from its first count on, the link's speed after the first transfer.
    ask(router_url, "smollm2", "Say hello to everybody. " * 40, tokens=4)
    asked = set(re.findall(r"\btandem_[a-z_]+", " ".join(branches(60, "").values())))
    with urllib.request.urlopen(f"{router_url}/metrics", timeout=10) as answer:
        shown = answer.read().decode()
    for worker in kube.items("pods", NAMESPACE, "tandem.dev/resource=smollm2,tandem.dev/component=worker"):
        url = f"http://{worker['status']['podIP']}:8000/metrics"
        words = f"import urllib.request as u; print(u.urlopen('{url}', timeout=5).read().decode())"
        shown += kube.run("exec", "-n", NAMESPACE, worker["metadata"]["name"], "--", "python", "-c", words)
    missing = {name for name in asked if not re.search(rf"^{name}\b", shown, re.MULTILINE)}
    assert missing == set()
