"""One operator at a time: whoever holds the Lease works, the others watch and wait.

Nobody compares clocks: a holder is gone when its Lease was not renewed for a lease's length by the own monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tandem_operator.edges.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from tandem_operator.edges.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tandem_operator.edges.kube import Kube

log = logging.getLogger(__name__)
Object = dict[str, Any]
NAME = "tandem-operator"
LEASE_S = 15
RENEW_EVERY_S = 4.0
# Without a renewal for this long the holder stops, well before anybody else may begin.
GIVE_UP_AFTER_S = 11.0
# One answer may be lost: a try of a renewal ends early enough for a second one.
TRY_S, AGAIN_S = 3.0, 0.5
RELEASE_S = 2.0
# A cluster-wide operator looks at a namespace's Lease this often, before a pass: with two looks' time it has seen it.
SETTLE_S = 2 * RENEW_EVERY_S + 2.0


class LostLeadershipError(Exception):
    """The Lease could not be renewed in time, or somebody else has it."""


class Leader:
    """An operator's claim to a Lease; `elected` is set once it holds it."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        settle_s: float = 0.0,
    ) -> None:
        """settle_s: how long it holds the Lease before it works; SETTLE_S where a cluster-wide one may be about."""
        self._kube = kube
        self._settle_s = settle_s
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._record: Object = {}  # what the Lease said last, and since when it has
        self._since = 0.0
        self._until = -math.inf  # before that nobody else may begin
        self.elected = asyncio.Event()

    async def run(self) -> None:
        """Wait for the Lease, then keep it; raises LostLeadershipError when it is lost."""
        renewed = self._clock()  # as it was before the request: whoever sees the Lease counts from then or later
        while not await self._tried():
            await asyncio.sleep(RENEW_EVERY_S)
            renewed = self._clock()
        log.info("%s holds the lease %s/%s", self._identity, self._namespace, NAME)
        taken = self._clock()
        while True:
            self._until = renewed + GIVE_UP_AFTER_S
            if self._clock() - taken >= self._settle_s:
                self.elected.set()
            await asyncio.sleep(RENEW_EVERY_S)
            renewed = await self._kept(renewed + GIVE_UP_AFTER_S)

    async def _kept(self, until: float) -> float:
        """Renew it before `until`; when the request began that did. Raises LostLeadershipError."""
        while True:
            began = self._clock()
            if await self._tried(min(TRY_S, until - began)):
                return began
            if self._holder() != self._identity or self._clock() + AGAIN_S >= until:
                raise LostLeadershipError(f"the lease {self._namespace}/{NAME} is {self._holder() or 'nobody'}'s now")
            await asyncio.sleep(AGAIN_S)

    def appoint(self) -> None:
        """Work without a Lease: nobody else is there."""
        self._until = math.inf
        self.elected.set()

    def holds(self) -> bool:
        """May it write now? Known by the own clock alone, so that who stood still knows it before anything else."""
        return self._clock() < self._until

    async def after_election(self, part: Coroutine[Any, Any, None]) -> None:
        """Run a part once elected."""
        try:
            await self.elected.wait()
        except asyncio.CancelledError:
            part.close()
            raise
        await part

    async def release(self) -> None:
        """Let the next one begin at once; best effort, since the Lease runs out anyway."""
        if not self.elected.is_set():
            return
        try:
            async with asyncio.timeout(RELEASE_S):
                lease = await self._kube.get("Lease", self._namespace, NAME)
                if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                    await self._kube.replace({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except (ApiError, TimeoutError) as error:
            log.warning("the lease was not released: %s", error)

    async def _tried(self, within_s: float = GIVE_UP_AFTER_S - RENEW_EVERY_S) -> bool:
        """Take or renew the Lease; False where that was not possible now."""
        try:
            async with asyncio.timeout(max(within_s, 0.0)):
                return await self._claim()
        except (ApiError, TimeoutError) as error:
            log.warning("the lease %s/%s: %s", self._namespace, NAME, error or "no answer in time")
            return False

    async def _claim(self) -> bool:
        lease = await self._kube.get("Lease", self._namespace, NAME)
        if lease is None:
            return await self._written(self._kube.create(self._fresh()))
        self._look(lease["spec"])
        if self._holder() not in {"", self._identity} and self._clock() < self._since + LEASE_S:
            return False
        return await self._written(self._kube.replace(self._renewed(lease)))

    async def _written(self, writing: Coroutine[Any, Any, Object]) -> bool:
        try:
            self._look((await writing)["spec"])
        except (AlreadyExistsError, ConflictError, NotFoundError) as error:
            log.info("somebody else was quicker: %s", error)
            return False
        return True

    def _look(self, record: Object) -> None:
        if record != self._record:
            self._record, self._since = record, self._clock()

    def _holder(self) -> str:
        return str(self._record.get("holderIdentity") or "")

    def _fresh(self) -> Object:
        metadata = {"name": NAME, "namespace": self._namespace, "labels": {"app.kubernetes.io/name": NAME}}
        spec = self._spec(now_text(), 0)
        return {"apiVersion": KINDS["Lease"].api_version, "kind": "Lease", "metadata": metadata, "spec": spec}

    def _renewed(self, lease: Object) -> Object:
        old = lease["spec"]
        if old.get("holderIdentity") == self._identity:
            return {**lease, "spec": {**old, "renewTime": now_text()}}
        log.info("%s takes the lease from %s", self._identity, old.get("holderIdentity") or "nobody")
        return {**lease, "spec": self._spec(now_text(), int(old.get("leaseTransitions") or 0) + 1)}

    def _spec(self, now: str, transitions: int) -> Object:
        times = {"acquireTime": now, "renewTime": now}
        holder = {"holderIdentity": self._identity, "leaseDurationSeconds": LEASE_S}
        return {**holder, **times, "leaseTransitions": transitions}


def now_text() -> str:
    """A MicroTime, for people: nothing is decided by it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
