"""Ports for what tests start."""

import contextlib
import random
import socket

# Below those that the kernel gives to connections as they go out: who is killed and comes back finds its port free.
OURS = range(20_000, 32_768)


def free_ports(host: str = "127.0.0.1") -> tuple[int, int]:
    """Two that nobody has now."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for number in random.SystemRandom().sample(OURS, 1000):
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind((host, number))
                found.append(number)
            if len(found) == 2:
                return found[0], found[1]
    raise RuntimeError(f"no two ports of {host} are free from {OURS.start} to {OURS.stop - 1}")
