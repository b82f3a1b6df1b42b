"""The decode worker: asks for prefills, promises pages, takes chunks in, hands over to the engine at the commit."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

from tandem_worker.engine.request import EngineError, Reservation, Sampling, Token
from tandem_worker.transfer.prefill_side import from_sampling
from tandem_worker.transfer.pull import Failure, Listener, Pull
from tandem_worker.transfer.table import Refusals
from tandem_worker.transfer.ticket import (
    HEARD,
    LEASE_S,
    RETRY_MS,
    Act,
    Event,
    State,
    Ticket,
    due,
    may,
    meaning,
    step,
)
from tandem_worker.transfer.wire import (
    AnyMessage,
    AskTicket,
    Cancel,
    Chunk,
    Commit,
    Failed,
    First,
    Generation,
    NoTicket,
    Prefill,
    Quiet,
    TicketGranted,
    Waits,
    WireError,
)

if TYPE_CHECKING:
    from tandem_worker.engine import Engine
    from tandem_worker.transfer.base import Channel, Meter, Transfer
    from tandem_worker.transfer.prefill_side import Post

LOG = logging.getLogger(__name__)


class DecodeSide:
    """Owner of all connections that this worker opened. Lives on the event loop."""

    def __init__(
        self,
        engine: Engine,
        transfer: Transfer,
        incarnation: int,
        *,
        post: Post,
        clock: Callable[[], float],
        meter: Meter,
        prefill_timeout_s: float,
        lease_s: float = LEASE_S,
        quarantine_pages: int | None = None,
    ) -> None:
        """`quarantine_pages`: with more in quarantine, writers are cut off before their time; None: time alone."""
        self._engine = engine
        self._transfer = transfer
        self._incarnation = incarnation
        self._post = post
        self._clock = clock
        self._meter = meter
        self._timeout_s = prefill_timeout_s
        self._lease_s = lease_s
        self._quarantine_pages = quarantine_pages
        self._counter = 0
        self._by_request: dict[str, Pull] = {}
        self._by_generation: dict[Generation, Pull] = {}
        self.stale = 0  # messages of tickets that are no more
        self.refusals = Refusals()

    # --- from the server ----------------------------------------------------------------------------------------

    def ask(
        self, channel: Channel, request: str, prompt: Sequence[int], sampling: Sampling, listener: Listener
    ) -> None:
        """Have `prompt` prefilled at the other end of `channel`. `request` must be new, and of 1 to 200 characters.

        Raises ConnectionError where the connection has ended meanwhile: nobody would ever hear of its end again.
        """
        if request in self._by_request:
            raise ValueError(f"request {request} is under way")
        if not channel.alive:
            raise ConnectionError("the connection to the prefill worker has just ended")
        self._counter += 1
        ticket = Ticket(
            request=request,
            generation=Generation(self._incarnation, self._counter),
            ends_at=self._clock() + self._timeout_s,
            lease_s=self._lease_s,
            fence=channel.fence,
        )
        pull = Pull(ticket, channel, prompt, sampling, listener, asked_at=self._clock())
        self._by_request[request] = self._by_generation[ticket.generation] = pull
        message = Prefill(request=request, sampling=from_sampling(sampling), have_pages=self._have_pages(prompt))
        channel.send(message, struct.pack(f"<{len(prompt)}i", *prompt))

    def cancel(self, request: str) -> None:
        """Nobody wants the answer any more, in whatever state it is. Idempotent."""
        pull = self._by_request.get(request)
        if pull is None:
            self._engine.cancel(request)
            return
        pull.listener = None
        self._apply(pull, Event.CANCEL)

    def count(self, *states: State) -> int:
        """Tickets in these states."""
        return sum(pull.ticket.state in states for pull in self._by_request.values())

    @property
    def cut_pages(self) -> int:
        """Pages whose writer was cut off, and into which something may still come."""
        return sum(one.ticket.own_pages for one in self._by_request.values() if one.ticket.state is State.CUT)

    def sweep(self) -> None:
        """What time alone brings about; called every few dozen milliseconds."""
        now = self._clock()
        for pull in list(self._by_request.values()):
            if (event := due(pull.ticket, now)) is not None:
                self._apply(pull, event, self._too_late(pull))
        self._bound_quarantine()

    def _too_late(self, pull: Pull) -> Failure:
        if pull.ticket.state is State.ASKED:
            return Failure(f"no ticket was asked for within {self._timeout_s:.0f} s", "timeout")
        return Failure(f"the lease ran out: no progress for {self._lease_s:.0f} s", "timeout")

    def _bound_quarantine(self) -> None:
        """Too many pages are nobody's: the writers that have been silent longest are cut off before their time."""
        if self._quarantine_pages is None:
            return
        waiting = [pull for pull in self._by_request.values() if pull.ticket.state is State.QUARANTINED]
        pages = sum(pull.ticket.own_pages for pull in waiting)
        for pull in sorted(waiting, key=lambda pull: pull.ticket.ends_at):
            if pages <= self._quarantine_pages:
                return
            pages -= pull.ticket.own_pages
            self._apply(pull, Event.OVERDUE)

    # --- from the prefill worker --------------------------------------------------------------------------------

    def on_message(self, channel: Channel, message: AnyMessage, body: memoryview) -> None:  # noqa: ARG002
        """One frame of a prefill worker, unless of pages. Raises WireError where it makes no sense at all."""
        if type(message) not in HEARD or isinstance(message, Chunk):
            raise WireError(f"a prefill worker must not send {type(message).__name__}")
        match message:
            case AskTicket():
                self._asked(channel, message)
            case Waits():
                if (pull := self._of_generation(channel, message.generation)) is not None:
                    self._apply(pull, Event.WAITS)
            case First():
                self._first(channel, message)
            case Commit() | Quiet() | Failed():
                self._ended(channel, message)

    def _ended(self, channel: Channel, message: Commit | Quiet | Failed) -> None:
        match message:
            case Commit():
                pull = self._of_generation(channel, message.generation)
                failure = Failure("the commit came before all of its pages")
            case Quiet():
                pull = self._of_request(channel, message.request)
                failure = Failure("the prefill worker dropped the request")
            case Failed():
                pull = self._of_request(channel, message.request)
                failure = Failure(message.reason, message.code, message.retry_after_s)
        if pull is None:
            return
        if pull.landing:  # its pages may be anybody's after it, and would still be written
            raise WireError(f"{type(message).__name__} while {pull.landing} frames of it are on their way")
        self._apply(pull, HEARD[type(message)], failure)

    def on_sent(self, channel: Channel, generation: Generation) -> None:
        """A decode worker sends no pages."""

    def on_closed(self, channel: Channel, reason: str) -> None:
        """Nothing that this connection carried can arrive any more."""
        for pull in [pull for pull in self._by_request.values() if pull.channel is channel]:
            pull.landing = 0
            self._apply(pull, Event.CLOSED, Failure(f"the prefill worker is gone: {reason}", "closed"))

    def _asked(self, channel: Channel, message: AskTicket) -> None:
        pull = self._of_request(channel, message.request)
        if pull is None:
            channel.send(NoTicket(request=message.request, reason="no such request here"))
        elif self._allows(pull, Event.GRANT):
            self._promise(pull, message.pages)

    def _promise(self, pull: Pull, pages: int) -> None:
        request = pull.ticket.request
        try:
            got = self._engine.reserve(request, pull.prompt, pull.sampling)
        except EngineError as error:
            pull.channel.send(NoTicket(request=request, reason=str(error)[:512] or "refused"))
            return
        if not isinstance(got, Reservation):
            pull.channel.send(NoTicket(request=request, retry_ms=RETRY_MS))
        elif got.pages != pages:
            self._engine.release(request)
            pull.channel.send(NoTicket(request=request, reason=f"{pages} pages asked for, {got.pages} needed"))
        else:
            self._grant(pull, got)

    def _grant(self, pull: Pull, got: Reservation) -> None:
        pull.ticket = pull.ticket.with_pages(got.have_pages, got.pages)
        self._apply(pull, Event.GRANT)
        self._meter.saved(got.have_pages * self._transfer.page_bytes)
        if pull.listener is not None:
            pull.listener.on_granted(got.have_pages)
        pull.channel.send(
            TicketGranted(
                request=pull.ticket.request,
                generation=pull.ticket.generation,
                first_page=got.have_pages,
                lease_ms=int(self._lease_s * 1000),
            )
        )

    def _first(self, channel: Channel, message: First) -> None:
        pull = self._of_generation(channel, message.generation)
        if pull is None or not self._allows(pull, Event.FIRST_TOKEN):
            return
        pull.first = Token(message.token, message.logprob, message.top, message.finish)
        pull.first_at = self._clock()
        self._apply(pull, Event.FIRST_TOKEN)
        if message.finish is not None:  # the whole answer is one token: its pages need not come
            pull.listener = None
            self._apply(pull, Event.CANCEL)

    # --- pages ---------------------------------------------------------------------------------------------------

    def place(self, channel: Channel, chunk: Chunk) -> Sequence[memoryview] | None:
        """The reserved pages' own memory, once the ticket has been asked. Raises WireError for pages outside of it."""
        pull = self._of_generation(channel, chunk.generation)
        if pull is None or not self._allows(pull, Event.CHUNK):
            return None
        if not pull.ticket.fits(chunk.first_page, chunk.pages):
            raise WireError(f"pages {chunk.first_page}+{chunk.pages} lie outside of the ticket")
        try:
            pieces = self._engine.open_pages(pull.ticket.request, chunk.first_page, chunk.pages)
        except EngineError as error:
            self._apply(pull, Event.BROKEN, Failure(str(error)))
            return None
        pull.landing += 1
        return pieces

    def landed(self, channel: Channel, chunk: Chunk) -> None:
        """They are there. If the ticket has ended meanwhile its pages are in quarantine, and what they hold is moot."""
        pull = self._of_generation(channel, chunk.generation)
        if pull is None:
            return
        pull.landing -= 1
        if not self._allows(pull, Event.CHUNK):
            return
        try:
            self._engine.pages_written(pull.ticket.request, chunk.first_page, chunk.pages)
        except EngineError as error:
            self._apply(pull, Event.BROKEN, Failure(str(error)))
            return
        self._apply(pull, Event.CHUNK)
        byte_count = chunk.pages * self._transfer.page_bytes
        self._meter.received(byte_count)
        if pull.listener is not None:
            pull.listener.on_pages(byte_count)
        pull.ticket = pull.ticket.with_arrived(chunk.first_page, chunk.pages)

    # --- inside -------------------------------------------------------------------------------------------------

    def _of_request(self, channel: Channel, request: str) -> Pull | None:
        pull = self._by_request.get(request)
        return self._if_from(channel, pull)

    def _of_generation(self, channel: Channel, generation: Generation) -> Pull | None:
        return self._if_from(channel, self._by_generation.get(generation))

    def _if_from(self, channel: Channel, pull: Pull | None) -> Pull | None:
        """A ticket is spoken of by the peer that it was given to, on that very connection, or not at all."""
        if pull is None or pull.channel is not channel:
            self.stale += 1
            self.refusals.counts["none", "stale"] += 1
            return None
        return pull

    def _have_pages(self, prompt: Sequence[int]) -> int:
        return self._engine.match(prompt)

    def _allows(self, pull: Pull, event: Event) -> bool:
        """Does the table know it? If not it is refused: counted, and nothing else."""
        if pull.ticket.fence is not pull.channel.fence:  # pages travel another way since the request began
            pull.ticket = replace(pull.ticket, fence=pull.channel.fence)
        if may(pull.ticket, event):
            return True
        self.refusals.add(pull.ticket.state, meaning(pull.ticket, event))
        return False

    def _apply(self, pull: Pull, event: Event, failure: Failure | None = None) -> None:
        if not self._allows(pull, event):
            return
        pull.ticket, acts = step(pull.ticket, event, self._clock())
        if pull.ticket.over:
            del self._by_request[pull.ticket.request]
            del self._by_generation[pull.ticket.generation]
        for act in acts:
            self._carry_out(pull, act, failure)

    def _carry_out(self, pull: Pull, act: Act, failure: Failure | None) -> None:
        request = pull.ticket.request
        match act:
            case Act.EMIT:
                self._emit(pull)
            case Act.COMMIT:
                self._commit(pull)
            case Act.RELEASE | Act.QUARANTINE | Act.UNQUARANTINE:
                self._give_back(request, act)
            case Act.TELL_WRITER:
                pull.channel.send(Cancel(request=request))
            case Act.TELL_CLIENT:
                self._tell(pull, failure or Failure("the transfer failed"))
            case Act.REVOKE:
                self._revoke(pull)
            case Act.CUT_OFF:
                self._cut_off(pull)
            case Act.RENEW | Act.WRITE:
                pass  # done by the ticket, and by the caller, who has the pages
            case _:
                assert_never(act)

    def _give_back(self, request: str, act: Act) -> None:
        if act is Act.RELEASE:
            self._engine.release(request)
        elif act is Act.QUARANTINE:
            self._engine.quarantine(request)
        else:
            self._engine.unquarantine(request)

    @staticmethod
    def _emit(pull: Pull) -> None:
        if pull.listener is not None and pull.first is not None:
            pull.listener.on_token(pull.first)

    def _commit(self, pull: Pull) -> None:
        self._meter.transferred(self._clock() - pull.first_at, pull.first_at - pull.asked_at)
        listener, first = pull.listener, pull.first
        if listener is None or first is None:
            self._engine.release(pull.ticket.request)
            return
        try:
            self._engine.commit(pull.ticket.request, first, partial(self._post, listener.on_token))
        except EngineError as error:
            self._tell(pull, Failure(str(error)))

    def _revoke(self, pull: Pull) -> None:
        """Where the backend has a memory key, its end is the proof."""
        if pull.channel.revoke():
            self._apply(pull, Event.REVOKED)

    def _cut_off(self, pull: Pull) -> None:
        self._meter.cut_off()
        LOG.warning(
            "%d pages of %s wait for the prefill worker's word: its connection is closed for good",
            pull.ticket.own_pages,
            pull.ticket.request,
        )
        pull.channel.abort("the prefill worker did not say that it had stopped writing")
        self._revoke(pull)

    @staticmethod
    def _tell(pull: Pull, failure: Failure) -> None:
        if pull.listener is not None:
            pull.listener.on_failed(failure)
            pull.listener = None
