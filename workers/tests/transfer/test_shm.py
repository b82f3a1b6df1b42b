"""Shared memory between two workers: what was lent can be read, by whom it was lent to, never written or shrunk."""

import errno
import fcntl
import mmap
import os
import random
import socket
import threading
from pathlib import Path

import pytest

from tandem_worker.engine.memory import SEALS, memory_file
from tandem_worker.engine.request import ModelLoadError
from tandem_worker.engine.store import make_file
from tandem_worker.transfer.base import BackendError, LaneError
from tandem_worker.transfer.shm import Door, Lent, Shm, Window, fetch
from tandem_worker.transfer.wire import Span, WireError

SIZE = 12_288 * 5
WITHIN_S = 30.0


@pytest.fixture
def door(tmp_path):
    door = Door(tmp_path)
    yield door
    door.close()


@pytest.fixture
def file():
    file = memory_file(SIZE)
    file.seal()
    return file


@pytest.fixture
def lent(door, file):
    return Lent(memoryview(file.map), file, door)


@pytest.fixture
def window(door, lent):
    window = Window(fetch(str(door.path), lent.token), SIZE)
    yield window
    window.close()


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()], ids=["no descriptor left", "no memory left"]
)
def test_a_door_that_runs_short_opens_again(tmp_path, file, monkeypatch, error):
    failing, accept = iter([error] * 3), socket.socket.accept

    def short(listening):
        if (now := next(failing, None)) is not None:
            raise now
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", short)
    door = Door(tmp_path)
    os.close(fetch(str(door.path), Lent(memoryview(file.map), file, door).token))
    (thread,) = [one for one in threading.enumerate() if one.name == "shm-door"]
    door.close()
    thread.join(WITHIN_S)
    assert not thread.is_alive()


def test_a_door_that_is_short_for_good_still_closes_at_once(tmp_path, monkeypatch):
    def short(listening):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", short)
    monkeypatch.setattr("tandem_worker.transfer.shm.AGAIN_S", 10 * WITHIN_S)
    door = Door(tmp_path)
    (thread,) = [one for one in threading.enumerate() if one.name == "shm-door"]
    door.close()
    thread.join(WITHIN_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("small", [0, SIZE], ids=["by its thread", "at once"])
@pytest.mark.parametrize(
    ("from_", "to"),
    [
        pytest.param([(0, 10), (30, 20)], [(5, 30)], id="two runs into one"),
        pytest.param([(100, 30)], [(0, 10), (50, 20)], id="one run into two"),
        pytest.param([(9, 1), (0, 7), (SIZE - 3, 3)], [(8, 3), (0, 8)], id="runs that do not fit each other"),
        pytest.param([(0, SIZE)], [(0, SIZE)], id="everything"),
    ],
)
async def test_what_is_named_is_what_is_got(file, lent, window, monkeypatch, small, from_, to):
    monkeypatch.setattr("tandem_worker.transfer.shm.SMALL_BYTES", small)
    file.map[:] = random.Random(1).randbytes(SIZE)
    source, target = memoryview(file.map), bytearray(b"-" * SIZE)
    spans = lent.spans([source[at : at + size] for at, size in from_])
    assert spans == tuple(from_)
    places = [memoryview(target)[at : at + size] for at, size in to]
    if (copying := window.fetch(spans, places)) is not None:
        await copying
    assert b"".join(places) == b"".join(source[at : at + size] for at, size in from_)
    assert target.count(b"-"[0]) >= SIZE - sum(size for _, size in to)


def test_all_of_a_memory_file_is_there_before_anybody_touches_it(file):
    assert os.fstat(file.descriptor).st_blocks * 512 >= SIZE


def test_what_does_not_lie_in_the_lent_memory_is_not_named(lent, file):
    inside, outside = memoryview(file.map)[:8], memoryview(bytearray(8))
    assert lent.spans([inside, outside]) == ()
    assert lent.spans([inside]) == (Span(0, 8),)


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([Span(-1, 8)], id="before"),
        pytest.param([Span(2**62, 8)], id="far behind"),
        pytest.param([Span(SIZE - 7, 8)], id="over the end"),
        pytest.param([Span(0, 4), Span(SIZE, 4)], id="the second run"),
        pytest.param([Span(0, 7)], id="too little"),
        pytest.param([Span(0, 8), Span(0, 1)], id="too much"),
        pytest.param([], id="nothing"),
    ],
)
def test_nothing_is_read_outside_and_nothing_written_beyond(window, spans):
    target = bytearray(16)
    with pytest.raises((WireError, IndexError)):
        window.fetch(spans, [memoryview(target)[:8]])
    assert target == bytes(16)


def test_the_reader_can_never_write(door, lent):
    """Not by its descriptor, not by a mapping of it, and not by opening the file anew."""
    descriptor = fetch(str(door.path), lent.token)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(descriptor, b"x")
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, SIZE)
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    with pytest.raises(PermissionError):
        mmap.mmap(again, SIZE)
    with pytest.raises(PermissionError):
        os.write(again, b"x")
    for one in (descriptor, again):
        os.close(one)


async def test_a_mapping_outlives_its_writer_until_the_copy_is_over(file, lent, window):
    """kill -9 of the writer takes nothing away under the reader."""
    file.map[:4] = b"kept"
    os.close(file.descriptor)
    file.map.close()
    target = bytearray(4)
    window.fetch([Span(0, 4)], [memoryview(target)])
    assert target == b"kept"


def test_a_token_opens_once(door, file):
    lent = Lent(memoryview(file.map), file, door)
    os.close(fetch(str(door.path), lent.token))
    with pytest.raises(LaneError):
        fetch(str(door.path), lent.token)
    lent.close()


@pytest.mark.parametrize("token", [bytes(32), b"short", b""], ids=["wrong", "short", "none"])
def test_another_token_opens_nothing(door, file, token, monkeypatch):
    monkeypatch.setattr("tandem_worker.transfer.shm.DOOR_S", 0.2)
    lent = Lent(memoryview(file.map), file, door)
    with pytest.raises(LaneError):
        fetch(str(door.path), token)
    os.close(fetch(str(door.path), lent.token))
    lent.close()


def test_a_killed_workers_door_is_swept_away_and_nothing_else(tmp_path):
    """A socket file at which nobody listens is what kill -9 leaves."""
    living = Door(tmp_path)
    dead, other, plain = tmp_path / "tandem-kv-1-00.sock", tmp_path / "somebody.sock", tmp_path / "tandem-kv-2-00.sock"
    for path in (dead, other):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    plain.touch()
    newcomer = Door(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living.path, newcomer.path, other, plain])
    living.close()
    newcomer.close()


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_nobody_fetched_is_closed_with_its_connection(door, file):
    lent = Lent(memoryview(file.map), file, door)
    before = open_files()
    lent.close()
    lent.close()
    assert open_files() < before
    with pytest.raises(LaneError):
        fetch(str(door.path), lent.token)


@pytest.mark.parametrize(
    ("seals", "said", "words"),
    [
        pytest.param(0, SIZE, "may change its size", id="it could shrink"),
        pytest.param(SEALS, 2 * SIZE, f"has {SIZE} B", id="another size"),
        pytest.param(SEALS, SIZE, f"holes: 0 B of {SIZE}", id="holes"),
    ],
)
def test_memory_that_is_not_as_it_was_said_is_refused(seals, said, words):
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(LaneError, match=words):
        Window(descriptor, said)
    with pytest.raises(OSError):  # noqa: PT011 - any: it is closed
        os.fstat(descriptor)


def test_pages_that_lie_in_this_process_alone_are_refused_at_the_start(tmp_path):
    shm = Shm(tmp_path)
    with pytest.raises(BackendError, match="do not lie in a memory file"):
        shm.open(memoryview(bytearray(8)), None)
    shm.close()


def test_a_kernel_without_such_memory_is_named_at_the_start(monkeypatch):
    def refuse(name, flags):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(ModelLoadError, match="No space left"):
        make_file(SIZE)


def test_without_a_descriptor_to_spare_pages_travel_over_tcp(tmp_path, file, monkeypatch, caplog):
    def refuse(self):
        raise OSError(24, "Too many open files")

    shm = Shm(tmp_path)
    shm.open(memoryview(file.map), file)
    monkeypatch.setattr(type(file), "reader", refuse)
    assert shm.lend() is None
    assert "Too many open files" in caplog.text
    shm.close()


async def test_a_door_on_another_machine_is_a_plain_refusal(tmp_path, file):
    shm = Shm(tmp_path)
    shm.open(memoryview(file.map), file)
    _, lend = shm.lend()
    shm.close()
    with pytest.raises(LaneError, match="no shared memory with the peer"):
        await shm.borrow(lend)
