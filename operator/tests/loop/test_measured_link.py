"""What workers measured of their link: from Prometheus to the status, and into the price of a transfer."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.status import TransferStatus
from tandem_operator.api.v1alpha1 import read
from tandem_operator.loop.observe import limits_at
from tandem_operator.loop.status import transfer_status
from tandem_operator.plan.facts import ModelShape
from tandem_operator.plan.roofline import prior_of
from tests.templates.test_children import BODY

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHAPE = ModelShape(8_030_000_000, 32, 4096, 32, 8, 128, 128256, 2)
TOKEN_BYTES = 2 * 32 * 8 * 128 * 2


def priced(bandwidth):
    """Seconds of one token's KV, for each pool."""
    resource = read(BODY)
    limits = limits_at(resource, CATALOGUE, bandwidth, NOW)
    return [prior_of(pool.device, 1, SHAPE).transfer_token_s for pool in limits.pools]


def test_the_planner_prices_the_link_as_measured():
    assert priced(2e9) == pytest.approx([TOKEN_BYTES / 2e9] * 2)
    assert priced(1e8) == pytest.approx([TOKEN_BYTES / 1e8] * 2)


def test_a_link_that_nobody_measured_is_priced_by_the_data_sheet():
    assert priced(None) != priced(2e9)
    assert all(0 < seconds < TOKEN_BYTES / 1e9 for seconds in priced(None)), "an H100's card is faster than 1 GB/s"


@pytest.mark.parametrize(
    ("backend", "bandwidth", "before", "rewrite", "after"),
    [
        pytest.param("tcp", 1.9e9, None, False, "1.9 GB/s", id="the first measurement is written at once"),
        pytest.param("tcp", None, None, True, None, id="unknown stays unknown"),
        pytest.param("tcp", 2.5e9, "1.9 GB/s", False, "1.9 GB/s", id="a live number waits for its turn"),
        pytest.param("tcp", 2.5e9, "1.9 GB/s", True, "2.5 GB/s", id="and is written then"),
        pytest.param("tcp", None, "1.9 GB/s", True, "1.9 GB/s", id="what was known stays"),
    ],
)
def test_the_status_tells_the_bandwidth(backend, bandwidth, before, rewrite, after):
    old = TransferStatus(backend=backend, bandwidth=before) if before else None
    seen = SimpleNamespace(look=SimpleNamespace(backend=backend, bandwidth=bandwidth))
    assert transfer_status(old, seen, rewrite=rewrite) == TransferStatus(backend=backend, bandwidth=after)
