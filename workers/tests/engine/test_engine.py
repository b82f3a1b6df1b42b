"""The engine over a tiny model: however it is cut, shared, preempted or handed over, the tokens stay the same."""

from dataclasses import replace

import pytest

from tandem_worker.engine import InvalidRequestError, PromptTooLongError, QueueFullError, Sampling, Token
from workers.tests.engine.halves import GREEDY, PROMPTS, VOCAB, WARM, Half, hand_over
from workers.tests.prompts import token_ids
from workers.tests.tiny import DEADLINE_S, Collector, generate, make_engine, wait_until_idle, write_tiny


@pytest.mark.parametrize("kind", ["greedy", "warm"])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="batched, chunked, prefix cache"),
        pytest.param({"prefix_cache": False}, id="no prefix cache"),
        pytest.param({"chunk_tokens": 7}, id="chunks that do not fit pages"),
        pytest.param({"chunk_tokens": 512, "max_batch": 64, "kv_memory_mib": 8}, id="one big batch"),
        pytest.param({"max_batch": 1}, id="one at a time"),
    ],
)
def test_tokens_do_not_depend_on_how_they_are_computed(engines, expected, changes, kind):
    engine = engines(**changes)
    sampling = GREEDY if kind == "greedy" else WARM
    assert generate(engine, PROMPTS, sampling) == expected[kind]
    assert generate(engine, PROMPTS, sampling) == expected[kind]  # the second time from the prefix cache
    wait_until_idle(engine)
    assert engine.stats().kv_usage == 0


def test_preempted_requests_give_the_same_tokens(engines):
    prompts = [token_ids(f"p{at}", 200, VOCAB) for at in range(8)]
    sampling = Sampling(max_tokens=200, ignore_eos=True)
    roomy = engines(kv_memory_mib=32)
    tight = engines(kv_memory_mib=2, max_context=512)
    assert generate(tight, prompts, sampling) == generate(roomy, prompts, sampling)
    assert tight.stats().preemptions > 0
    assert roomy.stats().preemptions == 0
    wait_until_idle(tight)
    assert tight.stats().kv_usage == 0


def test_prefix_hits_are_counted_in_tokens(engines):
    engine = engines()
    prompt = token_ids("once", 50, VOCAB)
    generate(engine, [prompt], GREEDY)
    assert engine.match(prompt) == 12
    generate(engine, [prompt], GREEDY)
    stats = engine.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (100, 48)
    assert stats.prefill_tokens == 52


@pytest.mark.parametrize(
    ("changes", "finish", "count"),
    [
        pytest.param({"max_tokens": 5}, "length", 5, id="max_tokens"),
        pytest.param({"max_tokens": 1}, "length", 1, id="only the first token"),
        pytest.param({"max_tokens": 10_000}, "length", 462, id="the end of the context"),
        pytest.param({"max_tokens": 5, "stop_ids": tuple(range(0, VOCAB, 4))}, "stop", None, id="stop id"),
    ],
)
def test_finish(engines, changes, finish, count):
    engine = engines()
    collector = Collector()
    engine.submit("r", token_ids("finish", 50, VOCAB), Sampling(ignore_eos=True, **changes), collector)
    ids = collector.ids()
    assert collector.tokens[-1].finish == finish
    assert all(token.finish is None for token in collector.tokens[:-1])
    if count is not None:
        assert len(ids) == count


def test_eos_is_emitted_and_ends(engines, tmp_path):
    prompt = token_ids("eos", 30, VOCAB)
    ids = generate(engines(), [prompt], GREEDY)[0]
    # A model whose EOS is what this one says as its third token.
    ending = make_engine(write_tiny(tmp_path / "ending", eos_token_id=[ids[2]]))
    short = generate(ending, [prompt], Sampling(max_tokens=16))[0]
    whole = generate(ending, [prompt], GREEDY)[0]
    ending.stop()
    assert short == ids[: ids.index(ids[2]) + 1]
    assert whole == ids


def test_cancel_gives_pages_back(engines):
    engine = engines()
    collectors = [Collector() for _ in range(6)]
    for at, collector in enumerate(collectors):
        engine.submit(f"r{at}", token_ids(f"c{at}", 100, VOCAB), Sampling(max_tokens=400, ignore_eos=True), collector)
    for at in range(6):
        engine.cancel(f"r{at}")
        engine.cancel(f"r{at}")
    engine.cancel("never there")
    wait_until_idle(engine)
    assert engine.stats().kv_usage == 0


def test_a_failing_receiver_loses_its_own_request_only(engines, expected):
    engine = engines()

    def broken(token: Token) -> None:
        raise RuntimeError("gone")

    engine.submit("broken", PROMPTS[3], Sampling(max_tokens=300, ignore_eos=True), broken)
    assert generate(engine, PROMPTS[:4], GREEDY) == expected["greedy"][:4]
    wait_until_idle(engine)


def test_refusals(engines):
    engine = engines(max_queue=2)
    engine.stop()  # what is queued stays queued
    with pytest.raises(PromptTooLongError, match="512 tokens"):
        engine.submit("long", [20] * 512, GREEDY, Collector())
    with pytest.raises(InvalidRequestError, match="empty"):
        engine.submit("empty", [], GREEDY, Collector())
    with pytest.raises(InvalidRequestError, match="outside"):
        engine.submit("strange", [VOCAB], GREEDY, Collector())


def test_the_queue_is_bounded_and_ids_are_unique(engines):
    engine = engines(max_queue=2)
    halves = [Half(engine, f"h{at}", admit=False) for at in range(2)]
    for at, half in enumerate(halves):
        engine.submit_prefill(f"h{at}", [20, 21], GREEDY, 0, half)
    with pytest.raises(InvalidRequestError, match="already"):
        engine.submit("h0", [20], GREEDY, Collector())
    with pytest.raises(QueueFullError) as full:
        engine.submit("third", [20], GREEDY, Collector())
    assert full.value.retry_after_s == 1, "nothing was ever computed: no rate is known"
    engine._runner.work.prefill_tokens, engine._runner.work.prefill_busy_s = 2, 20.0
    assert engine.retry_after_s() == 20, "half of the four tokens that wait, at 10 s each"
    engine._runner.work.decode_busy_s = 1e6
    assert engine.retry_after_s() == 60, "never more"
    for at, half in enumerate(halves):
        engine.cancel(f"h{at}")
        assert half.ended.wait(DEADLINE_S)
        assert half.reason == "cancelled"


def test_stop_tells_everybody(engines):
    engine = engines()
    collector, half = Collector(), Half(engine, "half", admit=False)
    engine.submit("job", [20] * 100, Sampling(max_tokens=10**6, ignore_eos=True), collector)
    engine.submit_prefill("half", [20] * 100, GREEDY, 0, half)
    engine.stop()
    collector.ids()
    assert half.ended.wait(DEADLINE_S)
    assert "stopping" in half.reason
    assert collector.tokens[-1].finish == "length" or "stopping" in collector.tokens[-1].finish


SHAPED = Sampling(
    max_tokens=24, ignore_eos=True, temperature=1.1, top_k=50, min_p=0.01, seed=9, repetition_penalty=1.2,
    presence_penalty=0.4, frequency_penalty=0.6, logit_bias=((20, 1.5), (30, -100.0)),
)  # fmt: skip


def test_penalties_see_the_same_tokens_wherever_they_are_computed(engines):
    """Alone, in a batch, preempted, and with the first token sampled elsewhere."""
    prompts = [token_ids(f"s{at}", 200, VOCAB) for at in range(8)]
    roomy, tight = engines(kv_memory_mib=32, max_batch=1), engines(kv_memory_mib=2)
    long = replace(SHAPED, max_tokens=200)
    alone = generate(roomy, prompts, long)
    assert generate(tight, prompts, long) == alone
    assert tight.stats().preemptions > 0
    assert hand_over(engines(), engines(), "pair", prompts[0], SHAPED) == alone[0][:24]
    assert 30 not in alone[0]
    assert len(set(alone[0])) > len(set(generate(roomy, prompts[:1], replace(GREEDY, max_tokens=200))[0]))


def test_no_end_comes_before_min_tokens(engines):
    stops = tuple(range(0, VOCAB, 4))
    sampling = Sampling(max_tokens=40, min_tokens=9, stop_ids=stops, temperature=1.0, seed=4)
    (ids,) = generate(engines(), [token_ids("m", 20, VOCAB)], sampling)
    assert not any(one in stops for one in ids[:9])
    assert len(ids) >= 10
    assert ids[-1] in stops


def test_broken_logits_end_their_own_request_and_nothing_else(engines, expected, monkeypatch):
    engine = engines()
    forward = engine._runner._model.decoder.forward

    def spoil(batch, kv):
        logits = forward(batch, kv)
        kv[batch.page] = logits[:] = float("nan")
        return logits

    monkeypatch.setattr(engine._runner._model.decoder, "forward", spoil)
    collector, prompt = Collector(), token_ids("bad", 40, VOCAB)
    engine.submit("bad", prompt, GREEDY, collector)
    assert collector.ids() == [-1]
    assert "not finite" in collector.tokens[-1].finish
    half = Half(engine, "half")
    engine.submit_prefill("half", prompt, GREEDY, 0, half)
    assert half.ended.wait(DEADLINE_S)
    assert "not finite" in half.reason
    monkeypatch.undo()
    wait_until_idle(engine)
    assert engine.stats().kv_usage == 0
    assert engine.match(prompt) == 0
    assert not engine._store.tensor.isnan().any()
    assert generate(engine, PROMPTS[:6], GREEDY) == expected["greedy"][:6]
