"""Reads an archive from a container and sends its members as records. Runs by itself, stdlib only.

It is a process with limits of its own, so that a hostile archive harms only it. It opens no file.
It understands the archives of container engines: POSIX tar with its extended headers, and GNU's long names. Anything
else is refused: numbers that are no digits, sparse files, headers longer than any use.

Source: pax(1) of POSIX.1-2017, "ustar Interchange Format" and "pax Interchange Format".
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from trees.records import (
    CHUNK_BYTES,
    END,
    ENTER,
    FILE,
    FILE_END,
    HARD_LINK,
    LEAVE,
    LINK,
    MAX_ENTRIES,
    MAX_LINK_BYTES,
    MAX_NAME_BYTES,
    SEGMENT,
    Allowance,
    Choice,
    Stream,
    StreamEndedError,
    TransferError,
    show,
)

_BLOCK_BYTES = 512
_MAX_HEADER_BYTES = 16 << 10
"""Limit of an extended header: a path and a link's target, twice as long as Linux allows them."""
_OVERHEAD_BYTES = 8 * _BLOCK_BYTES
"""Allowance for an entry's headers and padding; extended ones count as entries too."""
_UNWANTED_FACTOR = 4
"""Factor of an archive's limit if only some files are taken: the engine packs all."""
_MAX_NUMBER_DIGITS = 19
_MEMORY_BYTES = 512 << 20
_PROCESSOR_SEC = 600
_REGULAR, _HARD, _SYMBOLIC, _FOLDER = (b"0", b"\0", b"7"), b"1", b"2", b"5"
_LEFT_OUT = (b"3", b"4", b"6")
"""Devices and FIFOs."""
_MARK = [b".dockerenv"]
"""A file at the root of each of Docker's containers, and nearly always the first of all."""


class Member(NamedTuple):
    """One entry of an archive."""

    kind: bytes
    name: bytes
    target: bytes
    mode: int
    mtime_sec: int
    size: int


class _Archive:
    def __init__(self, source: int, limit_bytes: int) -> None:
        self._in = open(source, "rb", buffering=CHUNK_BYTES, closefd=False)  # noqa: SIM115  # ends with the process
        self._left = limit_bytes
        self._headers = 4 * MAX_ENTRIES

    def read(self, count: int) -> bytes:
        """Return the next bytes.

        Raises:
            StreamEndedError: The archive has ended.
            TransferError: The archive is longer than its limit.
        """
        self._left -= count
        if self._left < 0:
            raise TransferError("the container's archive is longer than its limit")
        content = self._in.read(count)
        if len(content) < count:
            raise StreamEndedError("the archive ends early")
        return content

    def skip(self, size: int) -> None:
        """Skip a member's content, or its padding."""
        while size > 0:
            size -= len(self.read(min(size, CHUNK_BYTES)))

    def drain(self) -> None:
        """Read the bytes after the end, so that the writer can finish."""
        while self._left > 0 and (content := self._in.read(CHUNK_BYTES)):
            self._left -= len(content)

    def members(self) -> Iterator[Member]:
        """Yield the members; the caller reads the content and padding of each before the next."""
        extended: dict[bytes, bytes] = {}
        while any(block := self.read(_BLOCK_BYTES)):
            self._headers -= 1
            if self._headers < 0:
                raise TransferError(f"the container's archive has more than {4 * MAX_ENTRIES} headers")
            _check_sum(block)
            kind, size = block[156:157], _number(block[124:136])
            if kind in b"xgLK":
                if size > _MAX_HEADER_BYTES:
                    raise TransferError(
                        f"the container's archive has a header of {size} bytes, more than {_MAX_HEADER_BYTES}"
                    )
                content = self.read(size + -size % _BLOCK_BYTES)[:size]
                if kind == b"x":
                    extended |= _records(content)
                elif kind == b"g":
                    _records(content)  # a global header, checked only: engines write none that matters here
                else:
                    extended[b"path" if kind == b"L" else b"linkpath"] = content.rstrip(b"\0")
                continue
            yield _member(block, extended, kind, size)
            extended = {}


def _check_sum(block: bytes) -> None:
    if sum(block[:148]) + sum(block[156:]) + 8 * ord(" ") != _number(block[148:156]):
        raise TransferError("what came from the container is no archive")


def _number(field: bytes) -> int:
    """Read a header's number: octal digits, or large ones as bytes."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not set(digits) <= set(b"01234567"):
        raise TransferError("what came from the container is no archive: a number has no digits")
    return int(digits or b"0", 8)


def _records(content: bytes) -> dict[bytes, bytes]:
    """Read an extended header, whose records each begin with their own length."""
    found: dict[bytes, bytes] = {}
    while content:
        digits, _, _ = content[:8].partition(b" ")
        length = _decimal(digits)
        record = content[len(digits) + 1 : length]
        key, is_pair, value = record[:-1].partition(b"=")
        if not record.endswith(b"\n") or not is_pair or len(content) < length:
            raise TransferError("the container's archive has a broken header")
        if key.startswith(b"GNU.sparse"):
            raise TransferError("the container's archive has a sparse file in a form that is not understood")
        found[key] = value
        content = content[length:]
    return found


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > _MAX_NUMBER_DIGITS:
        raise TransferError("the container's archive has a broken header: a number has no digits, or too many")
    return int(digits)


def _member(block: bytes, extended: dict[bytes, bytes], kind: bytes, size: int) -> Member:
    name, prefix = _text(block[:100]), _text(block[345:500])
    if prefix and block[257:263] == b"ustar\0":
        name = prefix + b"/" + name
    name = extended.get(b"path", name)
    if b"size" in extended:
        size = _decimal(extended[b"size"])
    mtime = _decimal(extended[b"mtime"].partition(b".")[0].lstrip(b"-")) if b"mtime" in extended else None
    if kind in _REGULAR and name.endswith(b"/"):
        kind = _FOLDER
    if size and kind not in _REGULAR:
        raise TransferError(f"the container's archive has {show(name[:MAX_LINK_BYTES])}, which can't have content")
    target = extended.get(b"linkpath", _text(block[157:257]))
    return Member(
        kind, name, target, _number(block[100:108]), _number(block[136:148]) if mtime is None else mtime, size
    )


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _parts(name: bytes) -> list[bytes] | None:
    """Return a path's names from the archive's root; None if it leads elsewhere or is invalid."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if (
        len(name) > MAX_LINK_BYTES
        or b".." in parts
        or any(len(part) > MAX_NAME_BYTES or b"\0" in part for part in parts)
    ):
        return None
    return parts


class _Forwarder:
    """Sends an archive's members as a tree, with records that enter and leave directories."""

    def __init__(
        self, archive: _Archive, stream: Stream, allowance: Allowance, choice: Choice, source: list[bytes]
    ) -> None:
        self._archive = archive
        self._source = source
        self._stream = stream
        self._allowance = allowance
        self._choice = choice
        self._at: list[bytes] = []

    def send_tree(self) -> None:
        """Send all members, and the end."""
        for member in self._archive.members():
            self._allowance.take_entry(member.name[:MAX_LINK_BYTES])
            parts = _parts(member.name)
            self._allowance.check_depth(len(parts or ()) - 1, member.name[:MAX_LINK_BYTES])
            if parts and self._is_around(member, parts):
                raise TransferError("a link leads to a directory that contains the link: all of that is not copied")
            if parts and not self._choice.drops(b"/".join(parts)):
                self._send(member, parts)
            else:
                self._archive.skip(member.size + -member.size % _BLOCK_BYTES)
        self._go([])
        self._finish()

    def _is_around(self, member: Member, parts: list[bytes]) -> bool:
        """Return whether a member shows that its directory was reached by a link in it."""
        if member.kind != _SYMBOLIC:
            return parts == _MARK and bool(self._source)
        for end in range(len(parts), len(self._source) + 1):
            way, rest = self._source[:end], self._source[end:]
            above, place = way[: -len(parts)], b"/" + b"/".join(way[:-1])
            reached = os.path.normpath(os.path.join(place, member.target, *rest))  # noqa: PTH118  # bytes
            if above + parts == way and reached == b"/" + b"/".join(above):
                return True
        return False

    def send_file(self) -> None:
        """Send the only member, which must be a file, and the end."""
        member = next(self._archive.members(), None)
        if member is None or member.kind not in _REGULAR:
            raise TransferError("it is no ordinary file")
        self._send_content(member, b"file", member.size)
        self._finish()

    def _finish(self) -> None:
        self._archive.drain()
        self._stream.send(END)
        self._stream.flush()

    def _send(self, member: Member, parts: list[bytes]) -> None:
        path = b"/".join(parts)
        if member.kind in _REGULAR:
            if not self._choice.takes_file(path):
                self._archive.skip(member.size + -member.size % _BLOCK_BYTES)
                return
            self._go(parts[:-1])
            self._send_content(member, parts[-1], self._choice.taken_bytes(path, member.size))
        elif self._choice.is_of_files or member.kind in _LEFT_OUT:
            return
        elif member.kind == _FOLDER:
            self._go(parts)
        elif member.kind == _SYMBOLIC:
            if len(member.target) <= MAX_LINK_BYTES and b"\0" not in member.target:
                self._go(parts[:-1])
                self._stream.send(LINK, body=parts[-1] + b"\0" + member.target)
        elif member.kind == _HARD:
            if target := _parts(member.target):
                self._go(parts[:-1])
                self._stream.send(HARD_LINK, body=parts[-1] + b"\0" + b"/".join(target))
        else:
            raise TransferError(f"the container's archive has {show(path)}, of a kind that is not understood")

    def _go(self, folder: list[bytes]) -> None:
        """Send the records that lead from the current directory to ``folder``."""
        common = 0
        while common < min(len(self._at), len(folder)) and self._at[common] == folder[common]:
            common += 1
        for _ in self._at[common:]:
            self._stream.send(LEAVE)
        for name in folder[common:]:
            self._stream.send(ENTER, mode=0o755, body=name)
        self._at = folder

    def _send_content(self, member: Member, name: bytes, size: int) -> None:
        self._allowance.take_bytes(size, name)
        self._stream.send(FILE, mode=member.mode & 0o7777, mtime_ns=member.mtime_sec * 10**9, size=size, body=name)
        offset = 0
        while offset < size:
            content = self._archive.read(min(CHUNK_BYTES, size - offset))
            if content.count(0) < len(content):  # zeros alone become a hole
                self._stream.send(SEGMENT, size=offset, body=content)
            offset += len(content)
        self._archive.skip(member.size - size + -member.size % _BLOCK_BYTES)
        self._stream.send(FILE_END, size=size)


def forward(source: int, stream: Stream, spec: dict[str, Any]) -> None:
    """Send an archive's members, or an error; nothing if the archive ends early.

    Args:
        source: A descriptor to read the archive from.
        stream: The stream of records.
        spec: ``is_file``, ``limit_bytes``, ``choice``, and ``source``: the names of the path that the engine packs.
    """
    limit: int = spec["limit_bytes"]
    choice = Choice(**spec["choice"])
    factor = _UNWANTED_FACTOR if choice != Choice() else 1
    try:
        archive = _Archive(source, factor * limit + _OVERHEAD_BYTES * MAX_ENTRIES)
        names = [name.encode("latin-1") for name in spec["source"]]
        forwarder = _Forwarder(archive, stream, Allowance(limit), choice, names)
        (forwarder.send_file if spec["is_file"] else forwarder.send_tree)()
    except StreamEndedError:
        pass
    except (TransferError, MemoryError) as exc:
        stream.send_error(str(exc) or "the container's archive takes too much memory")


def main() -> int:
    """Forward the archive on standard input to the socket that standard output is."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_SEC, _PROCESSOR_SEC))
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    forward(0, Stream(1), json.loads(sys.argv[1]))
    return 0
