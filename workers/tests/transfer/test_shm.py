"""Shared memory between two workers: what was lent can be read, by whom it was lent to, and it cannot shrink."""

import os
import socket
from pathlib import Path

import pytest

from tandem_worker.transfer.base import LaneError
from tandem_worker.transfer.shm import ARENAS_AT_MOST, SEALS, Arena, Door, Shm, Window, fetch
from tandem_worker.transfer.wire import WireError

SLOT = 12_288


@pytest.fixture
def door(tmp_path):
    door = Door(tmp_path)
    yield door
    door.close()


@pytest.fixture
def lane(door):
    """Both ends."""
    arena = Arena(SLOT, door)
    window = Window(fetch(str(door.path), arena.token), arena.size)
    yield arena, window
    arena.close()
    window.close()


async def test_what_is_put_is_what_is_got(lane):
    arena, window = lane
    frames = [bytes([n]) * (SLOT - n) for n in range(5)]
    places = [arena.put(memoryview(frame)) for frame in frames]
    assert [await fetched(window, at, len(frame)) for at, frame in zip(places, frames, strict=True)] == frames


async def fetched(window, at, size):
    """What lies there, brought into two pieces."""
    target = memoryview(bytearray(size))
    await window.fetch(at, [target[: size // 3], target[size // 3 :]])
    return bytes(target)


def test_a_slot_is_used_again_only_once_it_is_taken(lane):
    arena, _ = lane
    places = []
    while arena.room():
        places.append(arena.put(memoryview(b"x")))
    assert len(set(places)) == len(places) == arena.size // SLOT
    arena.free(places[3], 1)
    assert arena.room()
    assert arena.put(memoryview(b"y")) == places[3]


@pytest.mark.parametrize(("at", "size"), [(0, 2), (SLOT, 1), (7, 1), (-1, 1), (2**62, 1)])
def test_nothing_is_freed_that_does_not_lie_there(lane, at, size):
    arena, _ = lane
    assert arena.put(memoryview(b"x")) == 0
    with pytest.raises(WireError):
        arena.free(at, size)
    arena.free(0, 1)
    with pytest.raises(WireError):
        arena.free(0, 1)


@pytest.mark.parametrize("at", [-1, -SLOT, 2**62, None], ids=["before", "far before", "far behind", "over the end"])
async def test_nothing_is_read_outside(lane, at):
    arena, window = lane
    with pytest.raises(WireError, match="outside"):
        await fetched(window, arena.size - SLOT + 1 if at is None else at, SLOT)


def test_a_token_opens_once(door):
    arena = Arena(SLOT, door)
    os.close(fetch(str(door.path), arena.token))
    with pytest.raises(LaneError):
        fetch(str(door.path), arena.token)
    arena.close()


@pytest.mark.parametrize("token", [bytes(32), b"short", b""], ids=["wrong", "short", "none"])
def test_another_token_opens_nothing(door, token, monkeypatch):
    monkeypatch.setattr("tandem_worker.transfer.shm.DOOR_S", 0.2)
    arena = Arena(SLOT, door)
    with pytest.raises(LaneError):
        fetch(str(door.path), token)
    os.close(fetch(str(door.path), arena.token))
    arena.close()


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


def test_what_nobody_fetched_is_closed_with_its_connection(door):
    arena = Arena(SLOT, door)
    before = open_files()
    arena.close()
    arena.close()
    assert open_files() < before
    with pytest.raises(LaneError):
        fetch(str(door.path), arena.token)


@pytest.mark.parametrize(
    ("seals", "said", "words"),
    [
        pytest.param(0, SLOT, "may change its size", id="it could shrink"),
        pytest.param(SEALS, 2 * SLOT, f"has {SLOT} B", id="another size"),
    ],
)
def test_memory_that_is_not_as_it_was_said_is_refused(seals, said, words):
    import fcntl

    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SLOT)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(LaneError, match=words):
        Window(descriptor, said)
    with pytest.raises(OSError):  # noqa: PT011 - any: it is closed
        os.fstat(descriptor)


def test_too_many_connections_use_tcp(tmp_path):
    shm = Shm(tmp_path, SLOT)
    lanes = [shm.lend() for _ in range(ARENAS_AT_MOST)]
    assert shm.lend() is None
    lanes[0][0].close()
    assert shm.lend() is not None
    shm.close()
    for arena in shm._arenas:
        arena.close()


def test_a_machine_without_memory_to_spare_uses_tcp(tmp_path, monkeypatch, caplog):
    def refuse(name, flags):
        raise OSError(28, "No space left on device")

    shm = Shm(tmp_path, SLOT)
    monkeypatch.setattr(os, "memfd_create", refuse)
    before = open_files()
    assert shm.lend() is None
    assert open_files() == before
    assert "No space left" in caplog.text
    shm.close()


async def test_a_door_on_another_machine_is_a_plain_refusal(tmp_path):
    shm = Shm(tmp_path, SLOT)
    arena, lend = shm.lend()
    shm.close()
    with pytest.raises(LaneError, match="no shared memory with the peer"):
        await shm.borrow(lend)
    arena.close()
