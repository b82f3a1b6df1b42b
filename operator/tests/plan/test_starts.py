"""How long a start takes: what was seen counts, a guess stands in, and without a model there is none."""

from __future__ import annotations

import pytest

from tandem_operator.plan.starts import expected_start_s
from tests.plan.examples import LLAMA_70B, SMOL, observed


@pytest.mark.parametrize(
    ("start_s", "model", "expected"),
    [
        pytest.param(200.0, LLAMA_70B, 200.0, id="seen"),
        pytest.param(None, LLAMA_70B, pytest.approx(201, abs=1), id="141 GB at 1 GB/s, and a minute"),
        pytest.param(None, SMOL, pytest.approx(60, abs=1), id="a small model: a minute"),
        pytest.param(None, None, None, id="nothing known"),
    ],
)
def test_expected_start(start_s, model, expected):
    assert expected_start_s(observed(start_s=start_s, model=model)) == expected
