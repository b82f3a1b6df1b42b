"""A library's own listeners, which cannot be told where to listen: what is not for this worker's address is dropped."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SO_ATTACH_FILTER: Final = 26  # <asm-generic/socket.h>
INSTRUCTION: Final = struct.Struct("HBBI")  # <linux/filter.h>: code, jump if true, jump if false, k
PROGRAM: Final = struct.Struct("HL")
LOAD_BYTE, LOAD_WORD, SHIFT_RIGHT, IF_EQUAL, RETURN = 0x30, 0x20, 0x74, 0x15, 0x06
NETWORK_HEADER: Final = 2**32 - 0x100000  # SKF_NET_OFF: loads from here on count from the IP header
DESTINATION: Final = {4: 16, 6: 24}  # where an IP header has it
IP: Final = frozenset({socket.AF_INET, socket.AF_INET6})
WHOLE: Final = 2**32 - 1


def sockets() -> set[str]:
    """Names of this process's sockets; none is given twice."""
    return {link for _, link in _descriptors()}


def keep_to(host: str, before: set[str]) -> None:
    """Whoever listens here and did not `before` hears of packets to this address alone. Raises OSError, ValueError.

    As good as a bind from the next connection on: the kernel asks a listener's filter of every SYN, without a right
    that a pod lacks, and connections inherit it.
    """
    program = b"".join(INSTRUCTION.pack(*one) for one in only_to(host))
    for descriptor, link in _descriptors():
        if link in before:
            continue
        with socket.socket(fileno=os.dup(descriptor)) as one:
            if one.family in IP and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                _attach(one, program)


def only_to(host: str) -> list[tuple[int, int, int, int]]:
    """A filter that lets through what has this address as its destination. Raises ValueError for a name."""
    address = ipaddress.ip_address(host)
    words = struct.unpack(f"!{len(address.packed) // 4}I", address.packed)
    checks: list[tuple[int, int]] = [(LOAD_BYTE, NETWORK_HEADER), (SHIFT_RIGHT, 4), (IF_EQUAL, address.version)]
    for place, word in enumerate(words):
        at = NETWORK_HEADER + DESTINATION[address.version] + 4 * place
        checks += [(LOAD_WORD, at), (IF_EQUAL, word)]
    end = len(checks) + 1  # where nothing is let through
    program = [(code, 0, end - at - 1 if code == IF_EQUAL else 0, k) for at, (code, k) in enumerate(checks)]
    return [*program, (RETURN, 0, 0, WHOLE), (RETURN, 0, 0, 0)]


def _attach(one: socket.socket, program: bytes) -> None:
    held = ctypes.create_string_buffer(program, len(program))
    length = len(program) // INSTRUCTION.size
    one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, PROGRAM.pack(length, ctypes.addressof(held)))


def _descriptors() -> Iterator[tuple[int, str]]:
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if (link := str(path.readlink())).startswith("socket:"):
                yield int(path.name), link
