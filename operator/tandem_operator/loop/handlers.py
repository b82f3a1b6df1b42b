"""What kopf watches: an event updates the cache and marks the resource's key dirty; it never does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kopf

from tandem_operator.api.constants import LABEL_MANAGED_BY, LABEL_RESOURCE, MANAGED_BY
from tandem_operator.edges.kinds import KINDS, MADE, RESOURCE
from tandem_operator.edges.kube import PAGE
from tandem_operator.loop.cache import ref_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tandem_operator.loop.cache import Cache
    from tandem_operator.loop.queue import Queue

CHILDREN = (*MADE, "Pod")
WATCHED = (RESOURCE, *CHILDREN)
# Kopf keeps an object's last event for as long as it waits for the next one: of thousands that a list brings, too.
EVENT_KEPT_S = 0.1
SETTLE_S = 1.0  # a pool's pods come one by one, and a pass over all of them says as much as one over each
CHILD_SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_RESOURCE}"


def selector_of(kind: str) -> str:
    """Labels by which the API server filters a kind: without them every pod of the cluster would come."""
    return "" if kind == RESOURCE else CHILD_SELECTOR


def registry_for(cache: Cache, queue: Queue) -> kopf.OperatorRegistry:
    """Handlers of the resource and of every kind of child."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry, id="login", errors=kopf.ErrorsMode.PERMANENT)(login)
    for kind in WATCHED:
        place = KINDS[kind]
        kopf.on.event(place.group, place.version, place.plural, registry=registry, id=kind)(waker(kind, cache, queue))
    return registry


def login(**facts: Any) -> kopf.ConnectionInfo | None:
    """The pod's service account, else KUBECONFIG: the same order as the edge's own client."""
    return kopf.login_with_service_account(**facts) or kopf.login_with_kubeconfig(**facts)


def waker(kind: str, cache: Cache, queue: Queue) -> Any:
    """The handler of one kind. News wakes the resource's key; what the operator wrote itself is no news."""

    async def wake(event: dict[str, Any], **_: Any) -> None:
        take_event(kind, event, cache, queue)

    return wake


def take_event(kind: str, event: dict[str, Any], cache: Cache, queue: Queue) -> None:
    """Put one watch event into the cache, and mark its resource if it is news: now, or when it has settled."""
    item = event["object"]
    known = cache.find(kind, item["metadata"]["namespace"], item["metadata"]["name"])
    # Whose label was taken off an object, or changed, must see to it, too.
    refs = {ref for seen in (known, item) if seen is not None and (ref := ref_of(kind, seen)) is not None}
    if event["type"] == "DELETED":
        cache.drop(kind, item)
        later = False
    elif not refs or not cache.put(kind, item):
        return
    else:
        later = is_progress(kind, known, item)
    for ref in refs:
        if later or (queue.is_running(ref) and may_be_own(kind, event["type"], known, item)):
            queue.mark_later(ref, SETTLE_S)
        else:
            queue.mark(ref)


def is_progress(kind: str, before: dict[str, Any] | None, after: dict[str, Any]) -> bool:
    """Is this only how far a child has come? Not where somebody asked for something: that is answered at once."""
    if kind in {RESOURCE, "Pod"}:
        return kind == "Pod"
    return before is not None and generation_of(after) is not None and generation_of(before) == generation_of(after)


def may_be_own(kind: str, what: str, before: dict[str, Any] | None, after: dict[str, Any]) -> bool:
    """Could a pass that still runs have written this? The watch is often faster than the answer to a write.

    If somebody else wrote it, the pass a moment later sees to it.
    """
    if what == "DELETED" or after["metadata"].get("deletionTimestamp"):
        return False
    return kind != RESOURCE or (before is not None and generation_of(before) == generation_of(after))


def generation_of(item: dict[str, Any]) -> int | None:
    """How often somebody asked for something else of an object, None for kinds that do not count it."""
    found: int | None = item["metadata"].get("generation")
    return found


class NothingKept(kopf.DiffBaseStorage):  # type: ignore[misc]  # kopf is not typed here
    """What kopf compares between two states of an object: nothing, since no handler here asks what changed.

    Its own storages copy every object of every event three times in full, most of what an event costs.
    """

    def build(self, *, body: kopf.Body, extra_fields: Iterable[kopf.FieldSpec] | None = None) -> kopf.BodyEssence:  # noqa: ARG002
        """Nothing of the object."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:  # noqa: ARG002
        """Nothing was stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is stored."""


def settings_for(settings: kopf.OperatorSettings, namespace: str) -> None:
    """Kopf's settings: selectors and pages at the server, timeouts on every stream, no posting, no peering.

    No finalizer, and nothing on the objects either.
    """
    for kind in CHILDREN:
        place = KINDS[kind]
        settings.watching.label_selectors[place.group, place.version, place.plural] = CHILD_SELECTOR
    settings.watching.chunk_size = PAGE
    settings.queueing.idle_timeout = EVENT_KEPT_S
    settings.persistence.diffbase_storage = NothingKept()
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.execution.default_backoff = 5
    settings.process.ultimate_exiting_timeout = 20
    settings.peering.clusterwide = not namespace
