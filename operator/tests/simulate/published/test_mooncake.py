import pytest

from tandem_operator.simulate.published.conductor import (
    Hardware,
    at_random,
    cache_aware,
    kvcache_centric,
    load_balancing,
    longest_prefix,
    one_node,
    serve,
)
from tandem_operator.simulate.published.inputs import InputError, Prompt, read_mooncake
from tandem_operator.simulate.published.prefixes import (
    LLAMA_3_70B,
    Transformer,
    break_even_bandwidth,
    hit_share,
    saved_share,
)


def prompt(*blocks, at=0.0):
    return Prompt(at, 512 * len(blocks), 1, blocks)


@pytest.mark.parametrize(
    ("prompts", "capacity", "hits", "of"),
    [
        pytest.param([prompt(1, 2), prompt(1, 2, 3)], None, 2, 5, id="a prefix again"),
        pytest.param([prompt(1, 2), prompt(9, 2)], None, 0, 4, id="what follows a miss is a miss"),
        pytest.param([prompt(1), prompt(2), prompt(3), prompt(1)], 2, 0, 4, id="the oldest went"),
        pytest.param([prompt(1), prompt(2), prompt(1), prompt(3), prompt(1)], 2, 2, 5, id="what is used stays"),
    ],
)
def test_hit_share(prompts, capacity, hits, of):
    assert hit_share(prompts, capacity) == pytest.approx(hits / of)


def test_break_even_bandwidth_by_hand():
    # 2·d·s/(gqa·(4·p·d + 22·d²)) with d = 8, p = 2, s = 2, gqa = 4: 32/(4·1472).
    assert break_even_bandwidth(Transformer(3, 8, 4), 1e6, 2) == pytest.approx(1e6 * 32 / (4 * 1472))


def test_break_even_falls_with_the_prefix():
    bandwidths = [break_even_bandwidth(LLAMA_3_70B, 1e15, p) for p in (1024, 8192, 65536)]
    assert bandwidths == sorted(bandwidths, reverse=True), "attention makes long prefixes dearer to compute"


@pytest.mark.parametrize(
    ("workers", "capacity", "share"),
    [
        pytest.param(1, None, 3 / 6, id="one worker has all"),
        pytest.param(1, 1, 1 / 6, id="room for the last block alone"),
        pytest.param(2, None, 1 / 6, id="the second of two takes the second prompt and knows nothing"),
    ],
)
def test_saved_share(workers, capacity, share):
    # With two workers: one, the other because the first is above the average, the first again for the same reason.
    prompts = [prompt(1), prompt(1, 2), prompt(1, 2, 3)]
    assert saved_share(prompts, workers, capacity) == pytest.approx(share)


HARDWARE = Hardware(Transformer(1, 1, 1), flops=26.0, bandwidth=1e9)  # about a second a token


@pytest.mark.parametrize(
    ("schedule", "nodes"),
    [
        pytest.param(longest_prefix, [0, 0, 0], id="prefix alone: all on one node"),
        pytest.param(load_balancing, [0, 1, 2], id="load alone: each on another"),
        pytest.param(
            cache_aware, [0, 1, 0], id="an empty node is soon as good as a queue; a hit, when it is free, better"
        ),
    ],
)
def test_where_prompts_go(schedule, nodes):
    prompts = [prompt(1, 2, at=0.0), prompt(1, 2, at=1.0), prompt(1, 2, 3, at=10e6)]
    seen = []

    def watched(pool, one):
        seen.append(schedule(pool, one))
        return seen[-1]

    serve(prompts, watched, 3, hardware=HARDWARE)
    assert [c.node for c in seen] == nodes


def test_a_far_better_prefix_is_fetched():
    # Node 0 has the prefix and a long queue; to compute it again on node 1 is shorter, to fetch it shorter still.
    prompts = [prompt(1, 2, 3, 4, at=0.0), prompt(1, 2, at=1.0)]
    centric = serve(prompts, kvcache_centric, 2, hardware=HARDWARE)
    aware = serve(prompts, cache_aware, 2, hardware=HARDWARE)
    assert centric.hits == 2
    assert aware.hits == 0
    assert centric.mean_ttft_s < aware.mean_ttft_s


def test_a_shared_cache_hits_wherever_a_prompt_lands():
    prompts = [prompt(1, 2, at=float(i)) for i in range(4)]
    assert serve(prompts, load_balancing, 4, shared=True).hits == 6
    assert serve(prompts, load_balancing, 4).hits == 0


def test_one_node_is_one_cache():
    prompts = [prompt(1), prompt(2), prompt(1)]
    assert one_node(prompts, 1).hit_share == pytest.approx(hit_share(prompts))


def test_chance_is_the_same_each_time():
    prompts = [prompt(i % 3, i, at=float(i)) for i in range(20)]
    assert serve(prompts, at_random, 3) == serve(prompts, at_random, 3)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        pytest.param('{"timestamp": 0, "input_length": 5, "output_length": 1}', "line 1.*hash_ids", id="missing field"),
        pytest.param("{", "line 1", id="no JSON"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, line, error):
    path = tmp_path / "trace.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=error):
        read_mooncake(path)


def test_a_trace_is_read_in_seconds(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [3, 4]}\n')
    assert read_mooncake(path) == [Prompt(1.5, 600, 7, (3, 4))]
