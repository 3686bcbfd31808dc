"""The sending side of a transfer, which reads files."""

import errno
import os
import stat
from collections.abc import Iterator

from .records import (
    ALL,
    ANYTHING,
    CHUNK_BYTES,
    DIRECTORY,
    END,
    ENTER,
    FILE,
    FILE_END,
    LEAVE,
    LINK,
    SEGMENT,
    SWAPPED,
    Allowance,
    Choice,
    Stream,
    join,
)

_BLOCK_BYTES = 4096
"""Most file systems store no part of a smaller file."""


class Sender:
    """Reads files and sends them, without devices, FIFOs, sockets, and entries that have disappeared meanwhile.

    Args:
        stream: Where to.
        allowance: The limits.
        choice: What is left out.
        executable: The path of a file that all may execute where it arrives; none if empty.
    """

    def __init__(self, stream: Stream, allowance: Allowance, choice: Choice = ALL, executable: bytes = b"") -> None:
        self._stream = stream
        self._allowance = allowance
        self._choice = choice
        self._executable = executable
        self.has_executable: bool | None = None
        """Whether that path is a file, executable from then on; None if nothing is there."""
        self._waiting: list[tuple[bytes, os.stat_result]] = []

    def send_tree(self, directory: int) -> None:
        """Send the contents of a directory, and the end.

        Args:
            directory: Its descriptor, open for reading.

        Raises:
            TransferError: The tree exceeds a limit.
            StreamEndedError: The other side has ended.
            OSError: An entry can't be read.
        """
        self._send_contents(directory, b"", 0)
        self._stream.send(END)
        self._stream.flush()

    def send_file(self, handle: int, name: bytes) -> None:
        """Send one regular file, and the end.

        Raises:
            TransferError: The file exceeds a limit.
            StreamEndedError: The other side has ended.
            OSError: It can't be read.
        """
        self._send_open_file(handle, os.fstat(handle), name, name)
        self._stream.send(END)
        self._stream.flush()

    def _send_contents(self, place: int, path: bytes, depth: int) -> None:
        self._allowance.check_depth(depth, path)
        names: list[bytes] = []
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    names.append(os.fsencode(entry.name))
                    self._allowance.take_entry(join(path, names[-1]))
        except OSError as exc:
            if exc.errno not in SWAPPED:  # it may be gone by now
                raise
        for name in sorted(names):
            below = join(path, name)
            if not self._choice.drops(below):
                self._send_entry(place, name, below, depth)

    def _send_link(self, place: int, name: bytes) -> None:
        try:
            target = os.readlink(name, dir_fd=place)
        except OSError as exc:
            if exc.errno == errno.EINVAL:  # it is no link any more
                return
            raise
        if not self._choice.is_of_files:
            self._stream.send(LINK, body=name + b"\0" + target)

    def _send_entry(self, place: int, name: bytes, path: bytes, depth: int) -> None:
        try:
            kind = stat.S_IFMT(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
            if kind == stat.S_IFLNK:
                if path == self._executable:
                    self.has_executable = False
                self._send_link(place, name)
                return
            if kind not in (stat.S_IFDIR, stat.S_IFREG):
                return
            handle = os.open(name, DIRECTORY if kind == stat.S_IFDIR else ANYTHING, dir_fd=place)
        except OSError as exc:
            if exc.errno in SWAPPED:
                return
            raise
        try:
            status = os.fstat(handle)
            if stat.S_IFMT(status.st_mode) != kind:
                return
            if kind == stat.S_IFDIR:
                self._send_directory(handle, status, name, path, depth)
            elif self._choice.takes_file(path):
                self._send_open_file(handle, status, name, path)
        finally:
            os.close(handle)

    def _send_directory(self, handle: int, status: os.stat_result, name: bytes, path: bytes, depth: int) -> None:
        self._waiting.append((name, status))
        if not self._choice.is_of_files:
            self._send_waiting()
        self._send_contents(handle, path, depth + 1)
        if self._waiting:
            self._waiting.pop()
        else:
            self._stream.send(LEAVE)

    def _send_waiting(self) -> None:
        """Send the records of the directories above the next entry."""
        for name, status in self._waiting:
            self._stream.send(ENTER, mode=stat.S_IMODE(status.st_mode), mtime_ns=status.st_mtime_ns, body=name)
        self._waiting.clear()

    def _send_open_file(self, handle: int, status: os.stat_result, name: bytes, path: bytes) -> None:
        content, size = b"", self._choice.taken_bytes(path, status.st_size)
        if size == 0:
            content = _read_unsized(handle)
            size = len(content)
        elif size <= _BLOCK_BYTES or size <= min(CHUNK_BYTES, status.st_blocks << 9):
            content = os.pread(handle, size, 0)  # it has no holes; with fewer bytes, it has become shorter
        self._allowance.take_bytes(size, path)
        self._send_waiting()
        mode = stat.S_IMODE(status.st_mode)
        if path == self._executable:
            mode |= 0o111
            self.has_executable = True
        self._stream.send(FILE, mode=mode, mtime_ns=status.st_mtime_ns, size=size, body=name)
        if content:
            self._stream.send(SEGMENT, body=content)
            self._stream.send(FILE_END, size=len(content))
            return
        for start, end in _data(handle, size):
            offset = start
            while offset < end and (content := os.pread(handle, min(CHUNK_BYTES, end - offset), offset)):
                self._allowance.check()
                self._stream.send(SEGMENT, size=offset, body=content)
                offset += len(content)
        # The file may have become shorter; bytes by which it has grown are left out.
        self._stream.send(FILE_END, size=min(size, os.fstat(handle).st_size))


def _read_unsized(handle: int) -> bytes:
    """Read a file of size 0, which may have content, as in /proc and /sys."""
    try:
        return os.read(handle, CHUNK_BYTES)
    except OSError:
        return b""


def _data(handle: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file with data, up to a size; the rest is holes."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(handle, offset, os.SEEK_DATA)
            offset = os.lseek(handle, start, os.SEEK_HOLE)
        except OSError as exc:
            if exc.errno != errno.ENXIO:  # the file system does not support it
                yield offset, size
            return
        yield start, min(offset, size)
