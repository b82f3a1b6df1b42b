"""Guessing ahead changes no token: greedy, drawn, penalised, together and alone. And it keeps the distribution."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem_worker.engine import Engine, ModelLoadError, Sampling, load_model
from tandem_worker.engine.speculation import Lookup
from workers.tests.tiny import SETTINGS, Collector, generate, make_engine, wait_until_idle, write_tiny
from workers.tests.transfer.kit import alone, pull, running, write_model

GUESSES = 4
REPEATED = [[5, 6, 7, 8, 9] * 6, [3, 1, 4, 1, 5, 9, 2, 6] * 3, [11] * 17, [40, 41, 42]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def similar(directory, tmp_path_factory):
    """A draft model that agrees at times: the target's weights with some noise."""
    draft = write_tiny(tmp_path_factory.mktemp("draft"))
    generator = torch.Generator().manual_seed(3)
    tensors = load_file(draft / "model.safetensors")
    noisy = {name: one + torch.randn(one.shape, generator=generator) * 0.02 for name, one in tensors.items()}
    save_file(noisy, draft / "model.safetensors")
    return draft


def guessing(directory, draft=None, **changes) -> Engine:
    settings = replace(SETTINGS, speculate=GUESSES, **changes)
    small = None if draft is None else load_model(draft, settings)
    engine = Engine(load_model(directory, settings), settings, draft=small)
    engine.start()
    return engine


SAMPLINGS = [
    pytest.param(Sampling(max_tokens=20), id="greedy"),
    pytest.param(Sampling(max_tokens=20, temperature=0.7, seed=5, ignore_eos=True), id="drawn"),
    pytest.param(Sampling(max_tokens=20, temperature=1.0, top_p=0.8, top_k=20, min_p=0.01, seed=6), id="limited"),
    pytest.param(Sampling(max_tokens=20, repetition_penalty=1.02, frequency_penalty=0.05, presence_penalty=0.02,
                          logit_bias=((7, 2.0),), min_tokens=12), id="penalties, bias, min_tokens"),
    pytest.param(Sampling(max_tokens=20, stop_ids=(8, 9)), id="stop ids"),
]  # fmt: skip


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("proposer", ["lookup", "the same model", "a similar model"])
def test_guessing_changes_no_token(directory, similar, proposer, sampling):
    draft = {"lookup": None, "the same model": directory, "a similar model": similar}[proposer]
    plain, engine = make_engine(directory), guessing(directory, draft)
    try:
        expected = generate(plain, REPEATED, sampling)
        assert generate(engine, REPEATED, sampling) == expected, "in a batch"
        assert [generate(engine, [prompt], sampling)[0] for prompt in REPEATED] == expected, "alone, prefixes cached"
        wait_until_idle(engine)
        seen = engine.stats()
        assert seen.kv_usage == 0
        assert seen.guesses > 0
        if proposer == "the same model":
            assert seen.guesses_kept > 0.9 * seen.guesses, "cut short by the end of a request alone"
    finally:
        plain.stop()
        engine.stop()


def test_guessing_changes_no_token_when_pages_run_out(directory):
    """Preemption takes the guesses' pages too."""
    prompts = [[family, 6, 7, 8, 9, 10] * 2 for family in range(8)]
    sampling = Sampling(max_tokens=60, temperature=0.5, seed=1, ignore_eos=True)
    small = {"max_context": 128, "kv_memory_mib": 1}
    plain, engine = make_engine(directory, **small), guessing(directory, directory, **small)
    try:
        hold = [engine._pool.grow() for _ in range(engine.pages - 60)]
        assert generate(engine, prompts, sampling) == generate(plain, prompts, sampling)
        assert engine.stats().preemptions > 0
        engine._pool.release(hold)
        wait_until_idle(engine)
        assert engine.stats().kv_usage == 0
    finally:
        plain.stop()
        engine.stop()


def test_logprobs_are_those_of_an_engine_that_does_not_guess(directory):
    sampling = Sampling(max_tokens=20, top_logprobs=3, ignore_eos=True)
    plain, engine = make_engine(directory), guessing(directory, directory)
    try:
        for one, other in zip(tokens_of(plain, sampling), tokens_of(engine, sampling), strict=True):
            assert one.id == other.id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [at for at, _ in one.top] == [at for at, _ in other.top]
    finally:
        plain.stop()
        engine.stop()


def tokens_of(engine, sampling):
    collector = Collector()
    engine.submit("r", REPEATED[0], sampling, collector)
    collector.ids()
    return collector.tokens


def test_guessed_tokens_have_the_models_distribution(directory):
    """Chi-squared over the second token, which was judged as a guess, given the first; fixed seeds, so never flaky."""
    engine = guessing(directory, directory, chunk_tokens=256)
    try:
        prompt, draws = REPEATED[0], 400
        bound = Sampling(max_tokens=3, temperature=1.0, top_k=6, ignore_eos=True)
        said = [one for first in range(0, draws, 8) for one in drawn(engine, prompt, bound, range(first, first + 8))]
        assert engine.stats().guesses >= draws
        first, count = Counter(one[0] for one in said).most_common(1)[0]
        seen = Counter(one[1] for one in said if one[0] == first)
        collector = Collector()
        engine.submit("exact", [*prompt, first], Sampling(max_tokens=1, top_logprobs=6), collector)
        collector.ids()
        weights = {at: math.exp(logprob) for at, logprob in collector.tokens[0].top}
        expected = {at: count * weight / sum(weights.values()) for at, weight in weights.items()}
        assert set(seen) <= set(expected)
        distance = sum((seen[at] - value) ** 2 / value for at, value in expected.items())
        assert distance < 20.5, (seen, expected)  # 99.9 % of the chi-squared distribution with 5 degrees of freedom
    finally:
        engine.stop()


def drawn(engine, prompt, sampling, seeds):
    collectors = [Collector() for _ in seeds]
    for seed, collector in zip(seeds, collectors, strict=True):
        engine.submit(f"seed {seed}", prompt, replace(sampling, seed=seed), collector)
    return [collector.ids() for collector in collectors]


async def test_a_decode_worker_guesses_for_prompts_that_were_computed_elsewhere(tmp_path):
    model, sampling = write_model(tmp_path / "tiny"), Sampling(max_tokens=24, temperature=0.6, seed=2, ignore_eos=True)
    async with running(model, "p0") as prefill, running(model, "d0", speculate=GUESSES) as decode:
        plain = await alone(prefill, "plain", REPEATED[0], sampling)
        guessed = await pull(decode, prefill, "guessed", REPEATED[0], sampling)
        await plain.until(lambda heard: heard.over)
        await guessed.until(lambda heard: heard.over)
        assert guessed.granted is not None
        assert guessed.ids == plain.ids
        assert decode.engine.stats().guesses > 0


def test_a_draft_model_of_another_vocabulary_is_refused(directory, tmp_path):
    settings = replace(SETTINGS, speculate=GUESSES)
    draft = load_model(directory, settings)
    other = replace(draft, info=replace(draft.info, vocab=99))
    with pytest.raises(ModelLoadError, match="same tokenizer"):
        Engine(load_model(directory, settings), settings, draft=other)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param([1, 2, 3, 4, 1, 2], [3, 4, 1], id="what followed the last two"),
        pytest.param([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], [9, 2, 3], id="the longest run wins"),
        pytest.param([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], [8, 1, 2], id="the latest of equals"),
        pytest.param([7, 7, 7], [7, 7, 7], id="round and round"),
        pytest.param([1, 2, 3], [], id="nothing is like it"),
        pytest.param([1], [], id="too short"),
    ],
)
def test_lookup(tokens, expected):
    whole, grown = Lookup(), Lookup()
    for end in range(1, len(tokens)):
        grown.after(tokens[:end], 3)
    assert whole.after(tokens, 3) == grown.after(tokens, 3) == expected
