"""The file of a dump: the processes and files of a running episode's sandbox, from which exact copies begin.

Its first line is a JSON object, with the dump's record; an archive of the processes' images and the files follows.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from harbor_gym._runtime.files import replacing, why_unreadable
from harbor_gym.errors import UsageError

DUMP_FORMAT = 1
"""Version of a dump's file."""

_ID_CHARS = 16
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class OpenedDump(NamedTuple):
    """A dump's file, which its holder closes."""

    record: Any
    """JSON values."""

    packed: int
    """A descriptor; its offset is at the archive."""


class DumpFile:
    """A dump in a file, which has no name until the dump is written.

    Args:
        path: The file.
        digest: SHA-256 of its content, as hexadecimal digits.
        named_by: The snapshot's file, which has this digest.
        unnamed: The open file, instead of a path.
    """

    def __init__(
        self, path: Path | None, digest: str, *, named_by: Path | None = None, unnamed: BinaryIO | None = None
    ) -> None:
        self.path = path
        self.digest = digest
        self._named_by = named_by
        self._unnamed = unnamed

    def __getstate__(self) -> dict[str, Any]:
        """Let a dump with a name be pickled.

        Raises:
            UsageError: It has none.
        """
        if self._unnamed is not None:
            raise UsageError("a snapshot with a dump can't be pickled or copied until it is written: give its path")
        return vars(self)

    @classmethod
    def make(cls, record: Any, pack: Callable[[int], None]) -> Self:
        """Return a dump in a file without a name, in the folder for temporary files.

        Args:
            record: JSON values.
            pack: Appends the archive to the file of a descriptor.
        """
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # the dump's holder closes it
        try:
            file.write(json.dumps({"format": DUMP_FORMAT, "record": record}).encode() + b"\n")
            pack(file.fileno())
            file.seek(0)
            return cls(None, hashlib.file_digest(file, "sha256").hexdigest(), unnamed=file)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Free the file, if it has no name. Idempotent."""
        if self._unnamed is not None:
            self._unnamed.close()

    def write(self, snapshot: Path) -> Path:
        """Write the dump beside a snapshot, whole or not at all; return its path, which is no earlier dump's."""
        path = snapshot.with_name(f"{snapshot.name}.{self.digest[:_ID_CHARS]}.dump")
        if path != self.path:
            with self._open() as source, replacing(path) as partial:
                partial.unlink(missing_ok=True)
                with os.fdopen(
                    os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
                ) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        return path

    def open(self) -> OpenedDump:
        """Open the dump for a copy.

        Raises:
            UsageError: It can't be read, is damaged or has another format; or another user could have changed it.
        """
        with self._open() as file:
            name = self.path or "the dump"
            if hashlib.file_digest(file, "sha256").hexdigest() != self.digest:
                raise UsageError(f"{name} is damaged or cut short: it has not the digest that its snapshot names")
            file.seek(0)
            line = file.readline()
            try:
                header = json.loads(line)
                found, record = header["format"], header["record"]
            except (ValueError, KeyError, TypeError) as exc:
                raise UsageError(f"{name} is no dump: {why_unreadable(exc)}") from exc
            if found != DUMP_FORMAT:
                raise UsageError(f"{name} has the format {found}, and this version reads {DUMP_FORMAT}")
            packed = os.dup(file.fileno())
        os.lseek(packed, len(line), os.SEEK_SET)
        return OpenedDump(record, packed)

    @contextlib.contextmanager
    def _open(self) -> Generator[BufferedReader]:
        if self._unnamed is not None:
            if self._unnamed.closed:
                raise UsageError("the snapshot was closed, and its dump with it")
            with Path(f"/proc/self/fd/{self._unnamed.fileno()}").open("rb") as file:
                yield file
            return
        assert self.path is not None
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(self.path, flags), "rb") as file:
                _require_own(self.path, os.fstat(file.fileno()))
                if self._named_by is not None:
                    _require_own(self._named_by, self._named_by.stat())
                yield file
        except OSError as exc:
            raise UsageError(f"{self.path} can't be read: {why_unreadable(exc)}") from exc


def remove_dumps(snapshot: Path, *, but: Path | None = None) -> None:
    """Remove the dumps that were written beside a snapshot, half written ones included."""
    ours = re.compile(rf"\.?{re.escape(snapshot.name)}\.[0-9a-f]{{{_ID_CHARS}}}(\.\d+\.partial)?\.dump")
    with contextlib.suppress(OSError):
        for path in snapshot.parent.iterdir():
            if ours.fullmatch(path.name) and path != but:
                path.unlink(missing_ok=True)


def _require_own(path: Path, state: os.stat_result) -> None:
    """Check that nobody else could have changed a file. What is restored from it runs code, and has rights.

    Raises:
        UsageError: Somebody could have, or it is no file.
    """
    if not stat.S_ISREG(state.st_mode):
        raise UsageError(f"{path} is no file")
    if state.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to another user, and a dump is trusted like code: use your own")
    if state.st_mode & _OTHERS_MAY_WRITE:
        raise UsageError(f"{path} can be changed by others, and a dump is trusted like code: make a new one")
