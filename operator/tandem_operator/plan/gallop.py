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
    while True:
        before = here
        for way in (1, -1):
            step = 1
            while step:
                there = here + way * step
                if low <= there <= high and (found := value(there)) < least:
                    here, least, step = there, found, 2 * step
                else:
                    step //= 2
        if here == before:
            return here
