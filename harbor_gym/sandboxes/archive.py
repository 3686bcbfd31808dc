"""Directory transfers as tar: packed by whoever owns the files, unpacked so that nothing lands elsewhere."""

from __future__ import annotations

import posixpath
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Self

from harbor_gym.errors import SandboxError

_IN_MEMORY_BYTES = 8 << 20


class Spool:
    """Bytes on their way out of a sandbox: in memory while few, in an unnamed file while many, never beyond a limit."""

    def __init__(self, limit_bytes: int, what: str) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115  # closed by close()
        self._limit = self._room = limit_bytes
        self._what = what

    def add(self, chunk: bytes) -> None:
        """Append a chunk.

        Raises:
            SandboxError: That would be more than the limit.
        """
        self._room -= len(chunk)
        if self._room < 0:
            raise SandboxError(f"can't {self._what}: it is larger than {self._limit >> 20} MiB")
        self._file.write(chunk)

    def reader(self) -> IO[bytes]:
        """Return the bytes as a file that stands at the start. Owned by the spool."""
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        """Drop the bytes."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def pack(source: Path) -> IO[bytes]:
    """Pack a directory's contents into an unnamed file that stands at the start. Links stay links, owners become root.

    Raises:
        FileNotFoundError: ``source`` is no directory.
    """
    if not source.is_dir():
        raise FileNotFoundError(f"{source} is not a directory of this machine")
    packed = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    try:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            # Not the directory itself: one that is there already keeps its owner and mode, as under `docker cp`.
            for child in sorted(source.iterdir()):
                tar.add(child, arcname=child.name, filter=_as_root)
    except BaseException:
        packed.close()
        raise
    packed.flush()
    packed.seek(0)
    return packed


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def unpack(content: Spool, target: Path, limit_bytes: int) -> None:
    """Unpack a sandbox's tar below ``target``, leaving out what would lead elsewhere and what is no file.

    Links come last, so that nothing is ever written through one: ``tarfile``'s own filter was fooled there before
    (CVE-2025-4517 and its kin), and not every Python has the remedy.

    Raises:
        SandboxError: This is no tar, or it would take more than ``limit_bytes``.
    """
    target.mkdir(parents=True, exist_ok=True)
    links: list[tarfile.TarInfo] = []
    try:
        # "r:", not "r:*": what a sandbox sends is not to be decompressed into something large.
        with tarfile.open(fileobj=content.reader(), mode="r:") as tar:
            for member in tar:
                limit_bytes -= member.size
                if limit_bytes < 0:
                    raise SandboxError(f"the sandbox's archive for {target} holds more than it may")
                if member.issym():
                    links.append(member)
                elif not member.isdev():
                    _extract(tar, member, target)
    except tarfile.ReadError as exc:
        raise SandboxError(f"what the sandbox sent for {target} is no archive: {exc}") from exc
    for link in links:
        _make_link(link, target)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    name = PurePosixPath(member.name.lstrip("/"))
    if _leads_through_link(target, name.parent):
        return  # what was there before may have links, too
    if (target / name).is_symlink():
        (target / name).unlink()
    try:
        tar.extract(member, target, filter="data")
    except tarfile.FilterError:
        return
    except KeyError:  # a hard link to a member that was left out
        return


def _make_link(member: tarfile.TarInfo, target: Path) -> None:
    """Make a link whose way stays below ``target``: up first, at most to there, then down."""
    name, to = PurePosixPath(posixpath.normpath(member.name)), PurePosixPath(member.linkname)
    ups = next((count for count, part in enumerate(to.parts) if part != ".."), len(to.parts))
    is_inside = not to.is_absolute() and ".." not in to.parts[ups:] and ups < len(name.parts)
    if name.is_absolute() or ".." in name.parts or not is_inside or _leads_through_link(target, name.parent):
        return
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    if not path.exists():
        path.symlink_to(to)


def _leads_through_link(target: Path, name: PurePosixPath) -> bool:
    path = target
    for part in name.parts:
        path /= part
        if path.is_symlink():
            return True
    return False


def write_file(content: Spool, target: Path, name: str) -> None:
    """Write the bytes to ``target``, whose directory is made if absent, or as ``name`` into it if it is a directory."""
    if target.is_dir():
        target = target / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content.reader(), file)
