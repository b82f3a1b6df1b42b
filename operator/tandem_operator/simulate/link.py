"""KV transfers and the NICs that they share.

A prompt's chunks travel while the next ones are computed: a *stream*, never faster than the compute. When the last
chunk is computed, what is left is waited for: a *tail*. A NIC gives each of its n transfers an equal part; what streams
leave of theirs goes to the tails. A transfer runs at the lesser of its two ends' parts (so a part that the other end
cannot use is lost: a little pessimistic, and local, so that a change touches only the neighbours on two NICs).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tandem_operator.simulate.request import Request


class Link:
    """One worker's NIC; `rate` in tokens of KV a second."""

    __slots__ = ("flows", "rate", "streaming", "streams")

    def __init__(self, token_s: float) -> None:
        """Idle. 0 seconds a token: no transfer takes any time here."""
        self.rate = 1 / token_s if token_s > 0 else inf
        self.flows: dict[Flow, None] = {}
        self.streams = 0
        self.streaming = 0.0  # what the streams ask for together, tokens/s

    def end_stream(self, cap: float) -> None:
        """One stream less."""
        self.streams -= 1
        self.streaming = self.streaming - cap if self.streams else 0.0  # no rounding error outlives the streams

    def part(self) -> float:
        """An equal part."""
        return self.rate / len(self.flows)

    def tail_part(self) -> float:
        """What a tail gets: an equal part, or its share of what the streams leave, whichever is more."""
        tails = len(self.flows) - self.streams
        return max(self.rate / len(self.flows), (self.rate - self.streaming) / tails)


class Flow:
    """One request's KV on its way between two links."""

    __slots__ = ("cap", "ends", "left", "rate", "request", "since", "version")

    def __init__(self, request: Request, ends: tuple[Link, Link], tokens: float, cap: float, now: float) -> None:
        """`tokens` to send, at `cap` tokens/s at most while it streams (inf: a tail)."""
        self.request = request
        self.ends = ends
        self.left = tokens
        self.cap = cap
        self.rate = 0.0
        self.since = now
        self.version = 0

    def settle(self, now: float) -> None:
        """Count what has been sent since the rate last changed."""
        self.left = max(self.left - self.rate * (now - self.since), 0.0)
        self.since = now

    def share(self) -> float:
        """The rate that its links allow now, tokens/s."""
        a, b = self.ends
        if len(a.flows) == 1 and len(b.flows) == 1:
            return min(self.cap, a.rate, b.rate)
        if self.cap < inf:
            return min(self.cap, a.part(), b.part())
        return min(a.tail_part(), b.tail_part())


class Network:
    """All transfers under way. `at_end(flow, time)` is told whenever a tail's end is known anew."""

    __slots__ = ("_at_end",)

    def __init__(self, at_end: Callable[[Flow, float], None]) -> None:
        """Nothing travels."""
        self._at_end = at_end

    def stream(self, request: Request, ends: tuple[Link, Link], tokens: int, seconds: float, now: float) -> Flow:
        """Chunks that will be computed over the next `seconds` start to travel."""
        flow = Flow(request, ends, tokens, tokens / seconds, now)
        self._join(flow, now)
        return flow

    def tail(self, flow: Flow, last: float, now: float) -> None:
        """All is computed: what the stream could not send and the last chunk have the link to themselves."""
        flow.settle(now)
        for link in flow.ends:
            link.end_stream(flow.cap)
        flow.left += last
        flow.cap, flow.rate = inf, 0.0  # so that its end is told even where its rate stays the same
        self._update(flow.ends, now)

    def start_tail(self, request: Request, ends: tuple[Link, Link], tokens: float, now: float) -> Flow:
        """A prompt of one chunk: nothing travelled before."""
        flow = Flow(request, ends, tokens, inf, now)
        self._join(flow, now)
        return flow

    def close(self, flow: Flow, now: float) -> None:
        """Arrived, or given up."""
        flow.version += 1
        for link in flow.ends:
            del link.flows[flow]
            if flow.cap < inf:
                link.end_stream(flow.cap)
        self._update(flow.ends, now)

    def _join(self, flow: Flow, now: float) -> None:
        for link in flow.ends:
            link.flows[flow] = None
            if flow.cap < inf:
                link.streams += 1
                link.streaming += flow.cap
        self._update(flow.ends, now)

    def _update(self, ends: tuple[Link, Link], now: float) -> None:
        """Every transfer on these links goes on at its new rate."""
        for link in ends:
            for flow in link.flows:
                rate = flow.share()
                if rate == flow.rate and flow.version:
                    continue
                flow.settle(now)
                flow.rate = rate
                flow.version += 1
                if flow.cap == inf:
                    self._at_end(flow, now + flow.left / rate if flow.left else now)
