"""Searching whole numbers with few questions, each of which is dear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def first(holds: Callable[[int], bool], low: int, high: int, hint: int) -> int | None:
    """The least x in [low, high] with holds(x), where holds is false and then true; galloping from `hint`."""
    if low > high:
        return None
    x, step = min(max(hint, low), high), 1
    if holds(x):
        while x > low and holds(lower := max(x - step, low)):
            x, step = lower, 2 * step
        return x if x == low else between(holds, max(x - step, low), x)
    while x < high:
        higher = min(x + step, high)
        if holds(higher):
            return between(holds, x, higher)
        x, step = higher, 2 * step
    return None


def last(holds: Callable[[int], bool], low: int, high: int, hint: int) -> int | None:
    """The greatest x in [low, high] with holds(x), where holds is true and then false."""
    found = first(lambda x: holds(-x), -high, -low, -hint)
    return None if found is None else -found


def between(holds: Callable[[int], bool], false: int, true: int) -> int:
    """The least x in (false, true] with holds(x), by bisection."""
    while true - false > 1:
        middle = (false + true) // 2
        false, true = (false, middle) if holds(middle) else (middle, true)
    return true


def downhill(value: Callable[[int], Any], start: int, low: int, high: int) -> int:
    """Where `value` is least in [low, high], if it falls and then rises; of equal places the one nearest to `start`."""
    here, least = start, value(start)
    for way in (1, -1):
        step = 1
        while step and low <= here + way * step <= high:
            there = value(here + way * step)
            if there < least:
                here, least, step = here + way * step, there, 2 * step
            else:
                step //= 2
        if step > 1:  # the last stride left the range: shorter ones
            here, least = stride(value, here, least, way * step, low, high)
    return here


def stride(value: Callable[[int], Any], here: int, least: Any, step: int, low: int, high: int) -> tuple[int, Any]:
    """Ever shorter steps in one direction, as long as they lead down."""
    while step := int(step / 2):
        if low <= here + step <= high and (there := value(here + step)) < least:
            here, least = here + step, there
    return here, least
