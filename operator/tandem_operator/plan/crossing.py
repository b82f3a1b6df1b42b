"""Where the advisor's answer turns: the request rate, or the prompt length, at which the other mode becomes better."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tandem_operator.plan.advise import answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tandem_operator.plan.sizing import Mode, Question
    from tandem_operator.plan.traffic import Lengths, Traffic

STRIDE = 2**0.5  # factor between two loads that are tried
STRIDES = 8  # to either side: from a 16th to 16 times the load
FINE = 1.01  # the crossing is found to 1 %


@dataclass(frozen=True, slots=True)
class Crossing:
    """Two neighbouring loads with different answers; the one asked about is on the side of `near`."""

    axis: str  # "rps" or "isl"
    near: float  # the last value with the answer that was given
    far: float  # the first with the other
    mode_near: Mode | None
    mode_far: Mode | None  # None: nothing meets the targets there


def crossings(question: Question, longest_prompt: int) -> tuple[Crossing, ...]:
    """The nearest turns of the answer, up and down, by rate and by prompt length (tokens, at most `longest_prompt`)."""
    given = answer(question)
    traffic = question.traffic

    def by_rate(value: float) -> Question:
        return replace(question, traffic=at_rate(traffic, value))

    def by_prompt(value: float) -> Question:
        return replace(question, traffic=at_prompt(traffic, value))

    found = []
    for up in (False, True):
        found.append(turn("rps", by_rate, traffic.sized_rate, given, up, 0.0, float("inf")))
        found.append(turn("isl", by_prompt, traffic.prompt.mean, given, up, 2.0, float(longest_prompt)))
    return tuple(crossing for crossing in found if crossing is not None)


def turn(
    axis: str,
    at: Callable[[float], Question],
    start: float,
    given: Mode | None,
    up: bool,
    least: float,
    most: float,
) -> Crossing | None:
    """The nearest change of the answer from `start` in one direction; None where it stays the same."""
    near = start
    for far in strides(start, up, least, most):
        if answer(at(far)) != given:
            return bisect(axis, at, near, far, given)
        near = far
    return None


def strides(start: float, up: bool, least: float, most: float) -> Iterator[float]:
    """Loads at growing distance, the bound of the axis the last."""
    value = start
    for _ in range(STRIDES):
        value = value * STRIDE if up else value / STRIDE
        if not least <= value <= most:
            bound = most if up else least
            if bound != start:
                yield bound
            return
        yield value


def bisect(axis: str, at: Callable[[float], Question], near: float, far: float, given: Mode | None) -> Crossing:
    """The change between two loads with different answers, to 1 %."""
    beyond = answer(at(far))
    while max(near, far) / min(near, far) > FINE:
        middle = (near * far) ** 0.5
        found = answer(at(middle))
        if found == given:
            near = middle
        else:
            far, beyond = middle, found
    return Crossing(axis, near, far, given, beyond)


def at_rate(traffic: Traffic, rate: float) -> Traffic:
    """The same requests at another rate."""
    return replace(traffic, mean_rate=rate * traffic.mean_rate / traffic.sized_rate, sized_rate=rate)


def at_prompt(traffic: Traffic, tokens: float) -> Traffic:
    """The same arrivals with longer or shorter prompts."""
    return replace(traffic, prompt=longer(traffic.prompt, tokens / traffic.prompt.mean))


def longer(lengths: Lengths, factor: float) -> Lengths:
    """All lengths times a factor."""
    return replace(
        lengths,
        mean=lengths.mean * factor,
        p50=lengths.p50 * factor,
        p90=lengths.p90 * factor,
        p99=lengths.p99 * factor,
    )
