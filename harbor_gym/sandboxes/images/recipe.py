"""Rewrite a task's Dockerfile so that buildah makes the same image from it as ``docker build``.

buildah makes a WORKDIR only when the next RUN or COPY needs it, and a COPY makes it for root. Its VOLUME makes a
directory and changes later RUNs, while Docker only records it; here a label does. Its CMD and ENTRYPOINT ignore SHELL.
A stage ignores the ARGs of its base stage, and keeps that stage's CMD with a new ENTRYPOINT. Names of stages are
case-sensitive. ``--link`` and relative targets of mounts are not supported. Source: the dispatcher of BuildKit's
frontend.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harbor_gym.errors import TaskError
from harbor_gym.sandboxes import dockerfile
from harbor_gym.sandboxes.dockerfile import Instruction

EMPTY = "harbor-gym-empty"
"""The empty build context: copying it makes the target directory, and does not change an existing one."""

VOLUME_LABEL = "harbor-gym.volume."
"""Begins the name of a label whose value is a VOLUME: see :func:`volumes_of`."""

_ROOT = ("", "0", "root", "0:0", "root:root", "0:root", "root:0")
_USES_WORKDIR = ("RUN", "COPY", "ADD")
_LINK = re.compile(r"--link(=\w+)?")
_TARGET = re.compile(r"(?<=[=,])(?:target|dst|destination)=(\"?)([^,\"]+)\1(?=,|$)")


@dataclass(frozen=True, slots=True)
class StageStart:
    """The state at the start of a stage: the USER, WORKDIR, SHELL and ONBUILD of its base."""

    user: str = ""
    workdir: str = "/"
    shell: tuple[str, ...] = ()
    """Empty is Docker's default."""

    triggers: tuple[str, ...] = ()
    """The instruction of each ONBUILD."""

    arguments: tuple[str, ...] = ()
    """The argument of each ARG of an earlier stage."""


ROOT_AT_THE_TOP = StageStart()


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


def adapted(text: str, bases: Mapping[str, StageStart]) -> str:
    """Return a Dockerfile from which buildah makes the image that BuildKit makes from this one.

    Args:
        text: The task's Dockerfile.
        bases: The start of each base image, by its name in the Dockerfile.

    Raises:
        TaskError: buildah can't execute an instruction as BuildKit does.
    """
    for edit in sorted(_edits(text, bases), key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def volumes_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the VOLUMEs in the configuration of an image that buildah made from an adapted Dockerfile."""
    labels: dict[str, str] = config.get("Labels") or {}
    noted = (value for name, value in labels.items() if name.startswith(VOLUME_LABEL))
    return tuple(dict.fromkeys(volume for volume in (*(config.get("Volumes") or ()), *noted) if volume))


def _edits(text: str, bases: Mapping[str, StageStart]) -> Iterator[_Edit]:
    stages = dockerfile.stages(text)
    ends: dict[str, StageStart] = {"scratch": ROOT_AT_THE_TOP, **bases}
    volumes = itertools.count()
    for number, instructions in enumerate(_by_stage(text)):
        names = [stage.name for stage in stages[:number]]
        stage = stages[number]
        yield from _lower_case(instructions[0], names)
        state = ends.get(stage.base, ROOT_AT_THE_TOP)
        triggers = list(dockerfile.instructions("\n".join(state.triggers)))
        state = replace(state, triggers=())
        if state.arguments:
            at = instructions[0].places[-1] + 1
            yield _Edit(at, at, "".join(f"\nARG {argument}" for argument in state.arguments))
        run = [*triggers, *instructions[1:]]
        for place, instruction in enumerate(run):
            if place < len(triggers):
                needs_help = _needs_help(run[place + 1 :], state.user, is_last=number == len(stages) - 1)
                state = _triggered(instruction, state, stage.base, needs_help=needs_help)
                continue
            match instruction.name:
                case "USER":
                    state = replace(state, user=_rest(instruction))
                case "WORKDIR":
                    is_last = number == len(stages) - 1
                    is_made = _rest(instruction) == "/"
                    if not is_made and _needs_help(run[place + 1 :], state.user, is_last=is_last):
                        at = instruction.places[0]
                        yield _Edit(at, at, _made(instruction, state.user))
                    state = replace(state, workdir=posixpath.join(state.workdir, _rest(instruction).strip("\"'")))
                case "SHELL":
                    state = replace(state, shell=_words(_rest(instruction)))
                case "ARG":
                    state = replace(state, arguments=(*state.arguments, _rest(instruction)))
                case "ONBUILD":
                    state = replace(state, triggers=(*state.triggers, _rest(instruction)))
                case "CMD" | "ENTRYPOINT" if state.shell and not dockerfile.is_json(_rest(instruction)):
                    words = json.dumps([*state.shell, _rest(instruction)])
                    yield _written(instruction, (instruction.text, 0), f"{instruction.name} {words}")
                case "VOLUME":
                    yield _written(instruction, (instruction.text, 0), _noted(instruction, volumes))
                case "COPY" | "ADD" | "RUN":
                    yield from _of_flags(instruction, names, state.workdir)
                case _:
                    pass
            if (
                instruction.name == "ENTRYPOINT"
                and stage.base in names
                and "CMD" not in (item.name for item in run[:place])
            ):
                yield _Edit(instruction.places[0], instruction.places[0], "CMD []\n")
        ends[stage.name] = state


def _triggered(instruction: Instruction, state: StageStart, base: str, *, needs_help: bool) -> StageStart:
    """Return the state after an instruction of the base's ONBUILD, which buildah runs without changes.

    Raises:
        TaskError: buildah executes it differently from Docker.
    """
    rest = _rest(instruction)
    match instruction.name:
        case "USER":
            return replace(state, user=rest)
        case "SHELL":
            return replace(state, shell=_words(rest))
        case "WORKDIR" if not needs_help:
            return replace(state, workdir=posixpath.join(state.workdir, rest.strip("\"'")))
        case "WORKDIR":
            pass
        case "CMD" | "ENTRYPOINT" if state.shell and not dockerfile.is_json(rest):
            pass
        case _:
            return state
    raise TaskError(
        f"{base} has ONBUILD {instruction.text.strip()}, which local sandboxes build otherwise than Docker: write it "
        "in the Dockerfile that is built on it, or use --env docker"
    )


def _by_stage(text: str) -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for instruction in dockerfile.instructions(text):
        if instruction.name == "FROM" and any(not word.startswith("--") for word, _ in instruction.words()):
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def _rest(instruction: Instruction) -> str:
    return instruction.text.split(maxsplit=1)[1].strip() if instruction.words() else ""


def _words(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text)) if dockerfile.is_json(text) else ()


# --- WORKDIR ---------------------------------------------------------------------------------------------------------


def _needs_help(following: Sequence[Instruction], user: str, *, is_last: bool) -> bool:
    """Return whether buildah would not make this WORKDIR, or make it for another user.

    The last one of the final stage is made when a sandbox starts.
    """
    if user not in _ROOT:
        return True
    for instruction in following:
        if instruction.name in _USES_WORKDIR:
            return False
        if instruction.name in ("WORKDIR", "USER"):
            return True
    return not is_last


def _made(instruction: Instruction, user: str) -> str:
    owner = "0:0" if user in _ROOT else user
    return f"COPY --chown={owner} --from={EMPTY} {json.dumps(['/', f'{_rest(instruction)}/'])}\n"


# --- VOLUME ----------------------------------------------------------------------------------------------------------


def _noted(instruction: Instruction, numbers: Iterator[int]) -> str:
    """Return a LABEL in place of a VOLUME, for which buildah only expands the variables."""
    rest = _rest(instruction)
    words = _words(rest) or tuple(rest.split())
    values = [f'"{word}"' if len(word.split()) > 1 else word for word in words]
    return " ".join(["LABEL", *(f"{VOLUME_LABEL}{next(numbers)}={value}" for value in values)])


# --- names and flags -------------------------------------------------------------------------------------------------


def _lower_case(instruction: Instruction, names: Sequence[str]) -> Iterator[_Edit]:
    """Yield the edits that write the stages' names in a FROM in lower case."""
    words = [word for word in instruction.words() if not word[0].startswith("--")]
    if words[0][0].lower() in names:
        yield _written(instruction, words[0], words[0][0].lower())
    if len(words) > 2 and words[1][0].lower() == "as":
        yield _written(instruction, words[2], words[2][0].lower())


def _of_flags(instruction: Instruction, names: Sequence[str], workdir: str) -> Iterator[_Edit]:
    for name, start in dockerfile.copied_from(instruction):
        if name.lower() in names:
            yield _written(instruction, (name, start), name.lower())
    for word, start in instruction.words():
        if not word.startswith("--"):
            return
        if instruction.name != "RUN" and _LINK.fullmatch(word):
            yield _written(instruction, (word, start), "")
        elif word.startswith("--mount=") and (found := _TARGET.search(word)) and not _is_absolute(found[2]):
            if "$" in workdir:
                raise TaskError(
                    f"{word}: local sandboxes can't tell where this relative target is, for its WORKDIR has a "
                    "variable: write it out, or use --env docker"
                )
            target = posixpath.join(workdir, found[2])
            yield _written(instruction, (found[2], start + found.start(2)), target)


def _is_absolute(target: str) -> bool:
    return target.startswith(("/", "$"))


def _written(instruction: Instruction, word: tuple[str, int], text: str) -> _Edit:
    return _Edit(*instruction.span(word[1], len(word[0])), text)
