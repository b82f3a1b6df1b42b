"""Given what a peer has sent and taken between two pings, when it is taken for dead, then for this reason."""

import pytest

from tandem_worker.transfer.signs import PING_EVERY_S, SILENT_PINGS, TAKEN_S, Signs

LONG = int(TAKEN_S / PING_EVERY_S)


@pytest.mark.parametrize(
    ("pings", "heard", "took", "under_way", "reason"),
    [
        pytest.param(SILENT_PINGS, False, False, False, "", id="silent, not yet long"),
        pytest.param(SILENT_PINGS + 1, False, False, False, "no sign of life", id="silent"),
        pytest.param(10 * LONG, True, False, False, "", id="it answers, and nothing is under way"),
        pytest.param(LONG, True, False, True, "", id="pages wait as long as a lease"),
        pytest.param(LONG + 1, True, False, True, "no page was taken", id="pages wait longer"),
        pytest.param(10 * LONG, True, True, True, "", id="it takes them"),
    ],
)
def test_a_peer_is_taken_for_dead(pings, heard, took, under_way, reason):
    signs, said = Signs(), ""
    for _ in range(pings):
        if heard:
            signs.heard()
        if took:
            signs.took()
        said = signs.missing(under_way=under_way)
    assert reason in said
    assert bool(said) == bool(reason)


def test_pages_that_were_taken_in_time_count_no_more():
    signs = Signs()
    for under_way in [*[True] * LONG, False, *[True] * LONG]:
        signs.heard()
        assert not signs.missing(under_way=under_way)
