"""The texts of a task: those of its files, and those that stand in archives, in git's objects, and as base64 or hex."""

from __future__ import annotations

import base64
import binascii
import bz2
import gzip
import io
import lzma
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

_MOST_FILES = 20_000
_MOST_BYTES = 64 << 20
"""Bytes of one task that are searched, unpacked ones included: a bomb costs no more."""
_LARGEST_FILE = 8 << 20
_LEAST_ENCODED = 24
_LEAST_WRAPPED = 32
"""Characters of an encoded text, and of each of its lines where it is wrapped."""
_DEEPEST = 4
"""Wrappings around a text: base64 of a compressed archive are three."""
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{4}(?:[A-Za-z0-9+/_-]|\\?\n[ \t]*){20,}={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){20,}|(?:\\x[0-9a-fA-F]{2}){10,}")
_OBJECTS = re.compile(r"(?:^|/)objects/(?:[0-9a-f]{2}/[0-9a-f]{38,62}|pack/[^/]+\.pack)$")
_DELTAS = (6, 7)


class Carrier(StrEnum):
    """How a text stands in a task."""

    FILE = "file"
    ARCHIVE = "archive"
    ENCODED = "encoded"
    GIT = "git"


@dataclass(frozen=True, slots=True)
class Content:
    """A text, and where it stands."""

    file: str
    """A path in the task's directory; ``a.tar!b`` is a member of an archive."""

    text: str
    carrier: Carrier = Carrier.FILE
    line: int | None = None
    """The line in the file at which an encoded text begins."""

    @property
    def name(self) -> str:
        """The name of the file or the member alone."""
        return self.file.rpartition("!")[2].rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The name's suffix, with its dot, in small letters."""
        return Path(self.name).suffix.lower()


class TaskContents:
    """A task's texts by folder. Reads the files when they are first asked for; blocks.

    Args:
        task_dir: The task's directory. Links are not followed; pipes and devices are not opened.
    """

    def __init__(self, task_dir: Path) -> None:
        self._root = task_dir.resolve()
        self._left = _MOST_BYTES

    @cached_property
    def files(self) -> list[Content]:
        """The texts of all regular files."""
        return [Content(name, text) for name, data in self._data.items() if (text := _text(data)) is not None]

    @cached_property
    def hidden(self) -> list[Content]:
        """The texts that stand wrapped in the files that a policy may see."""
        seen = [(name, data) for name, data in self._data.items() if is_seen(name)]
        return [found for name, data in seen for found in self._unwrap(name, data, Carrier.FILE, None, 0)]

    @cached_property
    def instruction(self) -> str:
        """The instructions of all steps."""
        return "\n".join(
            found.text for found in self.files if found.name == "instruction.md" and not is_environment(found.file)
        )

    def below(self, folder: str) -> list[Content]:
        """Return the texts of ``tests``, ``solution`` or ``environment``, those of every step included."""
        return [found for found in self.files if is_below(found.file, folder)]

    @cached_property
    def _data(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for folder, folders, names in os.walk(self._root):
            folders.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                if len(found) >= _MOST_FILES or self._left <= 0:
                    return found
                if (data := _read(path)) is not None:
                    self._left -= len(data)
                    found[path.relative_to(self._root).as_posix()] = data
        return found

    def _unwrap(self, name: str, data: bytes, carrier: Carrier, line: int | None, depth: int) -> Iterator[Content]:
        """Yield the texts within ``data``, but not its own."""
        if depth >= _DEEPEST or self._left <= 0:
            return
        for inner, content, how, at in _parts(name, data):
            self._left -= len(content)
            if self._left <= 0:
                return
            kind = how if carrier is Carrier.FILE else carrier
            if (text := _text(content)) is not None:
                yield Content(inner, text, kind, line or at)
            yield from self._unwrap(inner, content, kind, line or at, depth + 1)


def is_below(file: str, folder: str) -> bool:
    """Return whether a path is in a task's folder, or in a step's folder of that name."""
    parts = file.partition("!")[0].split("/")
    return parts[0] == folder or (parts[0] == "steps" and len(parts) > 3 and parts[2] == folder)


def is_environment(file: str) -> bool:
    """Return whether a path is in what a sandbox is made of."""
    return is_below(file, "environment") or is_below(file, "workdir")


def is_seen(file: str) -> bool:
    """Return whether a policy may see the file's content: the image's, a step's, or an instruction's."""
    return is_environment(file) or (file.endswith("instruction.md") and not is_below(file, "tests"))


def line_of(text: str, part: str) -> int:
    """Return the line, from 1, in which ``part`` begins; 1 where it is not found."""
    return text.count("\n", 0, max(text.find(part), 0)) + 1


def _read(path: Path) -> bytes | None:
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE)
    except OSError:
        return None


def _text(data: bytes) -> str | None:
    """Return the text in UTF-8 or UTF-16, with newlines alone; None for binary data."""
    for encoding in ("utf-16",) if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8",):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            return None
        return None if "\0" in text else text.replace("\r\n", "\n")
    return None


def _parts(name: str, data: bytes) -> Iterator[tuple[str, bytes, Carrier, int | None]]:
    """Yield name, content and carrier of each member of an archive, object of git, or encoded run of a text."""
    if _OBJECTS.search(name):
        yield from ((f"{name}!{number}", found, Carrier.GIT, None) for number, found in enumerate(_git_objects(data)))
        return
    try:
        members = list(_members(name, data))
    except (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zlib.error, lzma.LZMAError):
        members = []  # damaged, encrypted or of a kind that Python can't read
    except (tarfile.TarError, zipfile.BadZipFile):
        members = []
    yield from ((inner, found, Carrier.ARCHIVE, None) for inner, found in members)
    if not members and (text := _text(data)) is not None:
        for found in (*_BASE64.finditer(text), *_HEX.finditer(text)):
            first = text.count("\n", 0, found.start()) + 1
            for offset, run in _runs(found[0]):
                if (decoded := _decoded(run)) is not None:
                    yield name, decoded, Carrier.ENCODED, first + offset


def _runs(run: str) -> Iterator[tuple[int, str]]:
    """Yield what may be encoded in a run: its lines, wrapped ones joined; a word may stand on the line before them."""
    lines = re.split(r"\\?\n[ \t]*", run)
    number = 0
    while number < len(lines):
        last = number
        while last + 1 < len(lines) and len(lines[last]) == len(lines[number]) >= _LEAST_WRAPPED:
            last += 1
        for end in {last, last + 1} - {number}:  # a word may stand on the line behind them, too
            joined = "".join(lines[number:end])
            if len(joined) >= _LEAST_ENCODED:
                yield number, joined
        number = last + 1


def _members(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    if data[:4] == b"PK\3\4":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    yield f"{name}!{member.filename}", file.read(_LARGEST_FILE)
        return
    if data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield f"{name}!{member.name}", file.read(_LARGEST_FILE)
        return
    openers = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
    if (opener := openers.get(data[:2])) is not None:
        with opener(io.BytesIO(data)) as file:
            yield f"{name}!", file.read(_LARGEST_FILE)


def _git_objects(data: bytes) -> Iterator[bytes]:
    """Yield the content of a loose object, or of each object of a pack that is no delta of another."""
    if data[:4] != b"PACK":
        if (unpacked := _inflate(data)) is not None:
            yield unpacked[0].partition(b"\0")[2]
        return
    place = 12
    while place < len(data) - 20:
        kind, more = (data[place] >> 4) & 7, data[place] & 0x80
        place += 1
        while more and place < len(data):
            more = data[place] & 0x80
            place += 1
        if kind in _DELTAS:
            if kind == _DELTAS[1]:
                place += 20
            else:
                while place < len(data) and data[place] & 0x80:
                    place += 1
                place += 1
        if (unpacked := _inflate(data[place:])) is None:
            return
        if kind not in _DELTAS:
            yield unpacked[0]
        place += unpacked[1]


def _inflate(data: bytes) -> tuple[bytes, int] | None:
    """Return what is compressed at the beginning of ``data``, and how many bytes it takes there."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(data, _LARGEST_FILE)
    except zlib.error:
        return None
    return content, len(data) - len(stream.unused_data) - len(stream.unconsumed_tail)


def _decoded(run: str) -> bytes | None:
    if run.startswith("\\x"):
        run = run.replace("\\x", "")
    if re.fullmatch(r"[0-9a-fA-F]+", run):
        found = binascii.unhexlify(run) if len(run) % 2 == 0 else b""
        return found if _is_meant(found) else None
    joined = re.sub(r"\\?\s+", "", run).rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        found = base64.b64decode(joined[: len(joined) - (len(joined) % 4 == 1)] + "=" * (-len(joined) % 4))
    except (binascii.Error, ValueError):
        return None
    return found if _is_meant(found) else None


def _is_meant(data: bytes) -> bool:
    """Return whether decoded data are a text or an archive, and not by chance."""
    if data[:2] in (b"\x1f\x8b", b"BZ", b"\xfd7") or data[:4] == b"PK\3\4":
        return True
    text = _text(data)
    return text is not None and len(text) >= 8 and all(char.isprintable() or char in "\n\t" for char in text)
