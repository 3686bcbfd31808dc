"""The fake's file system: folders and files of text or bytes, in memory."""

import fnmatch
from collections.abc import Collection
from pathlib import Path, PurePosixPath

type Tree = dict[str, tuple[bytes | None, int]]
"""Relative path → content and permissions. A folder's content is None, and it comes before its entries."""


class FakeFiles:
    """Absolute paths → contents. A folder's content is None. There are no links and no owners.

    It is for one thread. A transfer reads and writes this machine's files in another one, a whole :data:`Tree` at a
    time.
    """

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

    def insert(self, tree: Tree, target: str) -> None:
        """Write the result of :func:`read_tree`: a file at ``target``, or a folder's contents below it."""
        for name, (content, mode) in tree.items():
            path = str(PurePosixPath(target) / name)
            if content is None:
                self.make_dir(path)
            else:
                self.write(path, content, mode=mode)

    def tree(self, path: str, exclude: Collection[str] = ()) -> Tree:
        """Return a folder's contents as they are now, but for names that match a pattern."""
        return {
            name: (self._entries[PurePosixPath(path) / name], self.mode(str(PurePosixPath(path) / name)))
            for name in self.below(path)
            if not any(fnmatch.fnmatch(part, pattern) for part in PurePosixPath(name).parts for pattern in exclude)
        }


def read_tree(source: Path) -> Tree:
    """Return a file of this machine, or a folder with its contents; symbolic links are followed."""
    if source.is_file():
        return {".": (source.read_bytes(), source.stat().st_mode & 0o777)}
    tree: Tree = {".": (None, 0o755)}
    for child in source.iterdir():
        tree |= {str(PurePosixPath(child.name) / name): entry for name, entry in read_tree(child).items()}
    return tree


def write_tree(tree: Tree, target: Path) -> None:
    """Write a folder's contents to a folder of this machine, which is made."""
    target.mkdir(parents=True, exist_ok=True)
    for name, (content, mode) in tree.items():
        path = target / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.write_bytes(content)
            path.chmod(mode)
