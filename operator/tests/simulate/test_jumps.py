"""A run of iterations in one event gives what single iterations give."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_operator.simulate.iterations import Iterations
from tandem_operator.simulate.worker import SimWorker
from tests.simulate.made import ENGINE, TRUTH, cluster_of, ends, loads, requests

CLOSE = 1e-9


class Stepping(SimWorker):
    """Never more than one iteration an event."""

    def start(self, now):
        super().start(now)
        if self.run.count > 1:
            self.run.shorten(1)
            self.until = now + self.run.seconds(1)


def same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, rel=CLOSE, abs=CLOSE)


# Pages that a run claims are booked at its end, so a block that they push out of the cache is found a little longer:
# where memory is tight, prompts share nothing here.
ROOMY = st.tuples(loads(), st.just(None))
TIGHT = st.tuples(loads(blocks=False), st.sampled_from([132, 200, 400]))


@settings(deadline=None, max_examples=60)
@given(ROOMY | TIGHT, st.sampled_from([(1, 1, 0), (2, 1, 0), (1, 2, 0), (0, 0, 1), (1, 1, 1)]))
def test_jumping_is_stepping(case, workers):
    (load, room), (prefill, decode, both) = case, workers
    truth = replace(TRUTH, kv_tokens=room)
    jumping = cluster_of(requests(load), prefill, decode, both, truth)
    stepping = cluster_of(requests(load), prefill, decode, both, truth, kind=Stepping)
    jumping.run_until(1e4)
    stepping.run_until(1e4)
    same(ends(jumping), ends(stepping))
    assert jumping.preempted == stepping.preempted


def pair_by_hand(load):
    """The rules of a pair without transfer times, step by step: arrival -> (first token, end)."""
    found, ready, prefill = {}, [], 0.0
    for at, prompt, output, _ in load:
        prefill = max(prefill, at) + prompt_s(prompt)
        found[at] = (prefill, prefill)
        if output > 1:
            ready.append((prefill, [at, prompt + 1, output - 1]))
    batch, now = [], 0.0
    while ready or batch:
        if not batch:
            now = max(now, ready[0][0])
        while ready and ready[0][0] <= now:
            batch.append(ready.pop(0)[1])
        now = stepped(batch, now, 0.0, found)
    return found


def worker_by_hand(load):
    """The rules of one worker for both, iteration by iteration."""
    found, queue, batch, now, arrivals = {}, [], [], 0.0, list(load)
    while arrivals or queue or batch:
        if not queue and not batch:
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            at, prompt, output, _ = arrivals.pop(0)
            queue.append([at, prompt, 0, output])
        now = stepped(batch, now, chunk_of(queue), found)
        if queue and queue[0][1] == queue[0][2]:
            at, prompt, _, output = queue.pop(0)
            found[at] = (now, now)
            if output > 1:
                batch.append([at, prompt + 1, output - 1])
    return found


def stepped(batch, now, chunk, found):
    """The end of an iteration: a chunk and a step of the batch [arrived, context, tokens to go]."""
    now += chunk + (TRUTH.step_s(len(batch), sum(b[1] for b in batch)) if batch else 0.0)
    for one in batch:
        one[1], one[2] = one[1] + 1, one[2] - 1
        if one[2] == 0:
            found[one[0]] = (found[one[0]][0], now)
    batch[:] = [one for one in batch if one[2] > 0]
    return now


def chunk_of(waiting):
    """Compute one chunk of the head."""
    if not waiting:
        return 0.0
    head = waiting[0]
    tokens, before = min(ENGINE.chunk_tokens, head[1] - head[2]), head[2]
    head[2] += tokens
    return TRUTH.chunk_s(before, tokens) + (TRUTH.prompt_base_s if before == 0 else 0.0)


def prompt_s(prompt):
    """A whole prompt, chunk by chunk."""
    waiting, total = [[0.0, prompt, 0, 1]], 0.0
    while waiting[0][2] < prompt:
        total += chunk_of(waiting)
    return total


@settings(deadline=None, max_examples=50)
@given(loads(blocks=False, gap=1e-3), st.booleans())
def test_the_rules_written_out_give_the_same(load, is_pair):
    made = cluster_of(requests(load), int(is_pair), int(is_pair), int(not is_pair), max_batch=99)
    made.run_until(1e4)
    wanted = pair_by_hand(load) if is_pair else worker_by_hand(load)
    for request in made.finished:
        first, done = wanted[request.arrived]
        assert request.arrived + request.ttft_s == pytest.approx(first, rel=CLOSE)
        assert request.done_at == pytest.approx(done, rel=CLOSE)


@given(
    st.integers(0, 100),
    st.integers(1, 300),
    st.integers(1, 64),
    st.integers(0, 20),
    st.integers(1, 50),
    st.floats(0, 1),
)
def test_the_iteration_under_way_is_found(before, tokens, chunk, batch, most, share):
    run = Iterations()
    run.chunks(TRUTH, before, tokens, chunk, True)
    if batch:
        run.steps(TRUTH, batch, 100 * batch, most)
    moment = share * run.seconds(run.count)
    done = min(run.ending_by(moment), run.count)
    assert run.seconds(done) >= moment - CLOSE
    assert done == 1 or run.seconds(done - 1) < moment + CLOSE


def test_chunks_add_up_to_the_prompt():
    run = Iterations()
    run.chunks(TRUTH, 0, 100, 32, True)
    whole = TRUTH.prompt_base_s + 4 * TRUTH.chunk_base_s + 100 * TRUTH.prompt_token_s + 100**2 * TRUTH.prompt_pair_s
    assert run.seconds(4) == pytest.approx(whole, rel=CLOSE)
    assert run.computed(4) == 100
