"""The fake's file system: folders and files of text or bytes, in memory."""

import fnmatch
from collections.abc import Collection
from pathlib import Path, PurePosixPath


class FakeFiles:
    """Absolute paths → contents. A folder's content is None. There are no links and no owners."""

    def __init__(self) -> None:
        self._entries: dict[PurePosixPath, bytes | None] = {PurePosixPath("/"): None}
        self._modes: dict[PurePosixPath, int] = {}

    def is_file(self, path: str) -> bool:
        """Return whether there is a file."""
        return self._entries.get(PurePosixPath(path)) is not None

    def is_dir(self, path: str) -> bool:
        """Return whether there is a folder."""
        where = PurePosixPath(path)
        return where in self._entries and self._entries[where] is None

    def read(self, path: str) -> bytes:
        """Return a file's content.

        Raises:
            FileNotFoundError: There is none.
            IsADirectoryError: It is a folder.
        """
        if self.is_dir(path):
            raise IsADirectoryError(f"{path}: Is a directory")
        content = self._entries.get(PurePosixPath(path))
        if content is None:
            raise FileNotFoundError(f"{path}: No such file or directory")
        return content

    def text(self, path: str) -> str | None:
        """Return a file's text, None where there is no file."""
        return self.read(path).decode(errors="replace") if self.is_file(path) else None

    def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file, replacing it; its folders are made.

        Raises:
            IsADirectoryError: There is a folder of that name.
            NotADirectoryError: There is a file where a folder should be.
        """
        if self.is_dir(path):
            raise IsADirectoryError(f"{path}: Is a directory")
        where = PurePosixPath(path)
        self.make_dir(str(where.parent))
        self._entries[where] = content
        self._modes[where] = mode

    def mode(self, path: str) -> int:
        """Return a file's permissions."""
        return self._modes.get(PurePosixPath(path), 0o755)

    def set_mode(self, path: str, mode: int) -> None:
        """Set a file's permissions: they are kept, and forbid nothing."""
        self._modes[PurePosixPath(path)] = mode

    def make_dir(self, path: str) -> None:
        """Make a folder and those above it.

        Raises:
            NotADirectoryError: There is a file in the way.
        """
        where = PurePosixPath(path)
        for folder in (*reversed(where.parents), where):
            if self.is_file(str(folder)):
                raise NotADirectoryError(f"{folder}: Not a directory")
            self._entries[folder] = None

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all below; nothing happens where there is none."""
        where = PurePosixPath(path)
        for entry in [entry for entry in self._entries if entry == where or where in entry.parents]:
            if entry != PurePosixPath("/"):
                del self._entries[entry]

    def below(self, path: str) -> list[str]:
        """Return everything below a folder, relative to it, by name."""
        where = PurePosixPath(path)
        return sorted(str(entry.relative_to(where)) for entry in self._entries if where in entry.parents)

    def upload(self, source: Path, target: str) -> None:
        """Copy a file, or a folder's contents, from this machine."""
        if source.is_file():
            self.write(target, source.read_bytes(), mode=source.stat().st_mode & 0o777)
            return
        self.make_dir(target)
        for child in source.iterdir():
            self.upload(child, str(PurePosixPath(target) / child.name))

    def download(self, source: str, target: Path, exclude: Collection[str] = ()) -> None:
        """Copy a folder's contents to a folder of this machine, but for names that match a pattern."""
        target.mkdir(parents=True, exist_ok=True)
        for name in self.below(source):
            if any(fnmatch.fnmatch(part, pattern) for part in PurePosixPath(name).parts for pattern in exclude):
                continue
            path = str(PurePosixPath(source) / name)
            if self.is_dir(path):
                (target / name).mkdir(parents=True, exist_ok=True)
            else:
                (target / name).write_bytes(self.read(path))
                (target / name).chmod(self.mode(path))
