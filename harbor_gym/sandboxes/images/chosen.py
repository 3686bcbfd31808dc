"""A Dockerfile of another name, with arguments, or up to a stage: as ``docker build -f FILE --build-arg … --target …``.

The text is rewritten line by line, so that errors name the file's own lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harbor_gym.sandboxes.dockerfile import Instruction, escape_character, instructions
from harbor_gym.sandboxes.errors import TaskError
from harbor_gym.sandboxes.images.recipe import named_values, read


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an image is built of its context, beyond the context's own Dockerfile."""

    file: Path | None = None
    """The Dockerfile; None is the context's own."""

    inline: str | None = None
    """Its text instead of a file."""

    arguments: tuple[tuple[str, str], ...] = ()
    """Names and values of build arguments."""

    target: str | None = None
    """The stage that is built last; None is the last one."""


def chosen(text: str, recipe: Recipe) -> str:
    """Return a Dockerfile's text with a recipe's arguments, up to its target.

    Raises:
        TaskError: There is no such stage, a value has a line break, or the text can't be read.
    """
    return _with_arguments(_up_to(text, recipe.target), dict(recipe.arguments))


def _up_to(text: str, target: str | None) -> str:
    if target is None:
        return text
    stages = read(text).stages
    names = [stage.name for stage in stages]
    if target.lower() in names:
        number = len(names) - 1 - names[::-1].index(target.lower())
    elif target.isdecimal() and int(target) < len(stages):
        number = int(target)
    else:
        raise TaskError(f"the Dockerfile has no stage {target!r}")
    if number + 1 == len(stages):
        return text
    return "".join(text.splitlines(keepends=True)[: stages[number + 1].start.line - 1])


def _with_arguments(text: str, arguments: dict[str, str]) -> str:
    if not arguments:
        return text
    for name, value in arguments.items():
        if "\n" in value:
            raise TaskError(f"the build argument {name} has a line break")
    escape = escape_character(text)
    lines = text.splitlines(keepends=True)
    found = list(instructions(text))
    ends = [following.line - 1 for following in found[1:]] + [len(lines)]
    for instruction, end in zip(found, ends, strict=True):
        if instruction.name == "ARG":
            first = instruction.line - 1
            lines[first:end] = [_argument(instruction, arguments, escape) + "\n", *["\n"] * (end - first - 1)]
    return "".join(lines)


def _argument(instruction: Instruction, arguments: dict[str, str], escape: str) -> str:
    words: list[str] = []
    for name, value in named_values(instruction, escape, needs_value=False):
        if name in arguments:
            quoted = arguments[name].replace("'", "'\"'\"'")
            words.append(f"{name}='{quoted}'")
        else:
            words.append(name if value is None else f"{name}={value}")
    return f"ARG {' '.join(words)}"
