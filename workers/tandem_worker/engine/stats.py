"""What an engine's parts say together: for metrics, and for those who are turned away. The caller holds its lock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tandem_worker.engine.request import EngineStats

if TYPE_CHECKING:
    from tandem_worker.engine.events import KvEvents
    from tandem_worker.engine.pages import PagePool
    from tandem_worker.engine.queues import Queues
    from tandem_worker.engine.runner import Runner, Work

LONGEST_RETRY_S: Final = 60


def look(queues: Queues, pool: PagePool, runner: Runner, events: KvEvents) -> EngineStats:
    """A look at the engine."""
    work = runner.work
    waiting = queues.waiting + len(queues.joining)  # for a prefill, or for a seat in the batch
    return EngineStats(
        running=len(queues.everyone()) - waiting,
        waiting=waiting,
        prefill_waiting_tokens=queues.waiting_tokens,
        kv_usage=1 - pool.free_pages / pool.pages,
        quarantined_pages=pool.quarantined_pages,
        prefix_queries=queues.prefix_queries,
        prefix_hits=queues.prefix_hits,
        prefill_tokens=work.prefill_tokens,
        prefill_busy_s=work.prefill_busy_s,
        decode_steps=work.decode_steps,
        decode_busy_s=work.decode_busy_s,
        decode_tokens=work.decode_tokens,
        preemptions=queues.preemptions,
        kv_events=events.count,
        guesses=runner.tally.proposed,
        guesses_kept=runner.tally.kept,
    )


def retry_after_s(work: Work, waiting_tokens: int) -> int:
    """When half of what waits will be computed, by the rate so far: 1 to 60 seconds."""
    # A full engine is never idle, so its decodes belong to the time that a prompt token takes.
    busy_s = work.prefill_busy_s + work.decode_busy_s
    half_s = waiting_tokens / 2 * busy_s / work.prefill_tokens if work.prefill_tokens else 0.0
    return min(max(math.ceil(half_s), 1), LONGEST_RETRY_S)
