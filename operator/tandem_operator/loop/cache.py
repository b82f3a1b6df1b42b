"""What the watches showed last: the objects that a pass reads, instead of asking the API server each time."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import LABEL_RESOURCE
from tandem_operator.edges.kinds import RESOURCE
from tandem_operator.loop.compact import Parts
from tandem_operator.loop.refs import Ref

if TYPE_CHECKING:
    from collections.abc import Set

Object = dict[str, Any]
Key = tuple[str, str, str]  # kind, namespace, name
NEVER = (-1, "")


def version_of(item: Object) -> int:
    """A resource version as the number that it is (comparable within a cluster; KEP-5504)."""
    text = str(item["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0


def key_of(kind: str, item: Object) -> Key:
    """Where an object is."""
    return kind, item["metadata"]["namespace"], item["metadata"]["name"]


def ref_of(kind: str, item: Object) -> Ref | None:
    """The resource that an object is about: itself, or the one that its label names."""
    metadata = item["metadata"]
    name = metadata["name"] if kind == RESOURCE else (metadata.get("labels") or {}).get(LABEL_RESOURCE)
    return Ref(metadata["namespace"], name) if name else None


class Cache:
    """Objects by kind, namespace and name. An older version never replaces a newer one, nor a deleted one."""

    def __init__(self) -> None:
        self.synced = False  # is all here that there was when the operator began?
        self._items: dict[Key, Object] = {}
        self._parts = Parts()
        self._of: defaultdict[Ref, set[Key]] = defaultdict(set)
        self._gone: dict[Key, tuple[int, str]] = {}  # the version at which it was deleted, and its owner
        self._listed: dict[str, int] = {}  # of each kind, the version of the last list
        self._pruned: set[Key] = set()
        self._stamps: dict[Ref, int] = {}
        self._numbers = itertools.count(1)

    def put(self, kind: str, item: Object, *, listed: bool = False) -> bool:
        """Keep an object, if it is news; True where it is."""
        if not self.is_news(kind, item, listed=listed):
            return False
        key = key_of(kind, item)
        self._forget(key)
        self._items[key] = self._parts.compact(kind, item)
        if (ref := ref_of(kind, item)) is not None:
            self._of[ref].add(key)
            self._moved(kind, ref)
        return True

    def is_news(self, kind: str, item: Object, *, listed: bool = False) -> bool:
        """Is it newer than what is known of it? Its metadata alone tells.

        `listed`: it stands in a list that is being read. An event about an object that the last list should have had
        and had not is about one that is gone.
        """
        key, version = key_of(kind, item), version_of(item)
        if (known := self._items.get(key)) is not None:
            oldest = version_of(known)
        else:
            oldest = -1 if listed else self._listed.get(kind, -1)
        return max(oldest, self._gone.get(key, NEVER)[0]) < version

    def drop(self, kind: str, item: Object) -> None:
        """Forget an object that was deleted at this version."""
        key, version = key_of(kind, item), version_of(item)
        known = self._items.get(key)
        owner = "" if key in self._pruned else owner_uid(item)
        self._pruned.discard(key)
        self._gone[key] = max((version, owner), self._gone.get(key, NEVER))
        if known is not None and version_of(known) <= version:
            self._forget(key)

    def keep(self, kind: str, listed: Set[Key], as_of: int) -> set[Ref]:
        """Forget what a whole list of this version did not have. Gives the resources that lost something."""
        self._listed[kind] = as_of
        changed: set[Ref] = set()
        for key in [key for key in self._items if key[0] == kind and key not in listed]:
            # What came after the list was made is newer than the list.
            if version_of(self._items[key]) <= as_of:
                if (ref := ref_of(kind, self._items[key])) is not None:
                    changed.add(ref)
                self._forget(key)
        self._gone = {key: gone for key, gone in self._gone.items() if key[0] != kind or gone[0] > as_of}
        return changed

    def lose(self, kind: str) -> set[Ref]:
        """Forget all of a kind that is served no more; it may be again. Gives the resources that lost something."""
        changed = self.keep(kind, frozenset(), sys.maxsize)
        del self._listed[kind]
        return changed

    def owner_of_gone(self, key: Key) -> str:
        """The uid of the resource to which a child belonged that somebody deleted since the last list; '' for none."""
        return self._gone.get(key, NEVER)[1]

    def pruned(self, key: Key) -> None:
        """The operator itself deletes this one, as the watch is about to say."""
        self._pruned.add(key)

    def resource(self, ref: Ref) -> Object | None:
        """The resource itself, None where there is none (any more)."""
        return self._items.get((RESOURCE, ref.namespace, ref.name))

    def resources(self) -> list[tuple[Ref, Object]]:
        """All resources."""
        return [(Ref(key[1], key[2]), item) for key, item in self._items.items() if key[0] == RESOURCE]

    def all(self, kind: str) -> list[Object]:
        """All objects of a kind, of every resource."""
        return [item for key, item in self._items.items() if key[0] == kind]

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object by name, whoever owns it, as far as our labels are on it."""
        return self._items.get((kind, namespace, name))

    def of(self, ref: Ref, kind: str) -> list[Object]:
        """All objects of a kind that carry this resource's label, by name."""
        keys = sorted(key for key in self._of[ref] if key[0] == kind) if ref in self._of else []
        return [self._items[key] for key in keys]

    def stamp(self, ref: Ref) -> int:
        """Another number after every change of the resource's children: equal stamps, equal children."""
        return self._stamps.get(ref, 0)

    def _moved(self, kind: str, ref: Ref) -> None:
        if kind != RESOURCE:
            self._stamps[ref] = next(self._numbers)

    def _forget(self, key: Key) -> None:
        item = self._items.pop(key, None)
        if item is not None and (ref := ref_of(key[0], item)) is not None:
            self._of[ref].discard(key)
            self._moved(key[0], ref)
            if not self._of[ref]:
                del self._of[ref]


def owner_uid(item: Object) -> str:
    """The uid of the resource to which a child belongs; '' where nobody controls it."""
    owners = item["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def is_owned(item: Object, uid: str) -> bool:
    """Does this object belong to the resource with this uid?"""
    return any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences") or [])
