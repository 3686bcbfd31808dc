"""Read a task's Dockerfile as BuildKit does: its stages, and the images that they need.

Source: frontend/dockerfile/instructions and dockerfile2llb of BuildKit.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from harbor_gym.sandboxes.dockerfile import Instruction, escape_character, instructions
from harbor_gym.sandboxes.errors import TaskError
from harbor_gym.sandboxes.images.words import expand, split_words

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _platform() -> Iterator[tuple[str, str]]:
    machine = os.uname().machine
    architecture = _ARCHITECTURES.get(machine, machine)
    for prefix in ("BUILD", "TARGET"):
        yield f"{prefix}PLATFORM", f"linux/{architecture}"
        yield f"{prefix}OS", "linux"
        yield f"{prefix}ARCH", architecture
        yield f"{prefix}VARIANT", ""


PLATFORM = dict(_platform())
"""The ARGs that a builder gives by itself."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM with the instructions that follow it."""

    start: Instruction
    base: str
    """Its base image, with variables replaced, or ``scratch``."""

    parent: int | None
    """The number of the earlier stage that is its base instead."""

    name: str
    """Its name in lower case; empty if it has none."""

    platform: str
    instructions: tuple[Instruction, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    """A Dockerfile that has been read."""

    stages: tuple[Stage, ...]
    arguments: Mapping[str, str]
    """The ARGs before the first FROM, and the platform's."""

    escape: str

    def numbered(self, name: str, before: int) -> int | None:
        """Return the number of the stage that ``name`` means in stage ``before``; None if it is an image."""
        for number in reversed(range(before)):
            if self.stages[number].name == name.lower() != "":
                return number
        return int(name) if name.isdecimal() and int(name) < before else None

    @property
    def reached(self) -> list[int]:
        """The numbers of the stages that the last one needs, and its own, in order."""
        found: set[int] = set()
        wanted = [len(self.stages) - 1]
        while wanted:
            number = wanted.pop()
            if number not in found:
                found.add(number)
                names = [*_copied_from(self.stages[number])]
                known = (self.numbered(name, number) for name in names)
                wanted += [other for other in known if other is not None]
                parent = self.stages[number].parent
                wanted += [] if parent is None else [parent]
        return sorted(found)

    @property
    def images(self) -> list[str]:
        """The images that the reached stages start or copy from, each once."""
        found: list[str] = []
        for number in self.reached:
            stage = self.stages[number]
            found += [stage.base] if stage.parent is None and stage.base != "scratch" else []
            found += [name for name in _copied_from(stage) if self.numbered(name, number) is None]
        return list(dict.fromkeys(found))


def read(text: str) -> Recipe:
    """Read a Dockerfile.

    Raises:
        TaskError: It can't be read; the message has the line and the column.
    """
    escape = escape_character(text)
    arguments = dict(PLATFORM)
    stages: list[Stage] = []
    for instruction in instructions(text):
        if instruction.name == "FROM":
            stages.append(_stage(instruction, Recipe(tuple(stages), arguments, escape)))
        elif stages:
            stages[-1] = replace(stages[-1], instructions=(*stages[-1].instructions, instruction))
        elif instruction.name == "ARG":
            for name, value in named_values(instruction, escape, needs_value=False):
                if value is not None:
                    arguments[name] = expanded(value, instruction, arguments, escape)
        else:
            raise unreadable(instruction, "no FROM is before it")
    if not stages:
        raise TaskError("the Dockerfile has no FROM: nothing can be built")
    return Recipe(tuple(stages), arguments, escape)


def _stage(instruction: Instruction, recipe: Recipe) -> Stage:
    def value_of(word: str) -> str:
        return expanded(word, instruction, recipe.arguments, recipe.escape)

    match instruction.rest.split():
        case [base]:
            name = ""
        case [base, "as" | "AS" | "As" | "aS", name]:
            pass
        case _:
            raise unreadable(instruction, "FROM takes an image, or an image AS a name")
    image = value_of(base)
    if not image:
        raise unreadable(instruction, "the image's name is empty", base)
    platform = "".join(value_of(value) for flag, value in instruction.flags if flag == "platform")
    number = None if image.isdecimal() else recipe.numbered(image, len(recipe.stages))
    return Stage(instruction, image, number, name.lower(), platform)


def _copied_from(stage: Stage) -> Iterator[str]:
    for instruction in stage.instructions:
        yield from (value for _, value in _sources_of(instruction))


def _sources_of(instruction: Instruction) -> Iterator[tuple[str, str]]:
    """Yield the stages and images from which an instruction's options copy, each with its whole option."""
    if instruction.name not in ("COPY", "ADD", "RUN"):
        return
    for flag, value in instruction.flags:
        if instruction.name == "RUN":
            source = dict(mount_options(value)).get("from", "") if flag == "mount" else ""
        else:
            source = value if flag == "from" else ""
        if "$" in source:
            raise unreadable(
                instruction, "from= takes no variable: name a stage, and use the variable in its FROM", value
            )
        if source:
            yield value, source


def mount_options(value: str) -> list[tuple[str, str]]:
    """Return name and value of each option of a ``--mount``, under one name where several mean the same."""
    names = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly", "rw": "readwrite"}
    words = next(csv.reader([value]), [])
    pairs = [(name.strip().lower(), text) for name, _, text in (word.partition("=") for word in words)]
    return [(names.get(name, name), text) for name, text in pairs]


def named_values(instruction: Instruction, escape: str, *, needs_value: bool) -> list[tuple[str, str | None]]:
    """Return the names of an ARG, ENV or LABEL with their values as they are written; None is not given.

    Raises:
        TaskError: They can't be read.
    """
    words = split_words(instruction.rest, escape)
    if not words:
        raise unreadable(instruction, f"{instruction.name} needs a name")
    if needs_value and "=" not in words[0]:
        return [(words[0], instruction.rest.removeprefix(words[0]).strip())]
    found: list[tuple[str, str | None]] = []
    for word in words:
        name, is_given, value = word.partition("=")
        if needs_value and not is_given:
            raise unreadable(instruction, f"{word} has no '='", word)
        found.append((name, value if is_given else None))
    return found


def expanded(word: str, instruction: Instruction, variables: Mapping[str, str], escape: str) -> str:
    """Do as :func:`~harbor_gym.sandboxes.images.words.expand` for a word of an instruction.

    Raises:
        TaskError: It can't be read; the message has the line and the column.
    """
    try:
        return expand(word, variables, escape=escape)
    except ValueError as exc:
        raise unreadable(instruction, str(exc), word) from None


def unreadable(instruction: Instruction, why: str, word: str = "") -> TaskError:
    """Return the error for an instruction that can't be read, or for one word of it."""
    column = max(instruction.text.find(word), 0) + 1
    return TaskError(
        f"Dockerfile, line {instruction.line}, column {column}: {instruction.shown[:80]}: {why}. "
        "Correct it, or use --env docker"
    )
