"""Pages that do not lie in host memory: what travels passes through slots, and every slot comes back."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tandem_worker.engine import InvalidRequestError, Reservation, Shortage
from tandem_worker.engine import engine as engine_module
from tandem_worker.engine.lending import Lending
from tandem_worker.engine.staging import StagedStore, slots_for
from workers.tests.engine.halves import GREEDY, PROMPTS, VOCAB, Half, fill, hand_over
from workers.tests.prompts import token_ids
from workers.tests.tiny import DEADLINE_S, SETTINGS, wait_until_idle

CPU = torch.device("cpu")
PLAIN = engine_module.make_store


@pytest.fixture
def staged(monkeypatch):
    """Engines whose pages count as a device's; few slots."""

    def make_store(model, settings):
        return StagedStore(model.info, settings, model.decoder.dtype, CPU)

    monkeypatch.setattr("tandem_worker.engine.staging.SLOTS_BYTES", 0)
    monkeypatch.setattr(engine_module, "make_store", make_store)


@pytest.mark.parametrize(
    ("pages", "page_bytes", "sequence", "slots"),
    [
        pytest.param(1000, 1 << 20, 16, 1000, id="fewer pages than slots"),
        pytest.param(5000, 1 << 20, 16, 1024, id="a GiB"),
        pytest.param(5000, 1 << 20, 512, 2048, id="four long sequences"),
    ],
)
def test_how_many_slots(pages, page_bytes, sequence, slots):
    assert slots_for(pages, page_bytes, sequence) == slots


def free_slots(engine):
    return len(engine._store._slots)


@pytest.mark.parametrize(("staged_prefill", "staged_decode"), [(True, True), (True, False), (False, True)])
def test_halves_hand_over_through_slots(engines, expected, monkeypatch, staged, staged_prefill, staged_decode):
    made = []
    for here in (staged_prefill, staged_decode):
        with monkeypatch.context() as patch:
            if not here:
                patch.setattr(engine_module, "make_store", PLAIN)
            made.append(engines())
    prefill, decode = made
    slots = [free_slots(one) for one in made if isinstance(one._store, StagedStore)]
    for _ in range(2):  # the second time both sides have prefixes
        for at, prompt in enumerate(PROMPTS):
            assert hand_over(prefill, decode, f"r{at}", prompt, GREEDY) == expected["greedy"][at]
    for engine in made:
        wait_until_idle(engine)
        assert engine.stats().kv_usage == 0
    assert [free_slots(one) for one in made if isinstance(one._store, StagedStore)] == slots


def test_without_slots_there_is_a_shortage_until_somebody_ends(engines, staged):
    engine = engines(kv_memory_mib=32)
    prompts = [token_ids(f"p{at}", 500, VOCAB) for at in range(5)]
    held = [engine.reserve(f"r{at}", prompt, GREEDY) for at, prompt in enumerate(prompts)]
    assert [type(one) for one in held] == [Reservation] * 4 + [Shortage]
    engine.release("r0")
    assert isinstance(engine.reserve("r4", prompts[4], GREEDY), Reservation)
    assert engine.quarantine("r4") == 125
    assert isinstance(engine.reserve("r5", prompts[0], GREEDY), Shortage)  # its writer may still write to the slots
    engine.unquarantine("r4")
    assert isinstance(engine.reserve("r5", prompts[0], GREEDY), Reservation)
    for at in (1, 2, 3, 5):
        engine.release(f"r{at}")
    assert free_slots(engine) == slots_for(engine.pages, engine._store.page_bytes, 128)
    assert engine.stats().kv_usage == 0


def test_what_is_written_twice_or_behind_the_prompt_is_harmless(engines, expected, staged):
    prefill, decode = engines(), engines()
    at = next(number for number, prompt in enumerate(PROMPTS) if len(prompt) == 5)
    decode.reserve("r", PROMPTS[at], GREEDY)
    half = Half(prefill, "r")
    prefill.submit_prefill("r", PROMPTS[at], GREEDY, 0, half)
    assert half.ended.wait(DEADLINE_S)
    for first_page, pages, raw in half.chunks * 2:
        fill(decode, "r", first_page, pages, raw)
    page = decode._reservations.find("r").claim.pages[-1]
    assert not decode._store.tensor[page, :, :, 1:].any()
    decode.release("r")


def test_more_than_half_of_the_slots_is_never_lent(staged):
    info = SimpleNamespace(layers=2, kv_heads=2, head_dim=8)
    store = StagedStore(info, replace(SETTINGS, kv_memory_mib=1), torch.float32, CPU)
    store.tensor.copy_(torch.arange(store.tensor.numel()).view(store.tensor.shape))
    lending = Lending(SimpleNamespace(lent_pages=0), store, threading.Condition())
    slots = len(store._slots)
    loans = [lending.lend([3, 5, 9], 1) for _ in range(slots // 6)]
    beyond = lending.lend([3, 5, 9] * 2, 1)
    assert [one.in_place for one in (*loans, beyond)] == [True] * len(loans) + [False]
    wanted = b"".join(store.tensor[page].numpy().tobytes() for page in (3, 5, 9))
    assert b"".join(loans[-1].pieces) == wanted
    assert b"".join(beyond.pieces) == wanted * 2
    for loan in loans:
        loan.end()
        loan.end()
    assert len(store._slots) == slots


def test_pages_of_several_gpus_do_not_travel(engines, monkeypatch, staged):
    engine = engines()
    ranked = replace(SETTINGS, tensor_parallel=2)
    engine._store = StagedStore(engine.info, ranked, torch.float32, CPU, 1)
    with pytest.raises(InvalidRequestError, match="serve colocated"):
        engine.reserve("r", PROMPTS[0], GREEDY)
    with pytest.raises(InvalidRequestError, match="serve colocated"):
        engine.submit_prefill("r", PROMPTS[0], GREEDY, 0, Half(engine, "r"))
