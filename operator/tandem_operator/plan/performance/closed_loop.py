"""Users in a closed loop on one worker: what a benchmark of fixed concurrency measures, played pass by pass."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING

from tandem_operator.plan.performance.passes import Batch, pass_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tandem_operator.plan.performance.costs import Costs
    from tandem_operator.plan.performance.engine import Engine


@dataclass(frozen=True, slots=True)
class Latency:
    """Means over all requests, in seconds."""

    ttft_s: float
    tpot_s: float


@dataclass(slots=True)
class Request:
    """One request on its way; times in seconds, `done`: prompt tokens computed."""

    prompt: int
    output: int
    arrived: float
    done: int = 0
    first: float = 0.0
    answered: float = 0.0


@dataclass(slots=True)
class Loop:
    """The worker's state. Decoding requests are counted by the step at which they end: equal steps are jumped over."""

    costs: Costs
    engine: Engine
    room: float  # tokens of KV
    lengths: Iterator[tuple[int, int]]
    now: float = 0.0
    steps: int = 0
    passes: int = 0
    polled: int = 0  # the step at which new requests were last looked for
    reserved: float = 0.0
    context: float = 0.0  # tokens of all decoding requests
    coming: deque[Request] = field(default_factory=deque)
    waiting: deque[Request] = field(default_factory=deque)
    due: int | None = None  # the step at which gathered requests are taken
    unanswered: deque[tuple[int, Request]] = field(default_factory=deque)  # with the pass that answers
    running: list[tuple[int, int, Request]] = field(default_factory=list)
    left: int = 0  # requests that are still to be asked
    admitted: int = 0
    ended: int = 0
    ttft_s: float = 0.0
    tpot_s: float = 0.0


def play(
    costs: Costs, engine: Engine, room: float, users: int, requests: int, lengths: Iterator[tuple[int, int]]
) -> Latency | None:
    """Mean TTFT and TPOT of `requests` requests by `users` users who all begin at once and ask again at once.

    A request waits for the pass under way, for room in memory (its whole length is reserved) and for the pass's token
    budget. None: not even one request fits.
    """
    loop = Loop(costs, engine, room, lengths, left=requests)
    for _ in range(users):
        ask(loop)
    while loop.ended < requests:
        if not one_pass(loop):
            return None
    return Latency(loop.ttft_s / loop.ended + engine.request_s, loop.tpot_s / loop.ended)


def keep(loop: Loop, request: Request) -> float:
    """Tokens of memory that a request is admitted with."""
    return request.prompt + loop.engine.kept * request.output


def prompt_pass_s(costs: Costs, engine: Engine, batch: Batch) -> float:
    """A pass with prompts: the GPU's time, or the host's to launch its kernels where that is longer."""
    return max(pass_time(costs, batch).total, costs.prompt_kernels * engine.launch_s)


def ask(loop: Loop) -> None:
    """A user's next request, if there is one; it reaches the scheduler after its way through the server."""
    if loop.left == 0:
        return
    loop.left -= 1
    prompt, output = next(loop.lengths)
    loop.coming.append(Request(prompt, output, loop.now + loop.engine.request_s / 2))


def one_pass(loop: Loop) -> bool:
    """Prompts if there are any (with the decoding requests, where the engine mixes them), else decode steps."""
    poll(loop)
    batch, finished = take_prompts(loop)
    if batch.prompt_tokens:
        prompt_pass(loop, batch, finished)
        return True
    if loop.running:
        decode_steps(loop)
        return True
    if loop.coming:
        loop.now = loop.coming[0].arrived
        return True
    return False


def poll(loop: Loop) -> None:
    """Take what has come, unless the engine is between two looks."""
    if loop.running and not is_looking(loop):
        return
    loop.due = None
    loop.polled = loop.steps
    while loop.coming and loop.coming[0].arrived <= loop.now:
        loop.waiting.append(loop.coming.popleft())


def is_looking(loop: Loop) -> bool:
    """Is this a step at which new requests are taken while others decode?"""
    if not loop.engine.gather_steps:
        return loop.steps - loop.polled >= loop.engine.poll_steps - 1
    if loop.due is None and loop.coming and loop.coming[0].arrived <= loop.now:
        loop.due = loop.steps + loop.engine.gather_steps
    return loop.due is not None and loop.steps >= loop.due


def take_prompts(loop: Loop) -> tuple[Batch, list[Request]]:
    """Fill the pass's token budget from the queue's head."""
    mixed = len(loop.running) if loop.engine.mixes else 0
    budget, tokens, pairs = loop.engine.chunk_tokens - mixed, 0, 0.0
    finished: list[Request] = []
    while loop.waiting and budget > 0:
        head = loop.waiting[0]
        left = head.prompt - head.done
        if head.done == 0 and loop.reserved + keep(loop, head) > loop.room and (loop.running or finished or tokens):
            break
        if left > budget and not loop.engine.splits and tokens:
            break
        if head.done == 0:
            loop.reserved += keep(loop, head)
        part = min(left, budget)
        pairs += part * (head.done + part / 2)
        head.done += part
        tokens += part
        budget -= part
        if head.done == head.prompt:
            finished.append(loop.waiting.popleft())
    context = loop.context / mixed if mixed else 0.0
    return Batch(tokens, pairs, mixed, context, len(finished)), finished


def prompt_pass(loop: Loop, batch: Batch, finished: list[Request]) -> None:
    """Compute the prompts; those that are complete have their first token at its end."""
    rows = batch.decoding + len(finished)
    seconds = prompt_pass_s(loop.costs, loop.engine, batch) + loop.engine.step_s + rows * loop.engine.row_s
    advance(loop, 1, seconds, decoding=batch.decoding > 0)
    loop.polled = loop.steps - loop.engine.poll_steps  # a prompt's pass is followed by a look
    for request in finished:
        loop.admitted += 1
        request.first = loop.now
        loop.unanswered.append((loop.passes + loop.engine.lag_passes, request))
        loop.context += request.prompt
        heappush(loop.running, (loop.steps + request.output - 1, loop.admitted, request))
    end(loop)


def decode_steps(loop: Loop) -> None:
    """Equal steps until the next request ends, or the next one comes."""
    size = len(loop.running)
    left = max(loop.running[0][0] - loop.steps, 1)
    batch = Batch(decoding=size, context=(loop.context + size * left / 2) / size)
    step = pass_time(loop.costs, batch).total + loop.engine.step_s + size * loop.engine.row_s
    count = left
    if loop.coming:
        count = min(left, steps_until_look(loop, max(ceil((loop.coming[0].arrived - loop.now) / step), 1)))
    advance(loop, count, step, decoding=True)
    end(loop)


def steps_until_look(loop: Loop, steps: int) -> int:
    """Steps until the engine sees a request that comes after `steps`."""
    if loop.engine.gather_steps:
        return steps if loop.due is None else max(loop.due - loop.steps, 1)
    every = loop.engine.poll_steps
    first = max(loop.polled + every - loop.steps, 1)
    return first if steps <= first else first + ceil((steps - first) / every) * every


def advance(loop: Loop, passes: int, seconds: float, *, decoding: bool) -> None:
    """So many equal passes; in each, every decoding request has one token more."""
    while loop.unanswered and loop.unanswered[0][0] <= loop.passes + passes:
        due, request = loop.unanswered.popleft()
        request.answered = loop.now + (due - loop.passes) * seconds
    loop.now += passes * seconds
    loop.passes += passes
    if decoding:
        loop.steps += passes
        loop.context += passes * len(loop.running)


def end(loop: Loop) -> None:
    """Give back what ended, and let its users ask again."""
    while loop.running and loop.running[0][0] <= loop.steps:
        _, _, request = heappop(loop.running)
        loop.reserved -= keep(loop, request)
        loop.context -= request.prompt + request.output - 1
        loop.tpot_s += (loop.now - request.first) / max(request.output - 1, 1)
        loop.ttft_s += (request.answered or loop.now) - request.arrived
        loop.ended += 1
        ask(loop)
