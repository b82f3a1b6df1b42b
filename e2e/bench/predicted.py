"""What the performance model says of a measured row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from e2e.bench.silicon import Measured, deployment_of, engine_of
from tandem_operator.plan.performance import closed_loop, disaggregated, kv
from tandem_operator.plan.performance.closed_loop import Latency
from tandem_operator.plan.performance.collectives import transfer_s
from tandem_operator.plan.performance.costs import costs_of
from tandem_operator.plan.performance.deployment import room_tokens

LARGE = 1500  # requests that are played at most, or three a user


def lengths(row: Measured) -> Iterator[tuple[int, int]]:
    """Prompt and output lengths: fixed, or spread evenly over 0.8 to 1 of the nominal ones (golden-ratio sequence)."""
    prompt, output = row.whole("isl"), max(row.whole("osl"), 2)
    number = 0
    while True:
        number += 1
        if not row.random_lengths:
            yield prompt, output
            continue
        one, two = number * 0.6180339887 % 1, number * 0.7548776662 % 1
        yield max(round(prompt * (0.8 + 0.2 * one)), 1), max(round(output * (0.8 + 0.2 * two)), 2)


def answer(row: Measured) -> Latency | None:
    """What the model says of a row; None: it does not fit."""
    return answer_disaggregated(row) if row.text("mode") == "disagg" else answer_aggregated(row)


def answer_aggregated(row: Measured) -> Latency | None:
    """One worker does both."""
    where = deployment_of(row)
    costs, engine = costs_of(where), row.started(engine_of(row))
    users = max(row.users // costs.data, 1)
    room = room_tokens(where, engine.memory_share, of_free=engine.of_free)
    return closed_loop.play(costs, engine, room, users, users * rounds(row, users), lengths(row))


def rounds(row: Measured, users: int) -> int:
    """Fewer where there are many users: the mean has settled by then."""
    return row.rounds if users * row.rounds <= LARGE else max(LARGE // users, 3)


def answer_disaggregated(row: Measured) -> Latency | None:
    """Workers of two roles, KV moved between them."""
    prefill, decode = deployment_of(row, "prefill_"), deployment_of(row, "decode_")
    engine = engine_of(row)
    scale = 0.9 if row.random_lengths else 1.0
    prompt, output = row.whole("isl") * scale, row.whole("osl") * scale
    size = kv.token_bytes(prefill.model, prefill.precision.kv) * prompt
    moved = transfer_s(size, size / prefill.model.layers, prefill.device.link * prefill.parallel.tensor)
    room = room_tokens(decode, engine.memory_share, of_free=engine.of_free) / (prompt + engine.kept * output)
    if room <= 0:
        return None
    one, two = disaggregated.Side(costs_of(prefill), 1, 1.0), disaggregated.Side(costs_of(decode), 1, room)
    load = disaggregated.Closed(row.users, row.rounds, prompt, output, moved)
    two = replace(two, workers=row.whole("decode_num_workers", ceil(row.users / (room * two.ranks))))
    one = replace(one, workers=row.whole("prefill_num_workers", disaggregated.matching(one, two, engine, load)))
    return disaggregated.latency(one, two, engine, load)
