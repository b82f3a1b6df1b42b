"""Workloads made of recorded ones: scaled, cut, spliced, with bursts, days and nights. Deterministic; no randomness.

An arrival here is what a trace says of a request and nothing else, so that one workload can be played many times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, pi
from typing import TYPE_CHECKING

from tandem_operator.simulate.worker import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

COPY = 10**12  # block hashes of copies of a trace are this far apart: more than any trace has


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace: seconds since its start, tokens, and its prompt's block hashes."""

    at: float
    prompt: int
    output: int
    hashes: tuple[int, ...] = ()


def arrivals_of(requests: Iterable[Request]) -> tuple[Arrival, ...]:
    """What a reader of traces yields, to be played again and again."""
    return tuple(Arrival(r.arrived, r.prompt, r.output, tuple(r.hashes)) for r in requests)


def play(trace: Sequence[Arrival]) -> Iterator[Request]:
    """Fresh requests for one simulation."""
    return (Request(a.at, a.prompt, a.output, hashes=a.hashes) for a in trace)


def seconds_of(trace: Sequence[Arrival]) -> float:
    """The last arrival's time; 0 for none."""
    return trace[-1].at if trace else 0.0


def scaled(trace: Sequence[Arrival], rate: float) -> tuple[Arrival, ...]:
    """Played `rate` times as fast: the same requests, closer together."""
    return tuple(replace(a, at=a.at / rate) for a in trace)


def thickened(trace: Sequence[Arrival], copies: int, shift_s: float | None = None) -> tuple[Arrival, ...]:
    """`copies` times the rate at the recorded pace: so many populations that behave alike, each `shift_s` later.

    Playing a trace faster would shorten its waves against the time that a replica takes to start; this does not. A
    copy goes round: what is shifted beyond the end comes at the beginning. Copies share no prefixes with each other.
    Without a shift they are spread evenly over the trace's length: their waves do not coincide.
    """
    period = seconds_of(trace)
    if period <= 0:
        return tuple(trace)
    shift = period / copies if shift_s is None else shift_s
    return overlay(*(sorted_by_time(shifted(trace, n, n * shift, period)) for n in range(copies)))


def shifted(trace: Sequence[Arrival], number: int, seconds: float, period: float) -> Iterator[Arrival]:
    """One copy; its block hashes are its own (a tuple's hash would not be the same on every machine)."""
    for a in trace:
        hashes = tuple(h + number * COPY for h in a.hashes)
        yield replace(a, at=(a.at + seconds) % period if number else a.at, hashes=hashes)


def sorted_by_time(trace: Iterable[Arrival]) -> list[Arrival]:
    """In order of arrival; equal times keep their order."""
    return sorted(trace, key=lambda a: a.at)


def cut(trace: Sequence[Arrival], start: float, seconds: float) -> tuple[Arrival, ...]:
    """A piece, from its own second 0."""
    return tuple(replace(a, at=a.at - start) for a in trace if start <= a.at < start + seconds)


def repeated(trace: Sequence[Arrival], seconds: float) -> tuple[Arrival, ...]:
    """The trace again and again until it fills `seconds`."""
    period = seconds_of(trace)
    if not trace or period <= 0:
        return ()
    rounds = range(int(seconds // period) + 1)
    return tuple(replace(a, at=a.at + n * period) for n in rounds for a in trace if a.at + n * period < seconds)


def splice(parts: Iterable[tuple[Sequence[Arrival], float]]) -> tuple[Arrival, ...]:
    """Pieces one after another, each with its length in seconds."""
    out: list[Arrival] = []
    start = 0.0
    for part, seconds in parts:
        out += [replace(a, at=a.at + start) for a in part if a.at < seconds]
        start += seconds
    return tuple(out)


def overlay(*traces: Sequence[Arrival]) -> tuple[Arrival, ...]:
    """All at once; equal times keep the order of the traces."""
    return tuple(sorted_by_time(a for trace in traces for a in trace))


def with_bursts(trace: Sequence[Arrival], starts: Sequence[float], seconds: float, factor: int) -> tuple[Arrival, ...]:
    """`factor` times the rate for `seconds` from each start: the extra requests are the trace's own, from elsewhere.

    Those come from half the trace's length away (round its end), so that a burst brings other lengths, not copies.
    """
    half = seconds_of(trace) / 2
    extra: list[Sequence[Arrival]] = []
    for n, start in enumerate(starts):
        for k in range(1, factor):
            # A few seconds' shift for each copy, so that copies do not arrive in step.
            source = (start + half + k * seconds + n) % max(seconds_of(trace) - seconds, 1.0)
            extra.append([replace(a, at=a.at + start) for a in cut(trace, source, seconds)])
    return overlay(trace, *extra)


def day_and_night(trace: Sequence[Arrival], period: float, night: float) -> tuple[Arrival, ...]:
    """Thinned by a cosine from 1 (noon) to `night` (midnight) and back every `period` seconds; it starts at midnight.

    Each arrival adds its share to an account, and passes when that is full: even thinning without a draw.
    """
    out: list[Arrival] = []
    account = 0.0
    for arrival in trace:
        account += night + (1 - night) * (1 - cos(2 * pi * arrival.at / period)) / 2
        if account >= 1:
            account -= 1
            out.append(arrival)
    return tuple(out)


def alternating(
    first: Sequence[Arrival], second: Sequence[Arrival], seconds: float, total: float
) -> tuple[Arrival, ...]:
    """Pieces of `seconds` of the one and of the other in turn, for `total` seconds; each goes on where it stopped."""
    parts = []
    for n in range(round(total / seconds)):
        source = (first, second)[n % 2]
        parts.append((cut(source, n // 2 * seconds, seconds), seconds))
    return splice(parts)
