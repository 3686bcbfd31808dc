"""Messages to the kernel about its networks; see netlink(7)."""

import errno
import os
import socket
import struct

REQUEST, ACK, CREATE, APPEND = 0x1, 0x4, 0x400, 0x800
_NESTED = 0x8000
_ERROR = 2
_ANSWER_BYTES, _TIMEOUT_SEC = 1 << 16, 10.0

type Value = bytes | int | list[tuple[int, "Value"]]
"""An attribute's value: bytes, a number of 32 bits in the network's order, or attributes."""


def message(kind: int, flags: int, number: int, body: bytes) -> bytes:
    """Return one message."""
    return struct.pack("=IHHII", 16 + len(body), kind, flags | REQUEST, number, 0) + body


def attributes(given: list[tuple[int, Value]]) -> bytes:
    """Return attributes as the kernel reads them."""
    out = b""
    for kind, value in given:
        if isinstance(value, list):
            body, kind = attributes(value), kind | _NESTED
        else:
            body = value if isinstance(value, bytes) else struct.pack("!I", value)
        out += struct.pack("HH", 4 + len(body), kind) + body + bytes(-len(body) % 4)
    return out


def send(protocol: int, content: bytes, last: int, what: str) -> None:
    """Send messages of this process's network namespace, and wait until the one of number ``last`` is acknowledged.

    Raises:
        OSError: The kernel refuses; the text begins with ``what``.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.settimeout(_TIMEOUT_SEC)
        kernel.sendto(content, (0, 0))
        while not _is_done(kernel.recv(_ANSWER_BYTES), last, what):
            pass


def _is_done(answer: bytes, last: int, what: str) -> bool:
    """Return whether the last message has been answered.

    Raises:
        OSError: One was refused.
    """
    place = 0
    while place < len(answer):
        size, kind, _, number, _ = struct.unpack_from("IHHII", answer, place)
        if kind == _ERROR:
            (error,) = struct.unpack_from("i", answer, place + 16)
            if error:
                raise OSError(-error, f"{what}: {os.strerror(-error)}")
            if number == last:
                return True
        place += size + -size % 4
    if not answer:
        raise OSError(errno.EIO, f"{what}: the kernel does not answer")
    return False
