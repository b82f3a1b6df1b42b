"""A test run that has loaded NIXL ends without unloading it, with the exit code that it would have had."""

import sys

import pytest

from tandem_worker.transfer.nixl import leave

ENDS: list[int] = []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    ENDS.append(int(exitstatus))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if ENDS and "nixl._bindings" in sys.modules:
        leave(ENDS[-1])
