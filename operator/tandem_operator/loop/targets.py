"""Scrape targets in Prometheus' HTTP service discovery form, for a Prometheus that cannot watch pods itself. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import LABEL_POOL, LABEL_RESOURCE, LABEL_ROLE

if TYPE_CHECKING:
    from collections.abc import Iterable

Object = dict[str, Any]
LABELS = {"resource": LABEL_RESOURCE, "pool": LABEL_POOL, "role": LABEL_ROLE}


def targets_of(pods: Iterable[Object]) -> list[Object]:
    """One group a pod that runs and asks to be scraped; labels as docs/reference/borders.md says, the role of now."""
    return [target for pod in pods if (target := target_of(pod)) is not None]


def target_of(pod: Object) -> Object | None:
    """A pod's target, None where it is not to be scraped (yet, or any more)."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    address, port = status.get("podIP"), annotations.get("prometheus.io/port")
    if annotations.get("prometheus.io/scrape") != "true" or status.get("phase") != "Running" or not (address and port):
        return None
    own = {name: labels[label] for name, label in LABELS.items() if label in labels}
    path = annotations.get("prometheus.io/path", "/metrics")
    return {
        "targets": [f"{address}:{port}"],
        "labels": {"namespace": metadata["namespace"], "pod": metadata["name"], "__metrics_path__": path, **own},
    }
