"""Where another operator works: a cluster-wide one stays out of a namespace whose own operator holds a Lease there.

The nearer one wins: it cannot see the other's Lease, the cluster-wide one can read its. As with the own Lease no clocks
are compared: a holder is gone when its Lease did not change for a lease's length by the own monotonic clock. The
namespace's operator waits for SETTLE_S after it took its Lease, so that whoever looks at each pass has seen it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem_operator.loop.leader import LEASE_S, NAME, RENEW_EVERY_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tandem_operator.edges.kube import Kube

Object = dict[str, Any]


@dataclass(slots=True)
class Sight:
    """A namespace's Lease as it was seen last; times by the own clock, seconds."""

    looked: float
    since: float
    record: Object


class Neighbours:
    """Holders of Leases by namespace; each is looked at no more than once in RENEW_EVERY_S."""

    def __init__(self, kube: Kube, own_namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        """own_namespace: where the own Lease is; what is held there is held by the own election."""
        self._kube = kube
        self._own = own_namespace
        self._clock = clock
        self._seen: dict[str, Sight] = {}

    async def holder_in(self, namespace: str) -> str:
        """Who works in the namespace beside us; '' where nobody does. Raises ApiError where that cannot be known."""
        if namespace == self._own:
            return ""
        seen, now = self._seen.get(namespace), self._clock()
        if seen is None or now - seen.looked >= RENEW_EVERY_S:
            lease = await self._kube.get("Lease", namespace, NAME)
            seen = self._seen[namespace] = sighted(seen, lease["spec"] if lease else {}, now)
        gone = now - seen.since >= LEASE_S
        return "" if gone else str(seen.record.get("holderIdentity") or "")


def sighted(before: Sight | None, record: Object, now: float) -> Sight:
    """The Lease as it is now, with since when it has been so."""
    return Sight(now, before.since if before is not None and before.record == record else now, record)
