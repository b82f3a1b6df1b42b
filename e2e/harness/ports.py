"""A port of the loopback for what we start ourselves."""

from __future__ import annotations

import contextlib
import random
import socket

# Below those that the kernel gives to connections as they go out: who is killed and comes back finds its port free.
OURS = range(20_000, 32_768)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody has now; two runs on one machine do not meet."""
    for number in random.SystemRandom().sample(OURS, 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, number))
            return number
    raise RuntimeError(f"no port of {host} is free from {OURS.start} to {OURS.stop - 1}")
