"""Where the libraries of NIXL and Mooncake listen: nobody has to prove who he is there (docs/operations/access.md)."""

import contextlib
import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tandem_worker.transfer.backends import PACKAGES
from tandem_worker.transfer.interface import interface_of
from tandem_worker.transfer.listeners import keep_to, sockets

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
    with process_of(backend) as pid:
        return {address for address, _ in listening(pid)}


@contextlib.contextmanager
def process_of(backend):
    if importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"the package of {backend} is not installed")
    command = [sys.executable, "-c", SHOW, backend]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert any(line == "up\n" for line in process.stdout)
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_nixl_listens_at_the_pods_own_interface_alone():
    assert listens("nixl") == {LOOPBACK}


def test_mooncake_listens_everywhere_and_hears_of_its_own_address_alone():
    """Once it can be told where to listen, the first line fails, and the filter can go."""
    with process_of("mooncake") as pid:
        found = listening(pid)
        assert {address for address, _ in found} == ANY
        for port in {int(port, 16) for _, port in found}:
            assert answers("127.0.0.2", port, asked_first=("127.0.0.1", "127.0.0.3", "::1")) == set()


@pytest.mark.parametrize(
    ("family", "any_address", "host", "heard"),
    [
        (socket.AF_INET, "0.0.0.0", "127.0.0.2", set()),
        (socket.AF_INET6, "::", "127.0.0.2", set()),
        (socket.AF_INET6, "::", "::1", set()),
        (socket.AF_INET, "0.0.0.0", None, {"127.0.0.1", "127.0.0.3"}),
        (socket.AF_INET6, "::", None, {"127.0.0.1", "127.0.0.3", "::1"}),
    ],
)
def test_a_listener_that_is_kept_to_an_address(family, any_address, host, heard):
    """And one that is not kept to any, so that silence means something."""
    before = sockets()
    with socket.socket(family) as one:
        one.bind((any_address, 0))
        one.listen()
        if host is not None:
            keep_to(host, before)
        others = {"127.0.0.1", "127.0.0.3", "::1"} - {host}
        assert answers(host or "127.0.0.2", one.getsockname()[1], asked_first=sorted(others)) == heard


def test_what_listened_before_is_left_alone():
    with socket.socket() as one:
        one.bind(("0.0.0.0", 0))
        one.listen()
        keep_to("127.0.0.2", sockets())
        assert answers("127.0.0.2", one.getsockname()[1], asked_first=["127.0.0.1"]) == {"127.0.0.1"}


def test_a_name_is_no_address_to_keep_to():
    with pytest.raises(ValueError, match="pod"):
        keep_to("pod", set())


def answers(own, port, asked_first):
    """Which of the others a connection can be had at, once one at `own` is there: it was asked for last."""
    with contextlib.ExitStack() as stack:
        asked = {}
        for address in asked_first:
            one = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
            one.setblocking(False)
            one.connect_ex((address, port))
            asked[address] = one
        stack.enter_context(socket.create_connection((own, port), timeout=60))
        return {address for address, one in asked.items() if is_connected(one)}


def is_connected(one):
    try:
        one.getpeername()
    except OSError:
        return False
    return True


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
