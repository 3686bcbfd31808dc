"""The receiving side of a transfer, which writes files."""

import contextlib
import errno
import os
import stat

from .records import (
    DIRECTORY,
    END,
    ENTER,
    FILE,
    FILE_END,
    HARD_LINK,
    LEAVE,
    LINK,
    MAX_NAME_BYTES,
    SEGMENT,
    SWAPPED,
    Allowance,
    Record,
    Stream,
    TransferError,
    show,
)

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class IntoSandbox:
    """Rules for files of a sandbox: root owns them, all mode bits stay, and they replace entries with their names."""

    directory_mode = 0o700
    """Mode of a new directory until it is settled."""

    def finish_file(self, handle: int, record: Record) -> None:
        """Give a written file its owner, mode and time."""
        os.fchown(handle, 0, 0)
        os.fchmod(handle, record.mode & 0o7777)
        os.utime(handle, ns=(record.mtime_ns, record.mtime_ns))

    finish_directory = finish_file

    def finish_link(self, place: int, name: bytes) -> None:
        """Give a link its owner."""
        os.chown(name, 0, 0, dir_fd=place, follow_symlinks=False)

    def takes_link(self, target: bytes, depth: int) -> bool:
        """Return whether a link may be made ``depth`` directories below the tree's own."""
        return True

    def clear(self, place: int, name: bytes, allowance: Allowance, depth: int = 0) -> None:
        """Remove the entry ``name`` of the directory ``place``, with its contents.

        Raises:
            TransferError: It has too many entries, or is nested too deep.
            OSError: It can't be removed.
        """
        allowance.check_depth(depth, name)
        try:
            os.unlink(name, dir_fd=place)
        except IsADirectoryError:
            handle = os.open(name, DIRECTORY, dir_fd=place)
            try:
                with os.scandir(handle) as entries:
                    for entry in entries:
                        allowance.take_entry(name)
                        self.clear(handle, os.fsencode(entry.name), allowance, depth + 1)
            finally:
                os.close(handle)
            os.rmdir(name, dir_fd=place)


class OntoHost(IntoSandbox):
    """Rules for a sandbox's files on this machine, where this process's user owns them.

    As with tarfile's "data" filter: files have no special bits, others can't write to them, and no link leads out. An
    existing directory is never replaced.
    """

    directory_mode = 0o777

    def finish_file(self, handle: int, record: Record) -> None:
        """Give a written file its mode and time."""
        kept = 0o755 if record.mode & stat.S_IXUSR else 0o644
        os.fchmod(handle, record.mode & kept | 0o600)
        os.utime(handle, ns=(record.mtime_ns, record.mtime_ns))

    def finish_directory(self, handle: int, record: Record) -> None:
        """Leave a directory as it was made."""

    def finish_link(self, place: int, name: bytes) -> None:
        """Leave a link as it was made."""

    def takes_link(self, target: bytes, depth: int) -> bool:
        """Accept a link whose path stays in the tree: first up, at most to the tree's directory, then down."""
        parts = [part for part in target.split(b"/") if part not in (b"", b".")]
        ups = next((count for count, part in enumerate(parts) if part != b".."), len(parts))
        return not target.startswith(b"/") and ups <= depth and b".." not in parts[ups:]

    def clear(self, place: int, name: bytes, allowance: Allowance, depth: int = 0) -> None:
        """Remove the entry ``name`` of the directory ``place``.

        Raises:
            OSError: It can't be removed; a directory never is.
        """
        os.unlink(name, dir_fd=place)


class Receiver:
    """Receives files and writes them below a directory."""

    def __init__(self, stream: Stream, allowance: Allowance, rules: IntoSandbox) -> None:
        self._stream = stream
        self._allowance = allowance
        self._rules = rules

    def receive_tree(self, directory: int) -> None:
        """Write a tree's contents into an existing directory, given by its descriptor.

        Raises:
            TransferError: The other side failed, or the tree exceeds a limit.
            SandboxGoneError: The sandbox has ended.
            StreamEndedError: The other side has ended.
            OSError: An entry can't be written.
        """
        places = [directory]
        unfinished: list[tuple[Record, bool]] = []
        try:
            while (record := self._stream.receive()).kind != END:
                if record.kind == LEAVE and unfinished:
                    entered, is_new = unfinished.pop()
                    if is_new:
                        self._rules.finish_directory(places[-1], entered)
                    os.close(places.pop())
                    continue
                name, _, rest = record.body.partition(b"\0")
                self._check_name(name)
                if record.kind == ENTER:
                    self._allowance.check_depth(len(places), name)
                    handle, is_new = self._enter(places[-1], name)
                    places.append(handle)
                    unfinished.append((record, is_new))
                elif record.kind == FILE:
                    self.write_file(places[-1], name, record)
                elif record.kind == LINK:
                    self._make_link(places[-1], name, rest, len(unfinished))
                elif record.kind == HARD_LINK:
                    self._make_hard_link(places, name, rest)
                else:
                    raise TransferError("the other side of the transfer sends records out of order")
        finally:
            for handle in places[1:]:
                os.close(handle)

    def _check_name(self, name: bytes) -> None:
        self._allowance.take_entry(name)
        if name in (b"", b".", b"..") or b"/" in name or len(name) > MAX_NAME_BYTES:
            raise TransferError(f"{show(name)} is no name for a file")

    def _enter(self, place: int, name: bytes) -> tuple[int, bool]:
        """Return a directory's descriptor, and whether it was made."""
        try:
            return os.open(name, DIRECTORY, dir_fd=place), False
        except FileNotFoundError:
            pass
        except OSError as exc:
            if exc.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            self._rules.clear(place, name, self._allowance)
        os.mkdir(name, self._rules.directory_mode, dir_fd=place)
        return os.open(name, DIRECTORY, dir_fd=place), True

    def write_file(self, place: int, name: bytes, record: Record) -> None:
        """Write the file whose content follows its record. A failure leaves no file.

        Raises:
            TransferError: The other side failed, or the file exceeds a limit.
            StreamEndedError: The other side has ended.
            OSError: It can't be written.
        """
        handle = self._make_file(place, name)
        if handle < 0:
            self.write_content(handle, record)
            return
        try:
            self.write_content(handle, record)
            self._rules.finish_file(handle, record)
        except BaseException:
            os.unlink(name, dir_fd=place)
            raise
        finally:
            os.close(handle)

    def _make_file(self, place: int, name: bytes) -> int:
        """Return a new file's descriptor; -1 if a directory of that name stays."""
        try:
            return os.open(name, _NEW_FILE, 0o600, dir_fd=place)
        except FileExistsError:
            try:
                self._rules.clear(place, name, self._allowance)
            except IsADirectoryError:
                return -1
        return os.open(name, _NEW_FILE, 0o600, dir_fd=place)

    def write_content(self, handle: int, record: Record) -> None:
        """Write the content that follows a file's record; with the handle -1 it is discarded.

        Raises:
            TransferError: The other side failed, or the file exceeds a limit.
            StreamEndedError: The other side has ended.
            OSError: It can't be written.
        """
        self._allowance.take_bytes(record.size, record.body)
        end = -1
        while (segment := self._stream.receive()).kind == SEGMENT:
            self._allowance.check()
            if segment.size + len(segment.body) > record.size:
                raise TransferError(f"the other side sends more of {show(record.body)} than it announced")
            rest, offset = memoryview(segment.body), segment.size
            while rest and handle >= 0:
                count = os.pwrite(handle, rest, offset)
                rest, offset = rest[count:], offset + count
            end = max(end, offset)
        if segment.kind != FILE_END or segment.size > record.size:
            raise TransferError("the other side of the transfer sends records out of order")
        if handle >= 0 and segment.size != end:
            os.ftruncate(handle, segment.size)

    def _make_link(self, place: int, name: bytes, target: bytes, depth: int) -> None:
        if not self._rules.takes_link(target, depth):
            return
        try:
            os.symlink(target, name, dir_fd=place)
        except FileExistsError:
            try:
                self._rules.clear(place, name, self._allowance)
            except IsADirectoryError:
                return
            os.symlink(target, name, dir_fd=place)
        self._rules.finish_link(place, name)

    def _make_hard_link(self, places: list[int], name: bytes, target: bytes) -> None:
        """Make a hard link to an earlier file of the tree; if there is none, make nothing."""
        *way, last = target.split(b"/")
        opened = [places[0]]
        try:
            for part in way:
                opened.append(os.open(part, DIRECTORY, dir_fd=opened[-1]))
            if not stat.S_ISREG(os.stat(last, dir_fd=opened[-1], follow_symlinks=False).st_mode):
                return
            here = os.open(b".", DIRECTORY, dir_fd=places[-1])
            opened.append(here)
            with contextlib.suppress(FileNotFoundError):
                self._rules.clear(here, name, self._allowance)
            os.link(last, name, src_dir_fd=opened[-2], dst_dir_fd=here, follow_symlinks=False)
        except OSError as exc:
            if exc.errno not in (*SWAPPED, errno.EISDIR):
                raise
        finally:
            for handle in opened[1:]:
                os.close(handle)
