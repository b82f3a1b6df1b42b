"""A writer that is stopped says nothing any more: its pages are nobody's, counted, and only its end gives them back."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tandem_worker.transfer.backends import NAMES, PACKAGES
from workers.tests.transfer.ends import ROW
from workers.tests.transfer.kit import eventually
from workers.tests.transfer.world import OVER_TCP, WITHIN_S, at, serves_again

CUT_OFF = "tandem_transfer_cut_off_total"


@pytest.mark.slow
@pytest.mark.parametrize("world", NAMES, indirect=True)
async def test_an_overdue_writer_is_cut_off_for_good_and_that_is_said(world):
    """It is stopped (SIGSTOP), and its silence alone does not end its connection: only the quarantine's bound does."""
    row = ROW["cancelled, pushing"]
    async with at(world, replace(row, facts=replace(row.facts, patient=True))) as scene:
        prefill, decode = world.workers["p"], world.workers["d"]
        scene.stop("p")
        seen = await decode.metrics()
        pages = seen["tandem_kv_quarantined_pages"]
        assert pages > 0
        assert seen["tandem_kv_cache_usage_perc"] == pytest.approx(pages / 682)  # pages of 3 KiB in 2 MiB: they count
        assert (seen['tandem_transfer_tickets{state="quarantined"}'], seen[CUT_OFF]) == (1, 0)

        await eventually(lambda: was_cut_off(decode), "the writer is cut off", WITHIN_S)
        await eventually(decode.is_empty, "its connection's end gives them back", WITHIN_S)
        assert f"{pages:.0f} pages of" in decode.log.read_text()
        assert "its connection is closed for good" in decode.log.read_text()
        scene.go_on()
        await eventually(prefill.is_empty, "the writer finds that nobody is there", WITHIN_S)
    await serves_again(world, scene.stream)


async def was_cut_off(worker):
    return (await worker.metrics())[CUT_OFF] == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", sorted(PACKAGES))
def test_a_read_that_is_given_up_is_under_way_until_its_bytes_are_here(backend):
    """NIXL 1.5.1 calls it failed, and releases it, as soon as the peer is forgotten; then most of it comes in."""
    if importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"the package of {backend} is not installed")
    got = subprocess.run(
        [sys.executable, "-m", "workers.tests.transfer.late_reads", backend],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, **OVER_TCP}, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert got.returncode == 0, got.stderr[-3000:]
    found = json.loads(got.stdout.splitlines()[-1])
    assert not found["over_while_stopped"], "its pages would be somebody's, and be written"
    assert found["before"] > 0
    assert found["after"] == 0
