"""A state machine as data: what may happen in which state, what is then done, and how long a state may last. Pure.

`ticket.py` (decode worker) and `push.py` (prefill worker) hold one table each; `page.py` prints them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Self, TypeVar


class Word(StrEnum):
    """A name that says what it means: the reference page is made of these sentences."""

    says: str

    def __new__(cls, value: str, says: str = "") -> Self:
        """A member: its name and its sentence."""
        word = str.__new__(cls, value)
        word._value_ = value
        word.says = says
        return word


S = TypeVar("S", bound=Word)
E = TypeVar("E", bound=Word)
A = TypeVar("A", bound=Word)


@dataclass(frozen=True, slots=True)
class Move(Generic[S, A]):
    """The next state, and what is done on the way, in this order."""

    then: S
    acts: tuple[A, ...] = ()


@dataclass(frozen=True, slots=True)
class Timer(Generic[E]):
    """What bounds a state, for people, and the event that its end is."""

    limit: str
    event: E


@dataclass(frozen=True, slots=True)
class Table(Generic[S, E, A]):
    """One side's rules. A pair that is not in `moves` is refused: nothing happens but a count."""

    moves: Mapping[tuple[S, E], Move[S, A]]
    timers: Mapping[S, Timer[E]]

    def find(self, state: S, event: E) -> Move[S, A] | None:
        """What `event` brings about in `state`; None: it is refused."""
        return self.moves.get((state, event))


class Refusals:
    """How often a side's table refused which event in which state. Late words are usual; a new pair is worth a look."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def add(self, state: Word, event: Word) -> None:
        """One more."""
        self.counts[state.value, event.value] += 1
