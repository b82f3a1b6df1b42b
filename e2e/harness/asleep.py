"""A resource whose children are all there and none of whose pods is: it is made and edited in seconds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from e2e.harness.killable import operator
from e2e.harness.kube import RESOURCE, Kube
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, if_settled, sample
from e2e.tables.paths import flat

KINDS = (
    "deployments,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies,configmaps,secrets"
)
OF_UID = re.compile(r"(transfer-key)-[0-9a-f]+$")
CHANGES_BY_ITSELF = re.compile(
    r"resourceVersion|uid|generation|Timestamp|managedFields|^status|\.status|deployment\.kubernetes\.io|data\.|clusterIP"
)


def children(kube: Kube, resource: str, namespace: str = NAMESPACE) -> dict[str, Any]:
    """All that the resource owns, without what the API server and its controllers write, and random keys."""
    items = kube.json("get", KINDS, "-n", namespace, "-l", f"tandem.dev/resource={resource}")["items"]
    found = {
        f"{item['kind']} {named(item['metadata']['name'])} {at}": named(value)
        for item in items
        for at, value in flat(item)
    }
    return {at: value for at, value in found.items() if not CHANGES_BY_ITSELF.search(at.split(" ", 2)[2])}


def named(value: Any) -> Any:
    """A name, as it would be of any uid: the transfer key's has it in."""
    return OF_UID.sub(r"\1", value) if isinstance(value, str) else value


def asleep(image: str, ttft: int) -> dict[str, Any]:
    """The resource, with what tests edit of it."""
    engine = {"name": "vllm", "image": image}
    slo = sample()["spec"]["slo"] | {"ttftMilliseconds": ttft}
    rebalance = {"mode": "Off"}
    return sample("killed", suspend=True, engine=engine, transfer={"backend": "nixl"}, slo=slo, rebalance=rebalance)


def is_settled(kube: Kube, body: dict[str, Any]) -> bool:
    """Is this body of it carried out, and nothing left to do?"""
    seen = if_settled(kube, "killed", NAMESPACE)
    return seen is not None and seen["spec"]["slo"] == body["spec"]["slo"]


def differences(kube: Kube, body: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What keeps the resource from being settled with exactly these children."""
    found = children(kube, "killed")
    other = [at for at in sorted(expected.keys() | found.keys()) if expected.get(at) != found.get(at)]
    return other if is_settled(kube, body) else ["status", *other]


def gone(kube: Kube) -> None:
    """Nothing of it is left (the garbage collector takes the children)."""
    kube.run("delete", RESOURCE, "killed", "-n", NAMESPACE, "--ignore-not-found", "--wait=true")
    until("its children are gone", lambda: not children(kube, "killed"), 60)


def brought(kube: Kube, settings: dict[str, str], body: dict[str, Any], log: Path) -> dict[str, Any]:
    """Its children, once an operator that nobody kills has carried it out."""
    kube.apply(yaml.safe_dump(body))
    with operator(settings, 0, log):
        until("it is settled", lambda: is_settled(kube, body), 90)
    return children(kube, "killed")
