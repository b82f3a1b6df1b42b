"""What need not travel, by the workers' own metrics, on conversations: no more and no less than a plain count."""

import json
from pathlib import Path

import pytest

from e2e.bench.transfer_saved import best_of, leading, saved_share
from tandem_worker.engine import Sampling
from workers.tests.transfer.kit import eventually, pull, running, value_of, write_model

TRACE = Path(__file__).parents[4] / "shared/data/mooncake_conversation_trace.jsonl"
PAGE_TOKENS, PAGE_BYTES = 4, 3 * 2 * 4 * 2 * 16 * 4
BLOCKS = 100  # of a prompt at most: what the small model's context holds
REQUESTS = 60
TWO = Sampling(max_tokens=2, ignore_eos=True)  # one that ends with its first token has no pages sent
TALKS = [list(range(100 * talk, 100 * talk + turns)) for turns in range(1, 21) for talk in range(3)]


def of_the_trace():
    if not TRACE.is_file():
        pytest.skip("the trace is not beside the repository")
    lines = TRACE.read_text().splitlines()[:REQUESTS]
    return [json.loads(line)["hash_ids"][:BLOCKS] for line in lines]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


def tokens(block):
    """A page of tokens that no other block has."""
    return [block // 256**place % 256 for place in range(PAGE_TOKENS)]


@pytest.mark.parametrize("by_overlap", [False, True], ids=["in turn", "by overlap"])
@pytest.mark.parametrize("trace", [lambda: TALKS, of_the_trace], ids=["made", "Mooncake's conversations"])
async def test_the_metric_is_what_a_plain_count_predicts(model, trace, by_overlap):
    requests = trace()
    known = [set(), set()]
    saved, sent = [0, 0], [0, 0]
    async with (
        running(model, "p0", kv_memory_mib=32) as prefill,
        running(model, "d0", kv_memory_mib=32) as one,
        running(model, "d1", kv_memory_mib=32) as other,
    ):
        for number, blocks in enumerate(requests):
            which = best_of(blocks, known) if by_overlap else number % 2
            prompt = [token for block in blocks for token in tokens(block)]
            heard = await pull((one, other)[which], prefill, f"r{number}", prompt, TWO)
            await heard.until(lambda heard: heard.over)
            assert heard.failure is None
            here = leading(blocks[:-1], known[which])
            saved[which] += here * PAGE_BYTES
            sent[which] += (len(blocks) - here) * PAGE_BYTES
            known[which].update(blocks)
        for which, worker in enumerate((one, other)):
            await eventually(worker.is_empty, "nothing is held")
            assert value_of(worker, "tandem_kv_transfer_saved_bytes_total") == saved[which] > 0
            assert value_of(worker, 'tandem_kv_transfer_bytes_total{direction="received"}') == sent[which]


@pytest.mark.parametrize("workers", [4, 8, 16])
def test_on_the_whole_trace_it_is_the_share_that_is_asked_for(workers):
    """By the page pool's own prefix cache, 12,031 requests; the count beside it knows nothing of pages."""
    if not TRACE.is_file():
        pytest.skip("the trace is not beside the repository")
    share, counted = saved_share(TRACE, workers, 10**9, by_overlap=True)
    assert share == counted
    assert 0.24 <= share <= 0.37


def test_the_count_by_hand(tmp_path):
    """Three turns of one talk: 0 of 1, 0 of 2 (the last page travels always), 1 of 3, and a stranger."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"hash_ids": ids}) + "\n" for ids in ([1], [1], [1, 2, 3], [9, 2])))
    assert saved_share(trace, 1, 10**9, by_overlap=True) == (1 / 7, 1 / 7)
