"""Where the libraries of NIXL and Mooncake listen: nobody has to prove who he is there (docs/operations/access.md)."""

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tandem_worker.transfer.backends import PACKAGES
from tandem_worker.transfer.interface import interface_of

SHOW = """
import mmap, sys
from pathlib import Path
from tandem_worker.transfer.backends import make_backend

backend = make_backend(sys.argv[1], Path(), "127.0.0.2")
backend.open(memoryview(mmap.mmap(-1, 4096)), None)
print("up", flush=True)
sys.stdin.read()
"""
LISTEN = "0A"  # the state, in /proc/net/tcp
LOOPBACK = "0100007F"
ANY = {"00000000", "0" * 32}


def listening(pid):
    """(address, port) of each TCP listener of this process."""
    links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    own = {link[8:-1] for link in links if link.startswith("socket:")}
    tables = [Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    found = [line.split() for lines in tables for line in lines]
    return [tuple(words[1].split(":")) for words in found if words[3] == LISTEN and words[9] in own]


def listening_ports(pid):
    return [int(port, 16) for _, port in listening(pid)]


def listens(backend):
    if importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"the package of {backend} is not installed")
    command = [sys.executable, "-c", SHOW, backend]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert any(line == "up\n" for line in process.stdout)
        return {address for address, _ in listening(process.pid)}
    finally:
        process.kill()
        process.communicate()


def test_nixl_listens_at_the_pods_own_interface_alone():
    assert listens("nixl") == {LOOPBACK}


def test_mooncake_listens_everywhere_which_only_a_network_policy_mends():
    """Once it can be told where to, this test fails, and the page is to say so."""
    assert listens("mooncake") == ANY


@pytest.mark.parametrize(
    ("host", "name"), [("127.0.0.1", "lo"), ("127.0.0.2", "lo"), ("::1", "lo"), ("0.0.0.0", None), ("pod", None)]
)
def test_the_interface_of_an_address(host, name):
    assert interface_of(host) == name


def test_the_interface_of_this_machines_own_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        try:
            out.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("no network but the loopback")
        assert interface_of(out.getsockname()[0]) in {name for _, name in socket.if_nameindex()}
