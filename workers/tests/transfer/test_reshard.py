"""Every decode rank gets exactly its heads, whatever the two sides' tensor parallelism."""

from collections import Counter
from itertools import product

import pytest

from tandem_worker.transfer.reshard import Part, heads_of, reshard

RANKS = (1, 2, 4)
HEADS = (1, 2, 4, 8, 12)
ALL = [(heads, prefill, decode) for heads, prefill, decode in product(HEADS, RANKS, RANKS)]


@pytest.mark.parametrize(("heads", "prefill", "decode"), ALL)
def test_every_rank_gets_its_heads_once(heads, prefill, decode):
    sent = [list(heads_of(rank, prefill, heads)) for rank in range(prefill)]
    got = [[None] * len(heads_of(rank, decode, heads)) for rank in range(decode)]
    for part in reshard(heads, prefill, decode):
        for n in range(part.heads):
            assert got[part.target_rank][part.target_head + n] is None
            got[part.target_rank][part.target_head + n] = sent[part.source_rank][part.source_head + n]
    assert got == [list(heads_of(rank, decode, heads)) for rank in range(decode)]


@pytest.mark.parametrize(("heads", "prefill", "decode"), ALL)
def test_no_more_pieces_than_pairs_that_share_heads_and_all_links_carry_something(heads, prefill, decode):
    parts = reshard(heads, prefill, decode)
    pairs = Counter((part.source_rank, part.target_rank) for part in parts)
    assert set(pairs.values()) == {1}
    senders = {part.source_rank for part in parts}
    assert len(senders) == min(prefill, max(heads, decode))


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        pytest.param((8, 4, 2), [Part(0, 0, 0, 0, 2), Part(1, 0, 0, 2, 2), Part(2, 0, 1, 0, 2), Part(3, 0, 1, 2, 2)],
                     id="4 ranks to 2: two senders each"),
        pytest.param((8, 2, 4), [Part(0, 0, 0, 0, 2), Part(0, 2, 1, 0, 2), Part(1, 0, 2, 0, 2), Part(1, 2, 3, 0, 2)],
                     id="2 ranks to 4: halves"),
        pytest.param((2, 4, 4), [Part(0, 0, 0, 0, 1), Part(1, 0, 1, 0, 1), Part(2, 0, 2, 0, 1), Part(3, 0, 3, 0, 1)],
                     id="replicated on both sides: rank to rank"),
        pytest.param((2, 4, 1), [Part(0, 0, 0, 0, 1), Part(2, 0, 0, 1, 1)], id="replicated to one: one copy travels"),
        pytest.param((1, 1, 4), [Part(0, 0, rank, 0, 1) for rank in range(4)], id="one head to four copies"),
    ],
)  # fmt: skip
def test_the_map(facts, parts):
    assert list(reshard(*facts)) == parts


@pytest.mark.parametrize("facts", [(3, 2, 1), (3, 1, 2), (3, 4, 1), (8, 3, 1)])
def test_odd_shares_are_refused(facts):
    with pytest.raises(ValueError, match="evenly"):
        reshard(*facts)
