"""NIXL and Mooncake in a process of their own: hostile lends to a decode worker, and bytes to the libraries' ports.

Nothing of it may crash the native library, be read from outside of what was lent, or make memory grow; and an honest
peer is served afterwards.
"""

import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem_worker.transfer.backends import PACKAGES
from tandem_worker.transfer.base import LaneError
from tandem_worker.transfer.ends import ADDRESSES, start_of
from workers.tests.transfer.test_listeners import listening_ports

REPO = Path(__file__).parents[3]
GROWN_KIB = 48 * 1024  # a hostile size would be a tebibyte
ENVIRONMENT = {**os.environ, "UCX_TLS": "tcp,self"}


def start(backend, *arguments):
    if importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"the package of {backend} is not installed")
    module = "workers.tests.transfer.hostile_lender"
    command = [sys.executable, "-m", module, backend, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT, cwd=REPO)


@pytest.mark.parametrize("backend", sorted(PACKAGES))
@pytest.mark.parametrize(
    "count", [pytest.param("15", id="some"), pytest.param("600", id="many", marks=pytest.mark.slow)]
)
def test_hostile_lends_are_refused_and_the_library_lives(backend, count):
    process = start(backend, "7", count)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-3000:]
    found = json.loads(out.splitlines()[-1])
    assert (found["after"], found["same"]) == ("read", True), err[-3000:]
    assert found["grown_kib"] < GROWN_KIB
    assert sum(found["outcomes"].values()) == int(count)
    refused = {kind for kind, count in found["outcomes"].items() if not kind.endswith(": read")}
    assert {kind.split(":")[0] for kind in refused} & {"another backend", "far place", "random place"}


@pytest.mark.parametrize("backend", sorted(PACKAGES))
def test_bytes_that_come_to_the_librarys_own_ports_do_no_harm(backend):
    process = start(backend, "ports")
    try:
        assert any(line == "up\n" for line in process.stdout)
        ports = listening_ports(process.pid)
        before = resident_kib(process.pid)
        throw(random.Random(5), ports)
        assert process.poll() is None, "the library has crashed"
        assert resident_kib(process.pid) - before < GROWN_KIB
        out, err = process.communicate(timeout=60)
        assert (process.returncode, json.loads(out.splitlines()[-1])) == (0, {"after": "read", "same": True}), err[
            -3000:
        ]
    finally:
        process.kill()
        process.wait()


def throw(dice, ports):
    assert ports
    for port in ports:
        for number in range(60):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
                one.sendall(bytes([255]) * 200 if number % 3 == 0 else dice.randbytes(dice.randrange(1, 6000)))
    time.sleep(0.2)  # what was sent last is looked at


def resident_kib(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4


@pytest.mark.parametrize("text", ["", "x", "-1", "0", f"{ADDRESSES:x}", f"{2**64:x}", f"{2**200:x}", "1" * 500])
def test_a_place_that_no_machine_has_does_not_reach_a_library(text):
    with pytest.raises(LaneError, match=r"nowhere|would lie at"):
        start_of(text, 4096)
