"""The records of a transfer, and its limits."""

import errno
import fnmatch
import io
import os
import struct
from collections.abc import Callable, Collection
from typing import NamedTuple

MAX_ENTRIES = 200_000
"""More than any dependency folder has; so many empty files take some ten seconds."""
MAX_DEPTH = 64
"""Each level keeps one descriptor open; a process may have no more than 1024 for all its transfers."""
MAX_NAME_BYTES = 255
"""Linux's NAME_MAX."""
MAX_LINK_BYTES = 4096
"""Linux's PATH_MAX."""
MAX_REWARD_BYTES = 1 << 20
"""Of a verifier's reward file no more than one byte beyond this size is transferred, so that its reader refuses it."""
CHUNK_BYTES = 1 << 18
_MAX_TEXT_BYTES = MAX_NAME_BYTES + 1 + MAX_LINK_BYTES
_MAX_TIME_NS = 1 << 62
"""A file's time may exceed 64 bits of nanoseconds."""

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ANYTHING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV)
"""Errors of opening a name that has changed its kind since it was examined."""

ENTER, LEAVE, FILE, SEGMENT, FILE_END, LINK, HARD_LINK, END, ERROR = (bytes([byte]) for byte in b"dufselh.!")
LOST = 1
"""The size in an error's record if the sandbox itself is gone."""
_HEADER = struct.Struct("<cIqQI")


class TransferError(Exception):
    """A transfer can't be done; the message states why and on what."""


class SandboxGoneError(TransferError):
    """The sandbox has ended."""


class StreamEndedError(Exception):
    """The other side has ended."""


class Record(NamedTuple):
    """One record of a transfer. The meaning of the numbers depends on the kind."""

    kind: bytes
    mode: int
    mtime_ns: int
    size: int
    body: bytes


def show(path: bytes) -> str:
    """Return a path of any bytes as one line of text."""
    return repr(path.decode("utf-8", "backslashreplace"))


def join(path: bytes, name: bytes) -> bytes:
    """Return the path of a name in a directory; a transfer's own root is empty."""
    return path + b"/" + name if path else name


def is_whole(content: bytes) -> bool:
    """Return whether bytes that begin with a record have the last one of a transfer, too."""
    offset = 0
    while offset + _HEADER.size <= len(content):
        kind, _, _, _, length = _HEADER.unpack_from(content, offset)
        offset += _HEADER.size + length
        if kind in (END, ERROR):
            return offset <= len(content)
    return False


class Stream:
    """Records on a socket or pipe, which the caller closes.

    Args:
        handle: Its descriptor.
        content: All that is received on it, if that was received already.
    """

    def __init__(self, handle: int, content: bytes | None = None) -> None:
        self._handle = handle
        self._out = bytearray()
        if content is None:
            self._in = open(handle, "rb", buffering=CHUNK_BYTES, closefd=False)  # noqa: SIM115  # the caller closes
        else:
            self._in = io.BytesIO(content)

    def send(self, kind: bytes, *, mode: int = 0, mtime_ns: int = 0, size: int = 0, body: bytes = b"") -> None:
        """Send a record, which may be buffered until :meth:`flush`.

        Raises:
            StreamEndedError: The other side has ended.
        """
        time = max(-_MAX_TIME_NS, min(mtime_ns, _MAX_TIME_NS))
        self._out += _HEADER.pack(kind, mode, time, size, len(body))
        self._out += body
        if len(self._out) >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the buffered records.

        Raises:
            StreamEndedError: The other side has ended.
        """
        rest = memoryview(bytes(self._out))
        self._out.clear()
        try:
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        except OSError as exc:
            raise StreamEndedError(str(exc)) from exc

    def receive(self) -> Record:
        """Return the next record.

        Raises:
            TransferError: The other side failed, or its bytes are no record.
            SandboxGoneError: The sandbox has ended.
            StreamEndedError: The other side has ended.
        """
        kind, mode, mtime_ns, size, length = _HEADER.unpack(self._read(_HEADER.size))
        if length > (CHUNK_BYTES if kind == SEGMENT else _MAX_TEXT_BYTES):
            raise TransferError("the other side of the transfer sends no records")
        body = self._read(length)
        if kind == ERROR:
            raise (SandboxGoneError if size == LOST else TransferError)(body.decode("utf-8", "replace"))
        return Record(kind, mode, mtime_ns, size, body)

    def _read(self, count: int) -> bytes:
        try:
            content = self._in.read(count)
        except OSError as exc:
            raise StreamEndedError(str(exc)) from exc
        if len(content) < count:
            raise StreamEndedError("the stream ended early")
        return content

    def send_error(self, message: str, size: int = 0) -> None:
        """Send this side's failure, if the other side still reads."""
        try:
            self.send(ERROR, size=size, body=message.encode("utf-8", "replace")[:_MAX_TEXT_BYTES])
            self.flush()
        except StreamEndedError:
            pass


class Collected(Stream):
    """Records that are sent nowhere yet."""

    def __init__(self) -> None:
        super().__init__(-1, b"")
        self.records = b""
        """The flushed ones."""

    def flush(self) -> None:
        """Add the buffered records to :attr:`records`."""
        self.records += self._out
        self._out.clear()


class Allowance:
    """What remains of one transfer's limits."""

    def __init__(self, limit_bytes: int, check: Callable[[], None] = lambda: None) -> None:
        self._limit = self._bytes = limit_bytes
        self._entries = MAX_ENTRIES
        self.check = check
        """Called often; raises if the transfer must stop."""

    def take_entry(self, path: bytes) -> None:
        """Count an entry of a directory.

        Raises:
            TransferError: There are too many entries.
        """
        self.check()
        self._entries -= 1
        if self._entries < 0:
            raise TransferError(f"it has more than {MAX_ENTRIES} files ({show(path)} is one more): pack or remove some")

    def take_bytes(self, count: int, path: bytes) -> None:
        """Count a file's bytes, holes too.

        Raises:
            TransferError: There are too many bytes.
        """
        self._bytes -= count
        if self._bytes < 0:
            raise TransferError(
                f"with {show(path)}, {count} bytes, it is larger than {self._limit >> 20} MiB: remove what is not "
                "needed, or give the task more storage_mb"
            )

    @staticmethod
    def check_depth(depth: int, path: bytes) -> None:
        """Refuse directories nested too deep.

        Raises:
            TransferError: It is nested too deep.
        """
        if depth > MAX_DEPTH:
            raise TransferError(f"{show(path)} is nested deeper than {MAX_DEPTH} directories: flatten or pack it")


class Choice(NamedTuple):
    """A selection of a tree's paths by fnmatch patterns; ``*`` matches ``/`` too."""

    without: Collection[str] = ()
    """As ``tar --exclude``: a pattern may match from any directory of the path on, and excludes all below."""

    include: Collection[str] = ()
    """If given, only files that match are selected, with their folders."""

    exclude: Collection[str] = ()
    """If given, only files that don't match are selected, with their folders."""

    protect: Collection[str] = ()
    """Paths of files that are selected regardless of ``include`` and ``exclude``."""

    rewards: Collection[str] = ()
    """Paths of a verifier's reward files, which are cut (:data:`MAX_REWARD_BYTES`)."""

    @property
    def is_of_files(self) -> bool:
        """Whether only files are selected."""
        return bool(self.include or self.exclude)

    def drops(self, path: bytes) -> bool:
        """Return whether an entry is excluded with all entries below it."""
        parts = os.fsdecode(path).split("/") if self.without else []
        ends = range(1, len(parts) + 1)
        return any(_matches("/".join(parts[start:end]), self.without) for end in ends for start in range(end))

    def taken_bytes(self, path: bytes, size: int) -> int:
        """Return how much of a selected file is transferred."""
        return min(size, MAX_REWARD_BYTES + 1) if self.rewards and os.fsdecode(path) in self.rewards else size

    def takes_file(self, path: bytes) -> bool:
        """Return whether a file that was not dropped is selected."""
        text = os.fsdecode(path) if self.is_of_files else ""
        is_included = not self.include or _matches(text, self.include)
        return text in self.protect or (is_included and not _matches(text, self.exclude))


def _matches(path: str, patterns: Collection[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern.removeprefix("./").rstrip("/")) for pattern in patterns)


ALL = Choice()
