"""The engine over a tiny model: however it is cut, shared, preempted or handed over, the tokens stay the same."""

import threading
from dataclasses import replace

import pytest
import torch

from tandem_worker.engine import (
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    Reservation,
    ReservationError,
    Sampling,
    Shortage,
    Token,
)
from workers.tests.prompts import parity_prompts, token_ids
from workers.tests.tiny import CONFIG, DEADLINE_S, Collector, generate, make_engine, wait_until_idle, write_tiny

VOCAB = CONFIG["vocab_size"]
PROMPTS = [prompt for prompt in parity_prompts(VOCAB) if len(prompt) <= 200]
GREEDY = Sampling(max_tokens=16, ignore_eos=True)
WARM = Sampling(max_tokens=16, ignore_eos=True, temperature=0.8, top_p=0.9, seed=5)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def engines(tiny):
    """Makes engines and stops them."""
    made = []

    def make(**changes):
        made.append(make_engine(tiny, **changes))
        return made[-1]

    yield make
    for engine in made:
        engine.stop()


@pytest.fixture(scope="module")
def expected(tiny):
    """Each prompt alone, unchunked, without a prefix cache."""
    engine = make_engine(tiny, chunk_tokens=512, prefix_cache=False, max_batch=1)
    found = {}
    for name, sampling in (("greedy", GREEDY), ("warm", WARM)):
        found[name] = [generate(engine, [prompt], sampling)[0] for prompt in PROMPTS]
    engine.stop()
    return found


class Half:
    """A prefill sink that keeps what comes, and admits itself as soon as it is at the head."""

    def __init__(self, engine, name: str, first_page: int = 0, *, admit: bool = True) -> None:
        self.calls: list[str] = []
        self.chunks: list[tuple[int, int, bytes]] = []  # first page, pages, what they held
        self.first: Token | None = None
        self.reason = ""
        self.head = threading.Event()
        self.ended = threading.Event()
        self._admit = (lambda: engine.admit_prefill(name, first_page)) if admit else (lambda: None)

    def on_head(self) -> None:
        self.calls.append("head")
        self.head.set()
        self._admit()

    def on_chunk(self, first_page, pages) -> None:
        self.calls.append("chunk")
        self.chunks.append((first_page, len(pages.pages), b"".join(pages.pieces)))
        pages.end()

    def on_first(self, token) -> None:
        self.calls.append("first")
        self.first = token

    def on_done(self) -> None:
        self.calls.append("done")
        self.ended.set()

    def on_failed(self, reason) -> None:
        self.reason = reason
        self.ended.set()


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


def fill(engine, name: str, first_page: int, pages: int, raw: bytes) -> None:
    """Bring a prefill half's pages to where a reservation's lie."""
    at = 0
    for piece in engine.open_pages(name, first_page, pages):
        piece[:] = raw[at : at + len(piece)]
        at += len(piece)
    assert at == len(raw)
    engine.pages_written(name, first_page, pages)


def hand_over(prefill, decode, name: str, prompt: list[int], sampling: Sampling) -> list[int]:
    """One request through both halves, as the transfer does it."""
    reservation = decode.reserve(name, prompt, sampling)
    assert isinstance(reservation, Reservation)
    half = Half(prefill, name, reservation.have_pages)
    prefill.submit_prefill(name, prompt, sampling, reservation.have_pages, half)
    assert half.ended.wait(DEADLINE_S), half.calls
    assert not half.reason
    assert half.calls[0] == "head"
    assert half.calls[-1] == "done"
    assert half.calls.index("first") < len(half.calls) - half.calls[::-1].index("chunk") - 1
    for chunk in half.chunks:
        fill(decode, name, *chunk)
    sent = sum(pages for _, pages, _ in half.chunks)
    assert sent == reservation.pages - reservation.have_pages
    collector = Collector()
    decode.commit(name, half.first, collector)
    return [half.first.id] + (collector.ids() if half.first.finish is None else [])


@pytest.mark.parametrize("kind", ["greedy", "warm"])
@pytest.mark.parametrize("cache", [True, False], ids=["prefix cache", "no prefix cache"])
def test_prefill_there_and_decode_here_give_the_same_tokens(engines, expected, kind, cache):
    prefill, decode = engines(prefix_cache=cache), engines(prefix_cache=cache)
    sampling = GREEDY if kind == "greedy" else WARM
    for _ in range(2):  # the second time both sides have prefixes
        for at, prompt in enumerate(PROMPTS):
            assert hand_over(prefill, decode, f"r{at}", prompt, sampling) == expected[kind][at]
    for engine in (prefill, decode):
        wait_until_idle(engine)
        assert engine.stats().kv_usage == 0


def test_an_ending_first_token_gives_the_pages_back(engines):
    prefill, decode = engines(), engines()
    assert len(hand_over(prefill, decode, "one", PROMPTS[10], Sampling(max_tokens=1))) == 1
    assert decode.stats().kv_usage == 0
    assert decode.match(PROMPTS[10]) == len(PROMPTS[10]) // 4


def test_reservations_are_all_or_nothing(engines):
    engine = engines()
    held = 0
    while isinstance(got := engine.reserve(f"r{held}", token_ids(f"r{held}", 400, VOCAB), GREEDY), Reservation):
        held += 1
    assert isinstance(got, Shortage)
    assert got.need == 100 > got.free
    usage = engine.stats().kv_usage
    assert isinstance(engine.reserve("again", token_ids("again", 400, VOCAB), GREEDY), Shortage)
    assert engine.stats().kv_usage == usage
    for at in range(held):
        engine.release(f"r{at}")
        engine.release(f"r{at}")
    assert engine.stats().kv_usage == 0


def test_quarantine_keeps_pages_away(engines):
    engine = engines()
    prompt = token_ids("q", 50, VOCAB)
    generate(engine, [prompt[:20]], GREEDY)
    reservation = engine.reserve("q", prompt, GREEDY)
    assert (reservation.have_pages, reservation.pages) == (5, 13)
    assert engine.quarantine("q") == 8
    assert engine.quarantine("q") == 0
    assert engine.stats().quarantined_pages == 8
    with pytest.raises(ReservationError, match="no reservation"):
        engine.open_pages("q", 5, 1)
    engine.unquarantine("q")
    engine.unquarantine("q")
    assert engine.stats().quarantined_pages == 0
    assert engine.stats().kv_usage == 0


@pytest.mark.parametrize(
    ("first_page", "count"),
    [pytest.param(-1, 1, id="before"), pytest.param(2, 2, id="behind"), pytest.param(0, 0, id="none")],
)
@pytest.mark.parametrize("call", ["open_pages", "pages_written"])
def test_foreign_pages_are_refused(engines, first_page, count, call):
    engine = engines()
    engine.reserve("r", [20] * 10, GREEDY)
    with pytest.raises(ReservationError, match="takes 0 to 2"):
        getattr(engine, call)("r", first_page, count)
    with pytest.raises(ReservationError, match="never written"):
        engine.commit("r", Token(20, 0.0, (), None), Collector())


def test_what_a_sender_leaves_behind_its_prompt_is_harmless(engines, expected):
    prefill, decode = engines(), engines()
    at = next(number for number, prompt in enumerate(PROMPTS) if len(prompt) == 5)
    decode.reserve("r", PROMPTS[at], GREEDY)
    half = Half(prefill, "r")
    prefill.submit_prefill("r", PROMPTS[at], GREEDY, 0, half)
    assert half.ended.wait(DEADLINE_S)
    for first_page, pages, raw in half.chunks:
        sent = torch.frombuffer(bytearray(raw), dtype=torch.float32).view(pages, -1, 2, 4, 2, 16)
        if first_page + pages == 2:
            sent[-1, :, :, 1:] = float("nan")
        fill(decode, "r", first_page, pages, sent.numpy().tobytes())
    collector = Collector()
    decode.commit("r", half.first, collector)
    assert [half.first.id, *collector.ids()] == expected["greedy"][at]


def test_a_half_without_a_ticket_holds_nobody_up(engines, expected):
    engine = engines()
    half = Half(engine, "half", admit=False)
    engine.submit_prefill("half", PROMPTS[5], GREEDY, 0, half)
    assert half.head.wait(DEADLINE_S)
    assert generate(engine, PROMPTS[:3], GREEDY) == expected["greedy"][:3]
    assert half.calls == ["head"]
    engine.admit_prefill("half", 0)
    assert half.ended.wait(DEADLINE_S)
    assert half.first.id == expected["greedy"][5][0]


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
