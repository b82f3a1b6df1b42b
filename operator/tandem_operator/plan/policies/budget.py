"""Dynamo's GPU budget: what a pair of counts becomes where all GPUs are bounded.

Source: ai-dynamo/dynamo components/src/dynamo/planner/core/budget.py (proportional clamp, all-or-nothing for opposing
moves). `None` for no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor


@dataclass(frozen=True, slots=True)
class Budget:
    """GPUs of one prefill and one decode worker, the band for their sum, and the fewest workers of each role."""

    prefill_gpus: int
    decode_gpus: int
    least: int | None = None
    most: int | None = None
    minimum: int = 1

    def gpus(self, prefill: int, decode: int) -> int:
        """GPUs of a pair."""
        return prefill * self.prefill_gpus + decode * self.decode_gpus

    def is_within(self, prefill: int, decode: int) -> bool:
        """Inside the band? Its lower edge gives way by one worker where both edges bind, its upper edge never."""
        slack = max(self.prefill_gpus, self.decode_gpus) if self.least is not None and self.most is not None else 0
        total = self.gpus(prefill, decode)
        return (self.most is None or total <= self.most) and (self.least is None or total >= self.least - slack)

    def clamp(self, prefill: int, decode: int) -> tuple[int, int]:
        """Both counts scaled in proportion into the band; (0, 0) where not even the minima fit."""
        if self.is_within(prefill, decode):
            return prefill, decode
        total = self.gpus(prefill, decode)
        if self.most is not None and total > self.most:
            if self.gpus(self.minimum, self.minimum) > self.most:
                return 0, 0
            room = floor((self.most - self.minimum * self.decode_gpus) / self.prefill_gpus)
            first = max(self.minimum, min(room, floor(prefill * self.most / total)))
            return first, max(self.minimum, floor((self.most - first * self.prefill_gpus) / self.decode_gpus))
        least = self.least or 0
        share = prefill * least / total if total else least / 2 / self.prefill_gpus
        first = max(self.minimum, ceil(share))
        grown = first, max(self.minimum, ceil(max(least - first * self.prefill_gpus, 0) / self.decode_gpus))
        return (prefill, decode) if self.most is not None and self.gpus(*grown) > self.most else grown

    def fit(self, now: tuple[int, int], asked: tuple[int, int]) -> tuple[int, int]:
        """The pair between `now` and `asked` inside the band that is nearest to `asked`.

        Where one count falls and the other rises, both move or neither: a lone removal would only lose capacity.
        """
        if self.is_within(*asked) and min(asked) >= self.minimum:
            return asked
        opposing = (asked[0] - now[0]) * (asked[1] - now[1]) < 0
        pairs = [
            (p, d)
            for p in between(now[0], asked[0])
            for d in between(now[1], asked[1])
            if min(p, d) >= self.minimum and self.is_within(p, d)
            if not opposing or (p != now[0]) == (d != now[1])
        ]
        if not pairs:
            return now
        return min(pairs, key=lambda c: (abs(c[0] - asked[0]) + abs(c[1] - asked[1]), skew(now, asked, c), c))


def between(a: int, b: int) -> range:
    """Every count from one to the other."""
    return range(min(a, b), max(a, b) + 1)


def skew(now: tuple[int, int], asked: tuple[int, int], pair: tuple[int, int]) -> int:
    """How unequally both counts got what they asked for."""
    return abs(abs(pair[0] - now[0]) * abs(asked[1] - now[1]) - abs(pair[1] - now[1]) * abs(asked[0] - now[0]))
