"""The prefill worker: takes prompts, asks for a ticket at the head of the queue, pushes pages."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from tandem_worker.engine.request import EngineError, PromptTooLongError, QueueFullError, Sampling
from tandem_worker.transfer.push import (
    ANSWER_S,
    ASK_TRIES,
    ASKING_AT_MOST,
    BACKLOG_BYTES,
    HEARD,
    IN_FLIGHT,
    IN_FLIGHT_AT_MOST,
    PATIENCE_S,
    SIGN_S,
    SIGNS_A_LEASE,
    TABLE,
    Act,
    Event,
    State,
    step,
)
from tandem_worker.transfer.table import Refusals
from tandem_worker.transfer.wire import (
    AnyMessage,
    AskTicket,
    Cancel,
    Chunk,
    Commit,
    Failed,
    First,
    Generation,
    Message,
    NoTicket,
    Prefill,
    Quiet,
    SamplingFields,
    TicketGranted,
    Waits,
    WireError,
)

if TYPE_CHECKING:
    from tandem_worker.engine import Engine, Token
    from tandem_worker.engine.lending import Loan
    from tandem_worker.transfer.base import Channel, Meter, Transfer

Post = Callable[..., None]  # post(function, *arguments): call it on the event loop, from any thread

NOBODY: Final = Generation(0, 0)  # counters begin at 1


@dataclass(slots=True)
class Push:
    """One request of one decode worker, from `prefill` to its end."""

    key: str  # the engine's id: unique over all connections
    request: str  # the decode worker's id
    channel: Channel
    pages: int
    arrived_at: float
    state: State = State.QUEUED
    generation: Generation = NOBODY
    tries: int = 0
    due_at: float = 0.0  # READY: when to ask; ASKING: when the answer is overdue; PUSHING: when a sign of life is due
    sign_s: float = 0.0  # between two signs of life
    work: int = 0  # PUSHING: what the engine had done at the last one
    admitted_at: float = 0.0
    set_aside: bool = False  # ASKING, and its place among those that are asked is another's


class PrefillSide:
    """Owner of all connections that decode workers opened. Lives on the event loop; the engine's thread posts to it."""

    def __init__(
        self,
        engine: Engine,
        transfer: Transfer,
        page_tokens: int,
        *,
        post: Post,
        clock: Callable[[], float],
        meter: Meter,
    ) -> None:
        self._engine = engine
        self._transfer = transfer
        self._page_tokens = page_tokens
        self._post = post
        self._clock = clock
        self._meter = meter
        self._counter = 0
        self._pushes: dict[str, Push] = {}
        self._by_request: dict[tuple[int, str], Push] = {}
        self._by_generation: dict[tuple[int, Generation], Push] = {}
        self.refusals = Refusals()

    @property
    def active(self) -> int:
        """Requests that have not ended."""
        return len(self._pushes)

    # --- from the decode worker ---------------------------------------------------------------------------------

    def on_message(self, channel: Channel, message: AnyMessage, body: memoryview) -> None:
        """One frame of a decode worker. Raises WireError where it makes no sense at all."""
        if type(message) is not Prefill and type(message) not in HEARD:
            raise WireError(f"a decode worker must not send {type(message).__name__}")
        match message:
            case Prefill():
                self._begin(channel, message, body)
            case TicketGranted():
                self._granted(channel, message)
            case NoTicket():
                self._denied(channel, message)
            case Cancel():
                self._cancelled(channel, message)

    def place(self, channel: Channel, chunk: Chunk) -> Sequence[memoryview] | None:  # noqa: ARG002
        """Raises WireError: pages go the other way."""
        raise WireError(f"a decode worker must not send pages ({chunk.pages} from {chunk.first_page} on)")

    def landed(self, channel: Channel, chunk: Chunk) -> None:
        """None do: they have no place here."""

    def on_closed(self, channel: Channel, reason: str) -> None:
        """Nobody is there any more: the work of this connection stops."""
        for push in [push for push in self._pushes.values() if push.channel is channel]:
            self._apply(push, Event.CLOSED, reason)

    def sweep(self) -> None:
        """What time alone brings about; called every few dozen milliseconds."""
        now = self._clock()
        for push in list(self._pushes.values()):
            if push.state is State.ASKING and now >= push.due_at:
                self._apply(push, Event.GIVE_UP, f"the decode worker did not answer within {ANSWER_S:.0f} s")
            elif push.state is State.ASKING and not push.set_aside and now >= push.due_at - ANSWER_S + PATIENCE_S:
                # Several silent ones would take all of MAX_ASKED. The answer counts when it comes.
                push.set_aside = True
                self._engine.defer_prefill(push.key, deferred=True)
            elif push.state is State.READY:
                self._ask_if_due(push)
            elif push.state is State.PUSHING and now >= push.due_at:
                self._say_waits(push)

    def _begin(self, channel: Channel, message: Prefill, body: memoryview) -> None:
        if (id(channel), message.request) in self._by_request:
            raise WireError(f"request {message.request} was sent twice")
        prompt = list(struct.unpack(f"<{len(body) // 4}i", body))
        self._counter += 1
        key = f"kv{self._counter}:{message.request}"
        pages = -(-len(prompt) // self._page_tokens)
        push = Push(key, message.request, channel, pages, self._clock())
        try:
            # The ticket decides what travels: what the decode worker had when it asked may be gone when it promises.
            sampling, sink = to_sampling(message.sampling), Sink(self, key)
            self._engine.submit_prefill(key, prompt, sampling, 0, sink, channel.shares)
        except EngineError as error:
            retry_after_s = error.retry_after_s if isinstance(error, QueueFullError) else 1
            code, words = code_of(error), str(error)[:512]
            failed = Failed(request=message.request, reason=words, code=code, retry_after_s=retry_after_s)
            channel.send(failed)
            return
        self._pushes[key] = push
        self._by_request[id(channel), message.request] = push

    def _granted(self, channel: Channel, message: TicketGranted) -> None:
        push = self._by_request.get((id(channel), message.request))
        if push is None or not self._allows(push, Event.TICKET):
            return  # given up meanwhile: the decode worker has our `failed` or `quiet`
        if message.first_page > push.pages:
            raise WireError(f"a ticket from page {message.first_page} for a prompt of {push.pages} pages")
        if message.generation == NOBODY or (id(channel), message.generation) in self._by_generation:
            raise WireError(f"generation {message.generation} was given twice")
        push.generation = message.generation
        self._by_generation[id(channel), message.generation] = push
        push.admitted_at = self._clock()
        push.sign_s = max(message.lease_ms / 1000 / SIGNS_A_LEASE, SIGN_S)
        self._signed(push)
        self._meter.expected((push.pages - message.first_page) * self._transfer.page_bytes, channel.bandwidth)
        self._apply(push, Event.TICKET, first_page=message.first_page)
        self._ask_more(channel)

    def _denied(self, channel: Channel, message: NoTicket) -> None:
        push = self._by_request.get((id(channel), message.request))
        if push is None or not self._allows(push, Event.NO_TICKET):
            return
        if message.reason:
            self._apply(push, Event.GIVE_UP, message.reason)
        elif push.tries >= ASK_TRIES:
            self._apply(push, Event.GIVE_UP, f"the decode worker had no room {push.tries} times")
        else:
            push.due_at = self._clock() + message.retry_ms / 1000
            self._apply(push, Event.NO_TICKET)
        self._ask_more(channel)

    def _cancelled(self, channel: Channel, message: Cancel) -> None:
        push = self._by_request.get((id(channel), message.request))
        if push is None:  # it ended here, and it ends only once every page of it is taken
            channel.send(Quiet(request=message.request))
        else:
            self._apply(push, Event.CANCEL)

    def on_sent(self, channel: Channel, generation: Generation) -> None:
        """A transfer's last word has left, and the decode worker has taken all of its pages."""
        if (push := self._by_generation.get((id(channel), generation))) is not None:
            self._apply(push, Event.SENT)

    # --- from the engine (posted) -------------------------------------------------------------------------------

    def on_head(self, key: str) -> None:
        """The engine would compute it next."""
        if (push := self._pushes.get(key)) is not None:
            self._meter.queued(self._clock() - push.arrived_at)
            self._apply(push, Event.HEAD)
            self._ask_if_due(push)

    def on_chunk(self, key: str, first_page: int, pages: Loan) -> None:
        """Pages are computed."""
        push = self._pushes.get(key)
        if push is not None and Act.PUSH in self._apply(push, Event.CHUNK):
            self._meter.sent(self._transfer.push(push.channel, push.generation, first_page, pages))
            self._signed(push)
        else:
            pages.end()

    def on_first(self, key: str, token: Token) -> None:
        """The first token is sampled; its pages follow."""
        push = self._pushes.get(key)
        if push is not None and Act.SAY_FIRST in self._apply(push, Event.FIRST):
            self._meter.prefilled(self._clock() - push.admitted_at)
            push.due_at = math.inf  # it waits for nobody any more
            push.channel.send(
                First(
                    generation=push.generation,
                    token=token.id,
                    logprob=token.logprob,
                    top=token.top,
                    finish=token.finish,
                )
            )

    def on_done(self, key: str) -> None:
        """The engine has handed everything over."""
        if (push := self._pushes.get(key)) is not None:
            self._apply(push, Event.DONE)

    def on_failed(self, key: str, reason: str) -> None:
        """The engine gave it up."""
        if (push := self._pushes.get(key)) is not None:
            self._apply(push, Event.FAILED, reason)

    # --- inside -------------------------------------------------------------------------------------------------

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """From the engine's thread to the event loop."""
        self._post(function, *arguments)

    def _work(self) -> int:
        """Grows with every step of the engine: one that hangs must not keep a lease alive."""
        stats = self._engine.stats()
        return stats.prefill_tokens + stats.decode_tokens

    def _say_waits(self, push: Push) -> None:
        if self._work() != push.work and Act.SAY_WAITS in self._apply(push, Event.WAIT):
            push.channel.send(Waits(generation=push.generation))
            self._signed(push)

    def _signed(self, push: Push) -> None:
        """The decode worker is about to hear of it."""
        if push.due_at != math.inf:
            push.due_at, push.work = self._clock() + push.sign_s, self._work()

    def _ask_if_due(self, push: Push) -> None:
        if push.state is State.READY and self._clock() >= push.due_at and self._has_room(push.channel):
            push.tries += 1
            push.due_at, push.set_aside = self._clock() + ANSWER_S, False
            self._apply(push, Event.ASK)

    def _ask_more(self, channel: Channel) -> None:
        """It has answered: the next question need not wait for the sweep."""
        for push in [one for one in self._pushes.values() if one.channel is channel]:
            if not self._has_room(channel):
                return
            self._ask_if_due(push)

    def _has_room(self, channel: Channel) -> bool:
        """May one more transfer to this decode worker begin? A slow one, or a silent one, holds up its own alone."""
        states = [one.state for one in self._pushes.values() if one.channel is channel and one.state in IN_FLIGHT]
        few = len(states) < IN_FLIGHT_AT_MOST and states.count(State.ASKING) < ASKING_AT_MOST
        return few and channel.backlog <= BACKLOG_BYTES

    def _allows(self, push: Push, event: Event) -> bool:
        """Does the table know it? If not it is refused: counted, and nothing else."""
        if TABLE.find(push.state, event) is not None:
            return True
        self.refusals.add(push.state, event)
        return False

    def _apply(self, push: Push, event: Event, reason: str = "", first_page: int = 0) -> tuple[Act, ...]:
        if not self._allows(push, event):
            return ()
        push.state, acts = step(push.state, event)
        if push.state is State.ENDED:
            del self._pushes[push.key]
            del self._by_request[id(push.channel), push.request]
            self._by_generation.pop((id(push.channel), push.generation), None)
        for act in acts:
            self._carry_out(push, act, reason, first_page)
        return acts

    def _carry_out(self, push: Push, act: Act, reason: str, first_page: int) -> None:
        channel = push.channel
        match act:
            case Act.DEFER:
                self._engine.defer_prefill(push.key, deferred=True)
            case Act.ASK:
                self._engine.defer_prefill(push.key, deferred=False)
                channel.send(AskTicket(request=push.request, pages=push.pages))
            case Act.ADMIT:
                self._engine.admit_prefill(push.key, first_page)
            case Act.STOP:
                self._engine.cancel(push.key)
            case Act.DROP:
                channel.drop(push.generation)
            case Act.SAY_COMMIT:
                self._say_last(push, Commit(generation=push.generation, pages=push.pages))
            case Act.SAY_QUIET:
                self._say_last(push, Quiet(request=push.request))
            case Act.SAY_FAILED:
                self._say_last(push, Failed(request=push.request, reason=(reason or "the prefill failed")[:512]))
            case Act.PUSH | Act.SAY_FIRST | Act.SAY_WAITS:
                pass  # the caller has what is to be sent
            case _:
                assert_never(act)

    @staticmethod
    def _say_last(push: Push, message: Message) -> None:
        """Behind all pages, where there are any."""
        if push.generation == NOBODY:
            push.channel.send(message)
        else:
            push.channel.finish(push.generation, message)


class Sink:
    """The engine's `PrefillSink` of one request: only posts."""

    def __init__(self, side: PrefillSide, key: str) -> None:
        self._side = side
        self._key = key

    def on_head(self) -> None:
        """See PrefillSink."""
        self._side.post(self._side.on_head, self._key)

    def on_chunk(self, first_page: int, pages: Loan) -> None:
        """See PrefillSink."""
        self._side.post(self._side.on_chunk, self._key, first_page, pages)

    def on_first(self, token: Token) -> None:
        """See PrefillSink."""
        self._side.post(self._side.on_first, self._key, token)

    def on_done(self) -> None:
        """See PrefillSink."""
        self._side.post(self._side.on_done, self._key)

    def on_failed(self, reason: str) -> None:
        """See PrefillSink."""
        self._side.post(self._side.on_failed, self._key, reason)


def to_sampling(fields: SamplingFields) -> Sampling:
    """The wire's sampling → the engine's."""
    return Sampling(**msgspec.structs.asdict(fields))


def from_sampling(sampling: Sampling) -> SamplingFields:
    """The engine's sampling → the wire's."""
    return SamplingFields(**asdict(sampling))


def code_of(error: EngineError) -> str:
    """A refusal's short name on the wire."""
    if isinstance(error, QueueFullError):
        return "queue_full"
    return "too_long" if isinstance(error, PromptTooLongError) else "error"
