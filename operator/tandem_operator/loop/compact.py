"""Objects as the cache keeps them: without what no pass reads, and with equal parts kept once.

Hundreds of resources have thousands of pods and children that differ in a few words. What comes out of here is shared
by many objects: it is read, and never changed in place.
"""

from __future__ import annotations

import sys
from typing import Any

from tandem_operator.edges.kinds import KINDS

Object = dict[str, Any]
MAX_PARTS = 50_000  # known parts; then they are learnt anew, so that those of deleted objects do not stay
# Of a pod no pass reads the spec: its Deployment has it too. The status is that of a worker, not of a node.
POD_STATUS = frozenset({"phase", "podIP", "conditions", "containerStatuses", "initContainerStatuses"})
ALIKE = ("labels", "annotations", "ownerReferences")  # metadata that pods of one ReplicaSet have in common


class Parts:
    """Equal strings, and equal specs, labels and owners down to their smallest parts, are one object each."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Any] = {}

    def compact(self, kind: str, item: Object) -> Object:
        """The object as the cache keeps it."""
        metadata = {sys.intern(k): v for k, v in item["metadata"].items() if k != "managedFields"}
        metadata |= {name: self._shared(metadata[name]) for name in ALIKE if name in metadata}
        # Items of a list do not say what they are.
        about = {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata}
        found = {sys.intern(k): v for k, v in item.items()} | about
        if kind == "Pod":
            found.pop("spec", None)
            found["status"] = {k: v for k, v in (item.get("status") or {}).items() if k in POD_STATUS}
        if "spec" in found:
            found["spec"] = self._shared(found["spec"])
        if "status" in found:
            found["status"] = interned(found["status"])
        return found

    def _shared(self, value: Any) -> Any:
        """The object that stands for all equal ones."""
        if isinstance(value, str):
            return sys.intern(value)
        if isinstance(value, dict):
            new: Any = {sys.intern(key): self._shared(inner) for key, inner in value.items()}
            # The parts are kept by the table, so equal identities mean equal values.
            about = (*new, *map(mark_of, new.values()))
        elif isinstance(value, list):
            new = [self._shared(inner) for inner in value]
            about = (None, *map(mark_of, new))
        else:
            return value
        if len(self._known) >= MAX_PARTS:
            self._known.clear()
        return self._known.setdefault(about, new)


def mark_of(value: Any) -> object:
    """What tells a shared part from every other; numbers stand for themselves, apart from truth values."""
    return id(value) if isinstance(value, dict | list | str) else (type(value), value)


def interned(value: Any) -> Any:
    """Equal strings become one object."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {sys.intern(key): interned(inner) for key, inner in value.items()}
    return [interned(inner) for inner in value] if isinstance(value, list) else value
