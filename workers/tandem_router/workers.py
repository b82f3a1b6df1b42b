"""The workers that this router knows, and what it has outstanding on each. No I/O; the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tandem_router.placement import Ask, Candidate, Nowhere, Pair, Tried, place
from tandem_router.worker import Role, Worker

FIRST_PENALTY_S = 2.0
LONGEST_PENALTY_S = 30.0


@dataclass(slots=True)
class Load:
    """Outstanding work on one worker: requests that it answers, prompt tokens that it has yet to compute."""

    requests: int = 0
    prefill_tokens: int = 0


@dataclass(slots=True)
class Penalty:
    """A worker that refused connections is used last until `until` (seconds of the caller's clock)."""

    until: float
    length_s: float


class Share:
    """One request's part of its workers' load; given back once, in two steps, even when a worker is gone by then."""

    def __init__(self, decode: Load, prefill: Load, tokens: int) -> None:
        self._decode: Load | None = decode
        self._prefill: Load | None = prefill
        self._tokens = tokens
        decode.requests += 1
        prefill.prefill_tokens += tokens

    def prefilled(self) -> None:
        """The first token is there: nothing is left to compute of the prompt."""
        if self._prefill is not None:
            self._prefill.prefill_tokens -= self._tokens
            self._prefill = None

    def end(self) -> None:
        """The request is over, in whatever way."""
        self.prefilled()
        if self._decode is not None:
            self._decode.requests -= 1
            self._decode = None


class Registry:
    """Pods come in by `replace`, `put` and `remove`; requests go out by `choose` and `begin`."""

    def __init__(self, on_change: Callable[[], None] = lambda: None, *, works_alone: bool = True) -> None:
        self._workers: dict[str, Worker] = {}
        self._loads: dict[str, Load] = {}
        self._penalties: dict[str, Penalty] = {}
        self._turn = 0
        self.listed = False  # true with the first whole list
        self._works_alone = works_alone  # may a decode worker do the whole job?
        self.on_change = on_change

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All known workers, by name."""
        return tuple(self._workers[name] for name in sorted(self._workers))

    def replace(self, workers: Iterable[Worker]) -> None:
        """A fresh list: it is the whole truth."""
        self.listed = True
        self._workers = {worker.name: worker for worker in workers}
        for gone in self._loads.keys() - self._workers.keys():
            self._forget(gone)
        self.on_change()

    def put(self, worker: Worker) -> None:
        """A worker was added or changed."""
        if self._workers.get(worker.name) != worker:
            self._workers[worker.name] = worker
            self.on_change()

    def remove(self, name: str) -> None:
        """A worker is gone; requests that still run there end on their own."""
        if self._workers.pop(name, None) is not None:
            self._forget(name)
            self.on_change()

    def load(self, name: str) -> Load:
        """What is outstanding on a worker."""
        return self._loads.setdefault(name, Load())

    def choose(self, ask: Ask, tried: Tried, now: float) -> Pair | Nowhere:
        """Place a request; takes nothing yet."""
        self._turn += 1
        return self._place(ask, tried, now)

    def can_place(self, now: float) -> Pair | Nowhere:
        """Could a request be placed now? Changes nothing."""
        return self._place(Ask(0), Tried(), now)

    def begin(self, pair: Pair, tokens: int) -> Share:
        """Book a request of `tokens` prompt tokens on its workers."""
        decode = self.load(pair.decode.name)
        return Share(decode, self.load(pair.prefill.name) if pair.prefill else decode, tokens)

    def penalise(self, name: str, now: float) -> None:
        """It refused a connection: used last for 2 s, doubling to 30 s while it goes on refusing."""
        before = self._penalties.get(name)
        if name not in self._workers or (before and now < before.until):
            return
        length_s = min(before.length_s * 2, LONGEST_PENALTY_S) if before else FIRST_PENALTY_S
        self._penalties[name] = Penalty(now + length_s, length_s)

    def forgive(self, name: str) -> None:
        """It answered."""
        self._penalties.pop(name, None)

    def serving(self) -> dict[Role, int]:
        """How many workers of each role take new requests."""
        counts = dict.fromkeys(Role, 0)
        for worker in self._workers.values():
            counts[worker.role] += worker.can_serve
        return counts

    def _place(self, ask: Ask, tried: Tried, now: float) -> Pair | Nowhere:
        seen = [self._candidate(worker, now) for worker in self._workers.values()]
        return place(ask, seen, tried, self._turn, works_alone=self._works_alone)

    def _candidate(self, worker: Worker, now: float) -> Candidate:
        load = self._loads.get(worker.name) or Load()
        penalty = self._penalties.get(worker.name) if self._penalties else None
        return Candidate(worker, load.requests, load.prefill_tokens, penalty is not None and now < penalty.until)

    def _forget(self, name: str) -> None:
        self._loads.pop(name, None)
        self._penalties.pop(name, None)
