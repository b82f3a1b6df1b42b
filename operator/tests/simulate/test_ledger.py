"""Entries that are folded away leave sums and percentiles behind."""

from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.simulate.quantile import percentile
from tandem_operator.simulate.sketch import ERROR, Sketch
from tests.simulate.test_run import play


@given(st.lists(st.floats(1e-6, 1e6), min_size=1), st.integers(1, 100))
def test_a_sketch_is_within_its_error(values, percent):
    sketch = Sketch()
    for value in [*values, nan]:
        sketch.add(value)
    assert sketch.count == len(values)
    assert sketch.quantile(percent) == pytest.approx(percentile(values, percent), rel=1.01 * ERROR)


def test_no_values_have_no_quantile():
    assert Sketch().quantile(50) is None


def test_a_run_that_keeps_no_entries_sees_and_tells_the_same():
    kept, folded = play(), play(keep=False)
    assert [t.window for t in kept.ticks] == [t.window for t in folded.ticks]
    assert [t.attainment for t in kept.ticks] == [t.attainment for t in folded.ticks]
    assert len(kept.ledger) == len(folded.ledger) == 200
    assert len(folded.arrays["done"]) < 200
    assert kept.ledger.attainment() == folded.ledger.attainment()
    for percent in (50, 90, 99):
        assert folded.ledger.ttft_at(percent) == pytest.approx(kept.ledger.ttft_at(percent), rel=2 * ERROR)
        assert folded.ledger.tpot_at(percent) == pytest.approx(kept.ledger.tpot_at(percent), rel=2 * ERROR)
