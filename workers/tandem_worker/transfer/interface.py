"""Which network interface an address belongs to."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

SIOCGIFADDR: Final = 0x8915  # <linux/sockios.h>
IFREQ: Final = struct.Struct("16s24x")
INET6: Final = Path("/proc/net/if_inet6")


def interface_of(host: str) -> str | None:
    """The interface that has this address. None: no single one has, or `host` is a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if address.is_loopback:
        return "lo"
    return _of_ipv4(address.packed) if address.version == 4 else _of_ipv6(address.packed.hex())


def _of_ipv4(packed: bytes) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, IFREQ.pack(name.encode()))
            except OSError:
                continue  # it has none
            if answer[20:24] == packed:
                return name
    return None


def _of_ipv6(packed: str) -> str | None:
    lines = INET6.read_text(encoding="ascii").splitlines() if INET6.exists() else []
    return next((line.split()[5] for line in lines if line.startswith(packed)), None)
