"""Mode Auto on a real cluster: traffic that is not worth a split brings the colocated pool, and no request is lost."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from e2e.demo.chat import ask
from e2e.harness.cluster import Cluster
from e2e.harness.kube import RESOURCE, Kube, condition
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, forwarded, resource, sample, wait_settled

NAME = "either"
SPAN_S = 30  # shorter than anybody would want it: one window without a gap, then the change


def body() -> dict[str, Any]:
    """One worker for each role, room for a third."""
    found = copy.deepcopy(sample(NAME))
    for pool in found["spec"]["pools"]:
        pool["replicas"] = {"min": 1, "max": 1}
    found["spec"]["rebalance"]["behavior"] = {"scaleDown": {"stabilizationWindowSeconds": SPAN_S}}
    return found


@contextmanager
def asking(url: str) -> Iterator[list[str]]:
    """Short requests one after another; gives what went wrong."""
    stop, wrong = threading.Event(), list[str]()

    def run() -> None:
        while not stop.wait(0.5):
            try:
                if not ask(url, "smollm2", "Hello", tokens=4).text:
                    wrong.append("an empty answer")
            except Exception as error:  # noqa: BLE001 whatever it is, the request was lost
                wrong.append(repr(error))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield wrong
    finally:
        stop.set()
        thread.join(120)


def pools(kube: Kube) -> set[str]:
    """Pools that have a Deployment."""
    found = kube.items("deployments", NAMESPACE, f"tandem.dev/resource={NAME}")
    return {item["metadata"]["labels"].get("tandem.dev/pool", "") for item in found} - {""}


@pytest.mark.slow
def test_light_traffic_is_not_worth_a_split(tandem: Cluster, kube: Kube) -> None:
    split = body()
    kube.apply(yaml.safe_dump(split))
    try:
        wait_settled(kube, NAME, seconds=240)
        with forwarded(tandem, NAMESPACE, f"{NAME}-router", 8000) as url, asking(url) as wrong:
            both = {**split["spec"]["pools"][0], "name": "both", "role": "Both"}
            kube.patch(RESOURCE, NAME, NAMESPACE, {"spec": {"mode": "Auto", "pools": [*split["spec"]["pools"], both]}})
            until("what runs is kept", lambda: mode(kube) is not None, 60)
            until("the colocated pool is alone", lambda: pools(kube) == {"both"}, 400)
            found = resource(kube, NAME)
            assert found is not None
            assert mode(kube) == "Colocated"
            assert found["status"]["decision"]["target"]["pools"] == {"both": 1}
            assert "Colocated at up to" in condition(found, "ModeChosen")["message"]
            wait_settled(kube, NAME, seconds=120)
            assert ask(url, "smollm2", "And now?", tokens=4).text
        assert wrong == [], "no request is lost"
    finally:
        kube.run("delete", "di", NAME, "-n", NAMESPACE, "--wait=false")


def mode(kube: Kube) -> str | None:
    """The mode in effect, as the status says."""
    found = (resource(kube, NAME) or {}).get("status", {}).get("mode", {}).get("effective")
    return None if found is None else str(found)
