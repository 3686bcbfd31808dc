"""Read a Dockerfile before a builder does: its base images, and whether it has here-documents."""

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
_ARGUMENT = re.compile(r"([A-Za-z_]\w*)(?:=(\"(?:\\.|[^\"])*\"|'[^']*'|\S*))?")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^}]*))?\})")
_MOUNT_FROM = re.compile(r"[=,]from=([^,]+)")
_HEREDOC_WORD = re.compile(r"\d*<<(-?)\s*([^<]+)")
_SHELL_WORD = re.compile(r"""(?:<<\s*|"(?:\\.|[^"\\])*"|'[^']*'|\\.|\S)++""", re.DOTALL)
"""A word as a shell splits it, with its quotes. ``<<`` includes the blanks after it, as in BuildKit."""
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its continuation lines joined, without comments among them."""

    text: str
    places: Sequence[int]
    """Index in the file of each character of ``text``."""

    heredocs: int

    @property
    def name(self) -> str:
        """Its first word, in capitals."""
        return self.text.split(maxsplit=1)[0].upper()

    def words(self) -> list[tuple[str, int]]:
        """Return the words after the name, each with its index in ``text``."""
        return [(found[0], found.start()) for found in re.finditer(r"\S+", self.text)][1:]

    def span(self, start: int, length: int) -> tuple[int, int]:
        """Return the start and the end in the file of a part of ``text``."""
        return self.places[start], self.places[start + length - 1] + 1


@dataclass(frozen=True, slots=True)
class _Reference:
    """One mention of a base image."""

    name: str
    start: int
    end: int
    """Indices in the file."""


def base_references(text: str) -> list[str]:
    """Return the images that a Dockerfile starts or copies from, each once, without its own stages and scratch."""
    return list(dict.fromkeys(reference.name for reference in _references(text)))


def replace_references(text: str, replacements: dict[str, str]) -> str:
    """Return the Dockerfile with each base image under another name. Line numbers stay as they are."""
    for reference in reversed(list(_references(text))):
        written = text[reference.start : reference.end]
        # A name that is itself continued on another line keeps the lines after it where they are.
        new = replacements.get(reference.name, reference.name) + "\\\n" * written.count("\n")
        text = text[: reference.start] + new + text[reference.end :]
    return text


def alternative(environment_dir: Path) -> str:
    """Return a hint at the Dockerfile beside a prebuilt image that is not available; empty if there is none."""
    path = environment_dir / "Dockerfile"
    return f"{path} can be built instead: the sandbox option build_dockerfile=true" if path.is_file() else ""


def has_heredoc(text: str) -> bool:
    """Return whether an instruction carries a here-document (``RUN <<EOF``), which old builders can't read."""
    return any(instruction.heredocs for instruction in instructions(text))


# --- references ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM."""

    base: str
    """Its base, with variables replaced: an image, ``scratch``, or an earlier stage in lower case."""

    name: str
    """Its name in lower case; empty if it has none."""


def stages(text: str) -> list[Stage]:
    """Return a Dockerfile's stages in order."""
    return [stage for stage, _ in _stages(text)]


def _stages(text: str) -> Iterator[tuple[Stage, _Reference]]:
    names: list[str] = []
    arguments: dict[str, str] = {}
    for instruction in instructions(text):
        if instruction.name == "ARG" and not names:
            _read_arguments(instruction.text, arguments)
        rest = [word for word in instruction.words() if not word[0].startswith("--")]
        if instruction.name != "FROM" or not rest:
            continue
        written, start = rest[0]
        base = _expand(written.strip("\"'"), arguments)
        match [word.lower() for word, _ in rest]:
            case [_, "as", name, *_]:
                pass
            case _:
                name = ""
        is_known = base.lower() in (*names, "scratch")
        yield Stage(base.lower() if is_known else base, name), _reference(instruction, base, start, len(written))
        names.append(name)


def _references(text: str) -> Iterator[_Reference]:
    begun = iter(_stages(text))
    names: list[str] = []
    for instruction in instructions(text):
        if instruction.name == "FROM":
            if (found := next(begun, None)) is not None:
                if found[0].base not in (*names, "scratch"):
                    yield found[1]
                names.append(found[0].name)
            continue
        for name, start in copied_from(instruction):
            # Only the builder knows the value of a variable in a stage.
            if not is_stage(name, names) and "$" not in name:
                yield _reference(instruction, name, start, len(name))


def is_stage(name: str, names: Sequence[str]) -> bool:
    """Return whether a name to copy from is the name or number of a stage in ``names``."""
    return name.lower() in names or (name.isdecimal() and int(name) < len(names))


def copied_from(instruction: Instruction) -> Iterator[tuple[str, int]]:
    """Yield the names from which an instruction's options copy, each with its index in the instruction's text."""
    name = instruction.name
    for word, start in instruction.words():
        if not word.startswith("--"):
            return
        if name in ("COPY", "ADD") and word.startswith("--from="):
            yield word.removeprefix("--from="), start + len("--from=")
        elif name == "RUN" and word.startswith("--mount=") and (found := _MOUNT_FROM.search(word)):
            yield found[1], start + found.start(1)


def _reference(instruction: Instruction, name: str, start: int, length: int) -> _Reference:
    return _Reference(name, *instruction.span(start, length))


def _read_arguments(text: str, arguments: dict[str, str]) -> None:
    for found in _ARGUMENT.finditer(text, len("ARG") + len(text) - len(text.lstrip())):
        value = found[2]
        if value is None:
            continue
        quote = value[0] if value[:1] in ("'", '"') else ""
        bare = value.strip(quote) if quote else value
        arguments[found[1]] = bare if quote == "'" else _expand(bare, arguments)


def _expand(value: str, arguments: dict[str, str]) -> str:
    def item(found: re.Match[str]) -> str:
        current, operator, word = arguments.get(found[1] or found[2]), found[3] or "", found[4] or ""
        is_set = current is not None and (current != "" or not operator.startswith(":"))
        if operator.endswith("+"):
            return word if is_set else ""
        return (current or "") if is_set else word

    return _VARIABLE.sub(item, value)


# --- instructions ----------------------------------------------------------------------------------------------------


def instructions(text: str) -> Iterator[Instruction]:
    """Read a file as BuildKit's parser does.

    Source: frontend/dockerfile/parser of BuildKit. A file that BuildKit refuses is read as well as possible: the
    builder will report the error.
    """
    lines = [(found.start(), found[0].rstrip("\r\n")) for found in re.finditer(r"[^\n]+\n?|\n", text)]
    escape = _escape_character(line for _, line in lines)
    continued = re.compile(rf"(?<!{re.escape(escape)}){re.escape(escape)}[ \t]*$")
    number = 0
    while number < len(lines):
        pieces: list[str] = []
        places: list[int] = []
        is_open = True
        while is_open and number < len(lines):
            start, line = lines[number]
            number += 1
            is_blank = not line.strip("\ufeff \t\v\f\r") or line.lstrip().startswith("#")
            if is_blank:
                is_open = bool(pieces)
                continue
            end = continued.search(line)
            kept = line[: end.start()] if end else line
            pieces.append(kept)
            places += range(start, start + len(kept))
            is_open = end is not None
        logical = "".join(pieces).replace("\ufeff", " ")
        if not logical.strip():
            continue
        ends = _skip_heredocs(logical, [line for _, line in lines[number:]])
        number += sum(ends)
        yield Instruction(logical, places, len(ends))


def _escape_character(lines: Iterator[str]) -> str:
    """Return the character that continues a line: a backslash, or that of a directive in the first lines."""
    for line in lines:
        directive = _DIRECTIVE.fullmatch(line.lstrip("\ufeff"))
        if directive is None:
            break
        if directive[1].lower() == "escape":
            return directive[2]
    return "\\"


def _skip_heredocs(logical: str, following: list[str]) -> list[int]:
    """Return for each here-document of an instruction the number of following lines that belong to it."""
    ends: list[int] = []
    for name, is_chomped in _heredocs(logical):
        rest = following[sum(ends) :]
        found = [number for number, line in enumerate(rest) if (line.lstrip("\t") if is_chomped else line) == name]
        if not found:
            break  # no line ends it, so it is no here-document: an arithmetic shift, for example
        ends.append(found[0] + 1)
    return ends


def _heredocs(logical: str) -> Iterator[tuple[str, bool]]:
    """Yield the word that ends each here-document of an instruction, and whether tabs before it are ignored."""
    head = _NAME_AND_REST.fullmatch(logical)
    assert head is not None
    name, rest = head[1].upper(), head[2] or ""
    if name == "ONBUILD" and rest:
        yield from _heredocs(rest)
    if name not in _WITH_HEREDOCS or "<<" not in rest or is_json(rest):
        return
    for word in _SHELL_WORD.findall(rest):
        if (found := _HEREDOC_WORD.fullmatch(word)) and (ending := _unquoted(found[2])):
            yield ending, found[1] == "-"


def _unquoted(word: str) -> str:
    """Return one word without its quotes; empty if it is not exactly one word."""
    try:
        words = shlex.split(word)
    except ValueError:
        return ""
    return words[0] if len(words) == 1 else ""


def is_json(rest: str) -> bool:
    """Return whether an instruction's arguments, after its flags, are a JSON list."""
    arguments = re.sub(r"^(--\S+\s+)*", "", rest)
    try:
        return isinstance(json.loads(arguments), list)
    except ValueError:
        return False


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
