"""A port of the loopback for what we start ourselves."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that nobody has now; two runs on one machine do not meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
