"""Who gets a request: Splitwise's two schedulers (splitwise-sim scheduler.py, commit 8f99e7d)."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tandem_operator.simulate.published.machine import Job, Machine

LONG_QUEUE: Final = 8192  # pending tokens beyond which a prompt looks elsewhere (mixed_pool.yml)

_by_pending = attrgetter("pending")
_by_booked = attrgetter("booked")


class Placement(Protocol):
    """Chooses where a job's prompt and its decoding run, and is told when a machine has nothing left."""

    def place(self, job: Job) -> tuple[Machine, Machine]:
        """The machine of the prompt and that of the other tokens."""

    def came_free(self, machine: Machine) -> None:
        """It has no job left."""


class LeastPending:
    """Colocated machines: the one with the fewest pending prompt tokens, a request counting one (TokenJSQScheduler)."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines

    def place(self, job: Job) -> tuple[Machine, Machine]:
        """Both tasks on one machine."""
        machine = min(self._machines, key=_by_pending)
        machine.pending += job.prompt + 1
        return machine, machine

    def came_free(self, machine: Machine) -> None:
        """Nothing to give back."""


class MixedPool:
    """Split machines that lend one another out while a pool has no room (MixedPoolScheduler).

    A prompt goes to the prompt machine with the fewest pending tokens, unless that is more than LONG_QUEUE: then to a
    mixed one, then to a decode machine that becomes mixed. Decoding likewise, by booked KV memory.
    """

    def __init__(self, prompt: Sequence[Machine], decode: Sequence[Machine]) -> None:
        for machine in prompt:
            machine.home = "prompt"
        for machine in decode:
            machine.home = "decode"
        self._pools = {"prompt": list(prompt), "decode": list(decode)}
        self._mixed: list[Machine] = []

    def place(self, job: Job) -> tuple[Machine, Machine]:
        """The two machines, the same one where only that has room."""
        prompt = self._for_prompt(self._pools["prompt"], job) or self._for_prompt(self._mixed, job)
        decode = self._for_decode(self._pools["decode"], job) or self._for_decode(self._mixed, job)
        if prompt is None and self._pools["decode"]:
            prompt = self._borrow(min(self._pools["decode"], key=_by_pending))
        if decode is None and self._pools["prompt"]:
            decode = self._borrow(min(self._pools["prompt"], key=_by_booked))
        if prompt is None or decode is None:
            every = self._pools["prompt"] + self._mixed + self._pools["decode"]
            prompt = decode = min(every, key=_by_pending)
        self._book(job, prompt, decode)
        return prompt, decode

    def came_free(self, machine: Machine) -> None:
        """A borrowed machine goes home."""
        if machine in self._mixed:
            self._mixed.remove(machine)
            self._pools[machine.home].append(machine)

    def _for_prompt(self, machines: list[Machine], job: Job) -> Machine | None:
        if not machines:
            return None
        best = min(machines, key=_by_pending)
        return None if best.waiting and best.pending + job.prompt > LONG_QUEUE else best

    def _for_decode(self, machines: list[Machine], job: Job) -> Machine | None:
        if not machines:
            return None
        best = min(machines, key=_by_booked)
        return None if best.booked + job.prompt + job.output >= best.room else best

    def _borrow(self, machine: Machine) -> Machine:
        self._pools[machine.home].remove(machine)
        self._mixed.append(machine)
        return machine

    def _book(self, job: Job, prompt: Machine, decode: Machine) -> None:
        if prompt is not decode:
            prompt.booked += job.prompt + 1
        decode.booked += job.prompt + job.output
        prompt.pending += job.prompt
        decode.pending += 1
