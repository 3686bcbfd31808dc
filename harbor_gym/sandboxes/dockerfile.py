"""Read a Dockerfile into instructions, as BuildKit's parser does (frontend/dockerfile/parser)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OWNER_OF_BUILD = "{{.DefaultMountsFilePath}}"
"""The template of ``buildah inspect`` that shows the path which :func:`owned_build` has set."""

_DIRECTIVE = re.compile(r"\s*#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*")
_NAME_AND_REST = re.compile(r"\s*(\S+)(?:\s+(.*))?", re.DOTALL)
_FLAG = re.compile(r"""--(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|\S)*(?:\s+|$)""", re.DOTALL)
_HEREDOC_WORD = re.compile(r"\d*<<(-?)\s*([^<]+)")
_SHELL_WORD = re.compile(r"""(?:<<\s*|"(?:\\.|[^"\\])*"|'[^']*'|\\.|\S)++""", re.DOTALL)
"""A word as a shell splits it, with its quotes. ``<<`` includes the blanks after it, as in BuildKit."""
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")


@dataclass(frozen=True, slots=True)
class Document:
    """A here-document."""

    name: str
    """The word that ends it."""

    content: str
    """Its lines, without leading tabs after ``<<-``."""

    source: str
    """Its lines as they are written, with the one that ends it."""

    is_expanded: bool
    """Whether variables in it are replaced: no part of its word is quoted."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its continuation lines joined, without comments among them."""

    text: str
    line: int
    """The number of its first line, from 1."""

    documents: Sequence[Document] = ()

    @property
    def name(self) -> str:
        """Its first word, in capitals."""
        return self.text.split(maxsplit=1)[0].upper()

    @property
    def flags(self) -> list[tuple[str, str]]:
        """Name and value of each option, without quotes; a value that is not given is empty."""
        return [_flag(word) for word in self._split()[0]]

    @property
    def rest(self) -> str:
        """What follows the name and the options."""
        return self._split()[1]

    @property
    def json(self) -> list[str] | None:
        """The words of the rest if it is written as JSON."""
        return words_of_json(self.rest)

    @property
    def shown(self) -> str:
        """Its text for messages: bytes of another encoding than UTF-8 are replaced."""
        return self.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def _split(self) -> tuple[list[str], str]:
        found = _NAME_AND_REST.fullmatch(self.text)
        assert found is not None
        rest = (found[2] or "").strip()
        words: list[str] = []
        while (flag := _FLAG.match(rest)) is not None and self.name != "ONBUILD":
            words.append(flag[0].strip())
            rest = rest[flag.end() :]
            if words[-1] == "--":
                break
        return words, rest


def _flag(word: str) -> tuple[str, str]:
    name, _, value = re.sub(r"""\\(.)|["']""", r"\1", word).removeprefix("--").partition("=")
    return name, value


def alternative(environment_dir: Path) -> str:
    """Return a hint at the Dockerfile beside a prebuilt image that is not available; empty if there is none."""
    path = environment_dir / "Dockerfile"
    return f"{path} can be built instead: the sandbox option build_dockerfile=true" if path.is_file() else ""


def words_of_json(text: str) -> list[str] | None:
    """Return the words of a JSON list of words; None if the text is none."""
    if not text.startswith("["):
        return None
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def instructions(text: str) -> Iterator[Instruction]:
    """Read the instructions of a file.

    Source: frontend/dockerfile/parser of BuildKit. A here-document that no line ends is none: it may be a shift.
    """
    written = re.findall(r"[^\n]+\n?|\n", text.removeprefix("\ufeff"))
    lines = [line.rstrip("\r\n") for line in written]
    escape = escape_character(text)
    continued = re.compile(rf"(?<!{re.escape(escape)}){re.escape(escape)}[ \t]*$")
    number = 0
    while number < len(lines):
        pieces: list[str] = []
        first = number
        is_open = True
        while is_open and number < len(lines):
            line = lines[number]
            number += 1
            is_blank = not line.strip(" \t\v\f\r") or line.lstrip().startswith("#")
            if is_blank:
                is_open = bool(pieces)
                continue
            first = first if pieces else number
            end = continued.search(line)
            pieces.append(line[: end.start()] if end else line)
            is_open = end is not None
        logical = "".join(pieces).strip()
        if not logical:
            continue
        documents = _documents(logical, lines[number:], written[number:])
        number += sum(document.source.count("\n") + 1 for document in documents)
        yield Instruction(logical, first, documents)


def escape_character(text: str) -> str:
    """Return the character that continues a line: a backslash, or that of a directive in the first lines."""
    for line in text.removeprefix("\ufeff").splitlines():
        directive = _DIRECTIVE.fullmatch(line)
        if directive is None:
            break
        if directive[1].lower() == "escape":
            return directive[2]
    return "\\"


def _documents(logical: str, following: list[str], written: list[str]) -> list[Document]:
    """Return the here-documents of an instruction, from the lines that follow it, without and with their ends."""
    found: list[Document] = []
    start = 0
    for name, is_chomped, is_expanded in _heredocs(logical):
        rest = following[start:]
        ends = [number for number, line in enumerate(rest) if (line.lstrip("\t") if is_chomped else line) == name]
        if not ends:
            break  # no line ends it, so it is no here-document: an arithmetic shift, for example
        body = written[start : start + ends[0]]
        content = "".join(line.lstrip("\t") if is_chomped else line for line in body)
        found.append(Document(name, content, "".join(body) + rest[ends[0]], is_expanded))
        start += ends[0] + 1
    return found


def _heredocs(logical: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield for each here-document of an instruction the word that ends it, whether tabs are ignored, and whether it
    is expanded."""
    head = _NAME_AND_REST.fullmatch(logical)
    assert head is not None
    name, rest = head[1].upper(), head[2] or ""
    if name == "ONBUILD" and rest:
        yield from _heredocs(rest)
    if name not in _WITH_HEREDOCS or "<<" not in rest or Instruction(logical, 0).json is not None:
        return
    for word in _SHELL_WORD.findall(rest):
        if (found := _HEREDOC_WORD.fullmatch(word)) and (ending := _unquoted(found[2])):
            yield ending, found[1] == "-", ending == found[2]


def _unquoted(word: str) -> str:
    """Return one word without its quotes; empty if it is not exactly one word."""
    try:
        words = shlex.split(word)
    except ValueError:
        return ""
    return words[0] if len(words) == 1 else ""


def owned_build(folder: str) -> tuple[str, ...]:
    """Return the command for ``buildah bud`` by which a reaper knows the owner of a killed build's leftovers.

    buildah names a build's working containers itself, without labels; the only setting of the caller that each keeps is
    the path of the file of default mounts. An empty one is made in ``folder``, which is also for temporary files.

    Args:
        folder: The build's temporary folder, with its owner in its name.
    """
    path = Path(folder) / "mounts.conf"
    path.touch()
    return "env", f"TMPDIR={folder}", "buildah", "bud", "--default-mounts-file", str(path)
