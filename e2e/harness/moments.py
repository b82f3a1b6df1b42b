"""Every moment of some objects, as a watch tells them: for what must hold always, not only at the end."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from e2e.harness.kube import Kube, condition
from e2e.harness.waiting import until
from tandem_operator.api.conditions import CONDITIONS, REASONS

Object = dict[str, Any]
ABNORMAL = frozenset(kind.name for kind in CONDITIONS if kind.abnormal)  # kstatus: there only while they are True
KNOWN = frozenset((reason.condition, reason.status, reason.name) for reason in REASONS)


@contextlib.contextmanager
def moments(kube: Kube, path: str) -> Iterator[list[Object]]:
    """Objects of this path of the API as they change while the body runs; one deleted comes with its type DELETED."""
    query = "&" if "?" in path else "?"
    watch = subprocess.Popen(
        ["kubectl", "get", "--raw", f"{path}{query}watch=true"],
        env=kube.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    seen: list[Object] = []
    reading = threading.Thread(target=read_into, args=(seen, watch))
    reading.start()
    try:
        until(f"the watch of {path} tells what there is", lambda: seen, 30)
        yield seen
    finally:
        watch.kill()
        reading.join(10)
        watch.wait(10)


def read_into(seen: list[Object], watch: subprocess.Popen[bytes]) -> None:
    """Each line is an event."""
    if watch.stdout is None:
        raise RuntimeError("the watch has no output")
    for line in watch.stdout:
        if line.endswith(b"\n"):
            event = json.loads(line)
            seen.append({**event["object"], "event": event["type"]})


def kstatus(item: Object) -> str:
    """As GitOps tools read a resource (kstatus): the generation and the abnormal conditions first, then Ready."""
    if (item.get("status") or {}).get("observedGeneration", 0) < item["metadata"]["generation"]:
        return "InProgress"
    if condition(item, "Reconciling")["status"] == "True":
        return "InProgress"
    if condition(item, "Stalled")["status"] == "True":
        return "Failed"
    return "Current" if condition(item, "Ready")["status"] == "True" else "InProgress"


def unclean(item: Object) -> list[str]:
    """What a tool that reads statuses would stumble over."""
    conditions = (item.get("status") or {}).get("conditions") or []
    kinds = [c["type"] for c in conditions]
    generation = item["metadata"]["generation"]
    said = {(c["type"], c["status"], c["reason"]) for c in conditions}
    return [
        *(f"{kind} twice" for kind in set(kinds) if kinds.count(kind) > 1),
        *(f"{c['type']} is {c['status']}" for c in conditions if c["type"] in ABNORMAL and c["status"] != "True"),
        *(["both Reconciling and Stalled"] if set(kinds) >= ABNORMAL else []),
        *(f"{c['type']} is of the future" for c in conditions if c.get("observedGeneration", 0) > generation),
        *(f"no page has {words}" for words in sorted(said - KNOWN)),
        *(f"{c['type']} has no words" for c in conditions if not c["message"]),
    ]
