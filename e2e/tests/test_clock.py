"""The machine's clock is set a day ahead, and a day back, under a running operator on the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from e2e.harness.edits import follows_an_edit
from e2e.harness.killable import environment, none_in_cluster, operator
from e2e.harness.kube import Kube, condition
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, resource, roles, wait_settled
from e2e.tests.test_outages import of_workers

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

PRELOADED = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """A file that says how far the clock is from the right time."""
    if PRELOADED is None:
        pytest.skip("there is no libfaketime: `make system` installs it")
    path = tmp_path / "clock"
    path.write_text("+0\n")
    return path


@pytest.fixture
def running(kube: Kube, smollm2: dict, clock: Path, tmp_path: Path) -> Iterator[None]:
    """An operator by that clock (what the kernel calls monotonic is never set, and is not here)."""
    by_clock = {
        "LD_PRELOAD": str(PRELOADED),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    with none_in_cluster(kube), operator(environment(kube, tmp_path) | by_clock, 0, tmp_path / "log") as process:
        yield
        assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
    said = (tmp_path / "log").read_text()
    days = {line[:10] for line in said.splitlines() if line[:2] == "20"}
    assert f"{datetime.now() + timedelta(days=1):%Y-%m-%d}" in days, f"the clock was not set: {days}"  # noqa: DTZ005 its own


def test_the_clock_jumps(kube: Kube, running: None, clock: Path) -> None:
    before, was = of_workers(kube), roles(kube, "smollm2")
    for jump in ("+1d", "-1d", "+0"):
        clock.write_text(f"{jump}\n")
        follows_an_edit(kube, 60)
        kube.run("delete", "service", "smollm2-workers", "-n", NAMESPACE)
        until("drift is repaired", lambda: kube.find("service", "smollm2-workers", NAMESPACE), 60)
        wait_settled(kube, "smollm2", seconds=60)
        assert condition(resource(kube, "smollm2"), "Ready")["status"] == "True"
    assert (of_workers(kube), roles(kube, "smollm2")) == (before, was), "nothing was moved, restarted or made anew"
