"""The build context that buildah copies from: without what Docker ignores, and with what an instruction makes anew."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from harbor_gym.sandboxes.dockerfile import Document
from harbor_gym.sandboxes.images.ignored import Patterns, glob_expression, ignored_of, read_patterns

_WILDCARD = re.compile(r"(?<!\\)[*?\[]")
_CLAUSE = re.compile(r"([ugoa]*)((?:[-+=](?:[rwxXst]*|[ugo]))+)")
_ZSTD = b"\x28\xb5\x2f\xfd"
_IGNORE_FILES = (".dockerignore", ".containerignore")
DELETION = ".wh."
"""Beginning of the names by which an image's layer deletes files of other layers. Source: the OCI image layer spec."""

_MOST_LINKS = 40
"""As many links as Linux follows for one path."""


class Context:
    """A task's build context: its files without the ignored ones lie in ``directory``.

    buildah knows ``root``, and finds them in ``place`` there: it reads an ignore file at the root by its own rules.

    Args:
        directory: The task's own, or the root of an image; nothing in it is changed.
        folder: The build's temporary folder.
        is_image: Whether it is an image, which has no ignore file.

    Raises:
        ValueError: The ignore file can't be read.
        OSError: A file of the context can't be read.
    """

    def __init__(self, directory: Path, folder: Path, *, is_image: bool = False) -> None:
        self._made = folder / "made"
        self._made.mkdir()
        self._count = 0
        self._is_image = is_image
        self._what = "image" if is_image else "build context, or is ignored"
        self.directory = self.root = directory
        self.place = ""
        if is_image:
            return
        ignored = ignored_of(directory)
        if ignored.rules or any((directory / name).exists() for name in _IGNORE_FILES):
            self.root, self.place = folder / "context", "files"
            self.directory = self.root / self.place
            self.directory.mkdir(parents=True)
            _copy_below(directory, self.directory, ignored)

    @property
    def made(self) -> Path:
        """The directory of what :meth:`make` and :meth:`write` make."""
        return self._made

    def find(self, source: str) -> list[str]:
        """Return the paths that a source of COPY stands for, relative to the context; a plain name is its own.

        Raises:
            ValueError: The pattern is malformed.
        """
        path = str(PurePosixPath(os.path.normpath(f"/{source}"))).lstrip("/")
        if _WILDCARD.search(path) is None:
            return [path or "."]
        fixed = "".join(
            f"{part}/" for part in itertools.takewhile(lambda part: not _WILDCARD.search(part), path.split("/"))
        )
        if (start := self.resolve(fixed)) is None:
            return []
        found = [start]  # below it no link is followed
        for expression in map(glob_expression, path.removeprefix(fixed).split("/")):
            found = [
                path
                for above in found
                if above.is_dir() and (above == start or not above.is_symlink())
                for path in sorted(above.iterdir())
                if expression.fullmatch(path.name) is not None
            ]
        names = [f"{fixed}{path.relative_to(start)}" for path in found]
        return [name for name in names if self.resolve(name) is not None]

    def resolve(self, path: str) -> Path | None:
        """Return the file that a path leads to; its links stay in the context. None if there is none."""
        found = self.directory
        parts = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        for _ in range(_MOST_LINKS + len(parts)):
            if not parts:
                return found if found == self.directory or os.path.lexists(found) else None
            part = parts.pop()
            if part == "..":
                found = found if found == self.directory else found.parent
                continue
            step = found / part
            if not step.is_symlink():
                found = step
                continue
            target = str(step.readlink())
            found = self.directory if target.startswith("/") else found
            parts += [part for part in reversed(target.split("/")) if part not in ("", ".")]
        return None

    def is_link(self, path: str) -> bool:
        """Return whether a path leads through a link: its target may start at the root of the context."""
        return self.resolve(path) != self.directory / path

    def has_deletions(self, path: str) -> bool:
        """Return whether an image's layer would take a file at or below a path for a deletion."""
        found = self.resolve(path)
        return is_deletion(path) or (found is not None and next(found.rglob(f"{DELETION}*"), None) is not None)

    def is_archive(self, path: str) -> bool:
        """Return whether ADD unpacks this file."""
        found = self.resolve(path)
        if found is None or not found.is_file():
            return False
        with found.open("rb") as file:
            return file.read(len(_ZSTD)) == _ZSTD or tarfile.is_tarfile(found)

    def make_directories(self, path: str, mode: int) -> str:
        """Make the directories of a relative path with a mode; return the name of the one that has them."""
        name, place = self._new()
        parts = PurePosixPath(path).parts
        for count in range(1, len(parts) + 1):
            place.joinpath(*parts[:count]).mkdir()
        for count in range(len(parts), 0, -1):
            place.joinpath(*parts[:count]).chmod(mode)
        return name

    def make(self, sources: Sequence[str], *, mode: str, excluded: Patterns) -> str:
        """Copy sources with other modes or without some files; return what to copy, as a path in :attr:`made`.

        That is a file, or a directory of which to copy the contents, which ends with a slash.

        Args:
            sources: Paths that :meth:`find` returned. Of a directory its contents are copied, as by COPY.
            mode: In octal or symbolic; empty leaves the modes.
            excluded: What is left out below each directory.

        Raises:
            FileNotFoundError: A source does not exist.
            ValueError: The mode can't be read.
        """
        name, place = self._new()
        change = changed_mode(mode)
        for source in sources:
            path = self.resolve(source)
            if path is None:
                raise FileNotFoundError(f"{source} is not in the {self._what}")
            if path.is_dir():
                _copy_below(path, place, excluded, change, keeps_owners=self._is_image)
            else:
                _put(path, place / PurePosixPath(source).name, change)
        first = self.resolve(sources[0])
        is_one = len(sources) == 1 and first is not None and not first.is_dir()
        return f"{name}/{PurePosixPath(sources[0]).name if is_one else ''}"

    def write(self, documents: Sequence[Document], contents: Sequence[str], *, mode: str) -> str:
        """Write here-documents as files; return their directory's name.

        Raises:
            ValueError: The mode can't be read.
        """
        name, place = self._new()
        change = changed_mode(mode)
        for document, content in zip(documents, contents, strict=True):
            path = place / PurePosixPath(document.name).name
            path.write_text(content, encoding="utf-8", errors="surrogateescape", newline="")
            path.chmod(change(0o644, False))
        return name

    def _new(self) -> tuple[str, Path]:
        self._count += 1
        name = str(self._count)
        place = self._made / name
        place.mkdir()
        return name, place


def pick(root: Path, folder: Path, *, sources: Sequence[str], mode: str, excluded: Sequence[str]) -> str:
    """Do as :meth:`Context.make` with an image's files, into a new folder; empty if no file matches the patterns.

    Raises:
        FileNotFoundError: A source does not exist.
        ValueError: A pattern or the mode can't be read.
    """
    folder.mkdir(parents=True)
    image = Context(root, folder, is_image=True)
    found = [path for source in sources for path in image.find(source)]
    return image.make(found, mode=mode, excluded=read_patterns(excluded)) if found else ""


def is_deletion(path: str) -> bool:
    """Return whether an image's layer would take a file of this path for a deletion."""
    return PurePosixPath(path).name.startswith(DELETION)


def changed_mode(mode: str) -> Callable[[int, bool], int]:
    """Return what makes of a file's mode, and whether it is a directory, the mode that ``--chmod`` asks for.

    Raises:
        ValueError: It is neither octal nor symbolic.
    """
    if not mode:
        return lambda old, _: old
    if is_octal(mode):
        number = int(mode, 8)
        return lambda _, __: number
    clauses = [_CLAUSE.fullmatch(clause) for clause in mode.split(",")]
    if not all(clauses):
        raise ValueError(f"--chmod={mode} is no mode: write it in octal, or as in u+x,go-w")
    changes = [(found[1], re.findall(r"([-+=])([^-+=]*)", found[2])) for found in clauses if found is not None]

    def changed(old: int, is_directory: bool) -> int:
        is_executable = is_directory or bool(old & 0o111)
        for who, parts in changes:
            for sign, what in parts:
                old = _changed(old, who, sign, what, is_executable)
        return old

    return changed


def is_octal(mode: str) -> bool:
    """Return whether a mode is written in octal."""
    return re.fullmatch(r"[0-7]{1,5}", mode) is not None and int(mode, 8) <= 0o7777


_SHIFTS = {"u": 6, "g": 3, "o": 0}
_SPECIAL = {"u": stat.S_ISUID, "g": stat.S_ISGID, "o": 0}


def _changed(old: int, who: str, sign: str, what: str, is_executable: bool) -> int:
    # Source: github.com/tonistiigi/dchapes-mode, which is BSD's setmode.
    people = "ugo" if "a" in who else who or "ugo"
    bits = affected = stat.S_ISVTX if "t" in what and set(people) != {"o"} else 0
    for person in people:
        shift = _SHIFTS[person]
        affected |= 0o7 << shift
        if what in _SHIFTS:
            bits |= (old >> _SHIFTS[what] & 0o7) << shift
            continue
        affected |= _SPECIAL[person]
        executable = "x" in what or ("X" in what and is_executable)
        bits |= (4 * ("r" in what) + 2 * ("w" in what) + executable) << shift
        bits |= _SPECIAL[person] if "s" in what else 0
    if sign == "+":
        return old | bits
    return old & ~bits if sign == "-" else old & ~affected | bits


def _copy_below(
    source: Path,
    target: Path,
    left_out: Patterns,
    change: Callable[[int, bool], int] | None = None,
    *,
    keeps_owners: bool = False,
) -> None:
    """Copy what is below a directory; ``keeps_owners``: a copied directory has its owner, as in COPY from a stage."""
    directories: list[PurePosixPath] = []
    for folder, folders, names in os.walk(source, onerror=_refuse):
        relative = os.path.relpath(folder, source)
        passed: set[str] = set()
        for name in (*folders, *names):
            path = PurePosixPath(relative, name)
            if left_out.match(str(path)):
                if left_out.are_plain and name in folders:
                    passed.add(name)
                continue
            for part in (*reversed(path.parents[:-1]), path):
                if (source / part).is_dir() and not (source / part).is_symlink():
                    (target / part).mkdir(exist_ok=True)
                    directories.append(part)
                elif part == path:
                    _put(source / part, target / part, change)
        folders[:] = [name for name in folders if name not in passed]
    for part in reversed(directories):  # not before: an ordinary user can't write to one without its w
        if keeps_owners:
            owner = (source / part).stat()
            os.chown(target / part, owner.st_uid, owner.st_gid)
        shutil.copystat(source / part, target / part)
        if change is not None:
            (target / part).chmod(change(stat.S_IMODE((source / part).stat().st_mode), True))


def _refuse(error: OSError) -> None:
    raise error


def _put(source: Path, target: Path, change: Callable[[int, bool], int] | None = None) -> None:
    """Copy a file or a link. Sockets, FIFOs and devices are left out."""
    status = source.lstat()
    target.unlink(missing_ok=True)
    if stat.S_ISLNK(status.st_mode) or stat.S_ISREG(status.st_mode):
        shutil.copy2(source, target, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode) and change is not None:
        target.chmod(change(stat.S_IMODE(status.st_mode), False))
