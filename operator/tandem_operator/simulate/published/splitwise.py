"""Splitwise's cluster, event by event: splitwise-sim's rules (commit 8f99e7d) with its costs or with ours."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import numpy as np

from tandem_operator.simulate.published.machine import Job, Machine, Task, decode_task, prompt_task
from tandem_operator.simulate.published.placement import LeastPending, MixedPool, Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tandem_operator.simulate.published.costs import Costs
    from tandem_operator.simulate.published.inputs import Arrivals

GIB: Final = 2**30
DEVICES: Final = 8  # a machine (configs/hardware_repo/skus)
DEVICE_BYTES: Final = 80 * GIB  # both A100 and H100 (configs/hardware_repo/processors)
LINK: Final = 200.0 * GIB  # bytes/s, of each request alone (configs/orchestrator_repo/schedulers: "200", times 1024³)
RETRY_S: Final = 1.0  # a transfer that finds no memory at its end asks again (interconnect.py)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as splitwise-sim has it (configs/model_repo). `kv_share`: of hidden_size that keys and values have."""

    name: str
    layers: int
    hidden_size: int
    weight_bytes: float
    kv_share: float = 1.0

    @property
    def kv_bytes(self) -> float:
        """KV cache of one token: 2 · layers · hidden · 2 bytes (request.py), GQA left out where kv_share is 1."""
        return 2 * self.layers * self.hidden_size * 2 * self.kv_share

    @property
    def room(self) -> float:
        """Tokens of KV beside the weights on one machine."""
        return (DEVICES * DEVICE_BYTES - self.weight_bytes) / self.kv_bytes


BLOOM: Final = Shape("bloom-176b", 70, 14336, 329e9)
LLAMA: Final = Shape("llama2-70b", 80, 8192, 135e9)


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes/s between two machines; `is_shared`: one transfer at a time leaves a machine and reaches a machine."""

    bandwidth: float = LINK
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines by cost: prompt and decode machines, or colocated ones."""

    prompt: tuple[Costs, int] | None
    decode: tuple[Costs, int]

    def build(self, room: float) -> tuple[list[Machine], Placement]:
        """The machines and their scheduler."""
        decode = [Machine(self.decode[0], room) for _ in range(self.decode[1])]
        if self.prompt is None:
            return decode, LeastPending(decode)
        prompt = [Machine(self.prompt[0], room) for _ in range(self.prompt[1])]
        return prompt + decode, MixedPool(prompt, decode)


def colocated(costs: Costs, count: int) -> Fleet:
    """Machines that do both."""
    return Fleet(None, (costs, count))


def split(prompt: Costs, prompts: int, decode: Costs, decodes: int) -> Fleet:
    """Prompt machines and decode machines."""
    return Fleet((prompt, prompts), (decode, decodes))


@dataclass(frozen=True, slots=True)
class Answers:
    """Per request: seconds of TTFT, TBT and E2E, and its lengths."""

    ttft: NDArray[np.float64]
    tbt: NDArray[np.float64]  # (E2E − TTFT)/output tokens: splitwise-sim counts the first token in (scheduler.py)
    e2e: NDArray[np.float64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]


def simulate(fleet: Fleet, shape: Shape, arrivals: Arrivals, link: Link | None = None) -> Answers:
    """All requests to their end. Raises ValueError for a request that no machine can hold."""
    largest = int((arrivals.prompt + arrivals.output).max())
    if largest > shape.room:
        raise ValueError(f"a request of {largest} tokens does not fit a machine's {shape.room:.0f} tokens of KV cache")
    machines, placement = fleet.build(shape.room)
    columns = zip(arrivals.at.tolist(), arrivals.prompt.tolist(), arrivals.output.tolist(), strict=True)
    jobs = [Job(*row) for row in columns]
    Play(machines, placement, link or Link(), shape.kv_bytes).run(jobs)
    first = np.array([j.first_at for j in jobs]) - arrivals.at
    e2e = np.array([j.done_at for j in jobs]) - arrivals.at
    return Answers(first, (e2e - first) / arrivals.output, e2e, arrivals.prompt, arrivals.output)


@dataclass(slots=True, eq=False)
class Transfer:
    """One job's KV on its way."""

    job: Job
    source: Machine
    target: Machine


class Play:
    """The event queue."""

    def __init__(self, machines: Sequence[Machine], placement: Placement, link: Link, kv_bytes: float) -> None:
        """Nothing has arrived yet."""
        self._placement, self._link, self._kv_bytes = placement, link, kv_bytes
        self._ids = {machine: index for index, machine in enumerate(machines)}
        self._queued = dict.fromkeys(machines, -1)  # version of each machine's event in the queue
        self._events: list[tuple[float, int, int, Machine | None, Transfer | None]] = []
        self._order = 0
        self._routes: dict[Job, tuple[Machine, Machine]] = {}

    def run(self, jobs: Sequence[Job]) -> None:
        """Every arrival and event in the order of time."""
        for job in jobs:
            while self._events and self._events[0][0] < job.arrived:
                self._next()
            self._arrive(job)
        while self._events:
            self._next()

    def _arrive(self, job: Job) -> None:
        prompt, decode = self._routes[job] = self._placement.place(job)
        prompt.arrive(prompt_task(job), job.arrived)
        if prompt is decode and job.output > 1:
            prompt.arrive(decode_task(job), job.arrived)
        self._watch(prompt)

    def _next(self) -> None:
        now, _, version, machine, transfer = heappop(self._events)
        if machine is None:
            assert transfer is not None  # noqa: S101  # an event has one or the other
            if version:
                self._deliver(transfer, now)
            else:
                self._send(transfer, now)
        elif version == machine.version:
            for task in machine.finish():
                self._done(task, machine, now)
            machine.start(now)
            if not machine.pool:
                self._placement.came_free(machine)
            self._watch(machine)

    def _push(self, at: float, version: int, machine: Machine | None, transfer: Transfer | None) -> None:
        self._order += 1
        heappush(self._events, (at, self._order, version, machine, transfer))

    def _watch(self, machine: Machine) -> None:
        if machine.batch and self._queued[machine] != machine.version:
            self._queued[machine] = machine.version
            self._push(machine.until, machine.version, machine, None)

    def _done(self, task: Task, machine: Machine, now: float) -> None:
        job = task.job
        if not task.is_prompt:
            machine.pending -= 1
            self._end(job, machine, now)
            return
        machine.pending -= job.prompt
        job.first_at = now
        decode = self._routes[job][1]
        if job.output == 1:
            decode.pending -= 1
            decode.booked -= 0 if decode is machine else job.prompt + 1
            self._end(job, machine, now)
        elif decode is not machine:
            self._send(Transfer(job, machine, decode), now)

    def _end(self, job: Job, machine: Machine, now: float) -> None:
        job.done_at = now
        machine.used -= job.kv_held
        machine.booked -= job.kv_held
        del self._routes[job]

    def _send(self, transfer: Transfer, now: float) -> None:
        job, source, target = transfer.job, transfer.source, transfer.target
        if target.used + job.kv_held > target.room:
            self._push(now + RETRY_S, 0, None, transfer)
            return
        target.used += job.kv_held
        begin, seconds = now, job.prompt * self._kv_bytes / self._link.bandwidth
        if self._link.is_shared:
            begin = max(now, source.sends_until, target.receives_until)
            source.sends_until = target.receives_until = begin + seconds
        self._push(begin + seconds, 1, None, transfer)

    def _deliver(self, transfer: Transfer, now: float) -> None:
        job, source, target = transfer.job, transfer.source, transfer.target
        source.used -= job.kv_held
        source.booked -= job.kv_held
        target.arrive(decode_task(job), now)
        self._watch(target)
        source.nudge(now)
        self._watch(source)
