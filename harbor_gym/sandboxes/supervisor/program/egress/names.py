"""The host names of an allowlist, and the answers of the sandbox's resolver, which knows no other name.

No query leaves the sandbox: a listed name has one address, made from it, at which the proxy takes the connections that
say the name again in their first bytes. So no data is carried out in queries, and no answer opens an address.

Source: RFC 1035 (queries), RFC 2544 (the addresses, which nobody has), RFC 6891 (answers without EDNS).
"""

import struct
import zlib
from collections.abc import Iterable

_FIRST, _HOSTS = int.from_bytes(bytes([198, 18, 0, 0])), (1 << 17) - 2
"""Those of :data:`messages.POOL`."""
_TTL_SEC = 60
_HEADER = struct.Struct("!6H")
_ANSWERS, _ASKS_RECURSION, _OPCODE = 0x8080, 0x0100, 0x7800
_NO_SUCH_NAME, _A, _ANY, _IN = 3, 1, 255, 1
_POINTER_TO_QUESTION = 0xC000 | _HEADER.size
_LONGEST_LABEL, _LONGEST_NAME = 63, 255
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")


class Names:
    """Listed host names.

    Args:
        entries: ``example.com``, or ``*.example.com`` for all names below it, at any depth, but not itself; in lower
            case, as Harbor normalizes them.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        listed = tuple(entries)
        self._hosts = frozenset(entry for entry in listed if not entry.startswith("*."))
        self._parents = frozenset(entry[2:] for entry in listed if entry.startswith("*."))

    def allow(self, name: str) -> bool:
        """Return whether a name, as :func:`normal` returns it, is listed."""
        if not name:
            return False
        above = name.split(".")[1:]
        return name in self._hosts or any(".".join(above[place:]) in self._parents for place in range(len(above)))


def normal(name: bytes) -> str:
    """Return a host name in lower case and without its final dot; empty if it can't be one."""
    text = name.lower().removesuffix(b".")
    is_one = len(text) <= _LONGEST_NAME and _LETTERS.issuperset(text) and b"" not in text.split(b".")
    return text.decode() if is_one else ""


def address_of(name: str) -> bytes:
    """Return the address in :data:`messages.POOL` that a name has in every sandbox, and in each phase of it."""
    return (_FIRST + 1 + zlib.crc32(name.encode()) % _HOSTS).to_bytes(4)


def answer(query: bytes, names: Names) -> bytes:
    """Return the answer to a query; empty if it is none.

    A listed name has an address (A) and no other record; any other name does not exist.
    """
    try:
        number, flags, questions, *_ = _HEADER.unpack_from(query)
        name, end = _question(query)
    except (struct.error, IndexError, ValueError):
        return b""
    if flags & (0x8000 | _OPCODE) or questions != 1:
        return b""
    kind, group = struct.unpack_from("!HH", query, end)
    is_listed = names.allow(name)
    record = b""
    if is_listed and kind in (_A, _ANY) and group == _IN:
        record = struct.pack("!HHHIH", _POINTER_TO_QUESTION, _A, _IN, _TTL_SEC, 4) + address_of(name)
    code = 0 if is_listed else _NO_SUCH_NAME
    header = _HEADER.pack(number, _ANSWERS | flags & _ASKS_RECURSION | code, 1, 1 if record else 0, 0, 0)
    return header + query[_HEADER.size : end + 4] + record


def _question(query: bytes) -> tuple[str, int]:
    """Return the first question's name, and where it ends.

    Raises:
        IndexError, ValueError: It is malformed, or its end is missing.
    """
    labels: list[bytes] = []
    place = _HEADER.size
    while size := query[place]:
        label = query[place + 1 : place + 1 + size]
        if size > _LONGEST_LABEL or len(label) < size or b"." in label or place - _HEADER.size > _LONGEST_NAME:
            raise ValueError
        labels.append(label)
        place += 1 + size
    if len(query) < place + 5:
        raise ValueError
    return normal(b".".join(labels)), place + 1
