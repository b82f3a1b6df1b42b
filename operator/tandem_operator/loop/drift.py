"""Drift: what somebody else did to a child. It is repaired by the same apply as ever; here are the words for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tandem_operator.loop.cache import key_of
from tandem_operator.templates.differ import lacking
from tandem_operator.templates.names import APPLIED

if TYPE_CHECKING:
    from tandem_operator.loop.cache import Cache

Object = dict[str, Any]


def drift_of(live: Object | None, wanted: Object, cache: Cache) -> str | None:
    """Words for what somebody did to a child that the operator had made so; None where nobody did.

    A live object with the stamp of what is wanted was applied just so before: what it lacks since, somebody changed.
    A child that is not there was deleted if a watch said so, and it was of the same resource; one that the operator
    pruned is no drift, nor is one whose deletion no operator saw. Who deletes a Job asks for another try.
    """
    what = f"{wanted['kind']} {wanted['metadata']['name']}"
    if live is None:
        owners = {owner["uid"] for owner in wanted["metadata"].get("ownerReferences") or []}
        was_there = wanted["kind"] != "Job" and cache.owner_of_gone(key_of(wanted["kind"], wanted)) in owners
        return f"{what} was deleted, and is made again" if was_there else None
    if stamp_of(live) != stamp_of(wanted) or (path := lacking(live, wanted)) is None:
        return None
    return f"{path} of {what} was changed, and is as wanted again"


def stamp_of(item: Object) -> str:
    """What a manifest, or the object that was made by it, was stamped with."""
    return str((item["metadata"].get("annotations") or {}).get(APPLIED, ""))
