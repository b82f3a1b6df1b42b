"""Prefill in one engine and decode in another: the same tokens, and every page is somebody's or nobody's."""

import pytest
import torch

from tandem_worker.engine import Reservation, ReservationError, Sampling, Shortage, Token
from workers.tests.engine.halves import GREEDY, PROMPTS, VOCAB, WARM, Half, fill, hand_over
from workers.tests.prompts import token_ids
from workers.tests.tiny import DEADLINE_S, Collector, generate, wait_until_idle


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


class SlowReader(Half):
    """A prefill sink whose decode worker has not read a page yet."""

    def __init__(self, engine, name):
        super().__init__(engine, name)
        self.loans = []

    def on_chunk(self, first_page, pages):
        self.calls.append("chunk")
        self.loans.append(pages)

    @property
    def bytes(self):
        return b"".join(bytes(piece) for loan in self.loans for piece in loan.pieces)


def test_a_failing_request_leaves_alone_what_a_decode_worker_still_reads(engines, monkeypatch):
    engine = engines()
    prompt = token_ids("shared", 24, VOCAB)
    slow, failing = SlowReader(engine, "slow"), Half(engine, "failing")
    engine.submit_prefill("slow", prompt, GREEDY, 0, slow)
    assert slow.ended.wait(DEADLINE_S)
    pages, held = [page for loan in slow.loans for page in loan.pages], slow.bytes

    def fail(_):
        raise MemoryError("no room for a step")

    monkeypatch.setattr(engine._runner, "prefill", fail)
    engine.submit_prefill("failing", [*prompt, 5, 6, 7], GREEDY, 6, failing)
    assert failing.ended.wait(DEADLINE_S)
    assert "no room for a step" in failing.reason
    assert engine.match(prompt) == 0
    assert slow.bytes == held
    for loan in slow.loans:
        loan.end()
    assert not engine._store.tensor[pages].any()
    assert engine.stats().kv_usage == 0
