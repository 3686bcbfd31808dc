"""Write the Dockerfile from which buildah makes the image that BuildKit makes from a task's.

buildah gets nothing that it could read in another way than Docker: the reached stages alone, by number; variables
replaced; sources as they lie in a :class:`~harbor_gym.sandboxes.images.context.Context`; here-documents as files. It
makes a WORKDIR only when the next RUN needs it, its VOLUME changes later RUNs, and its ENV hides an ARG: these are
written in other words. Source: frontend/dockerfile/dockerfile2llb of BuildKit.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from harbor_gym.sandboxes.dockerfile import Instruction, instructions
from harbor_gym.sandboxes.errors import TaskUnsupportedError
from harbor_gym.sandboxes.images.context import DELETION, Context, changed_mode, is_deletion, is_octal
from harbor_gym.sandboxes.images.ignored import read_patterns
from harbor_gym.sandboxes.images.recipe import PLATFORM, Recipe, expanded, mount_options, named_values, unreadable
from harbor_gym.sandboxes.images.words import expand

EMPTY = "harbor-gym-empty"
"""The empty build context: copying it makes the target directory, and does not change an existing one."""

CONTEXT = "harbor-gym-context"
"""The task's build context by a name: buildah takes special mode bits only from a context that has one."""

MADE = "harbor-gym-made"
"""The build context of :attr:`Context.made`."""

PICKED = "harbor-gym-picked"
"""The build context of what :class:`LookNeeded` asks to copy out of images."""

_OF_BOTH = {"from", "chown", "chmod", "link", "exclude"}
_OPTIONS = {"COPY": _OF_BOTH, "ADD": _OF_BOTH | {"checksum"}, "RUN": {"mount", "network"}}
"""Options that buildah has, too. ``ADD --from`` is none of Docker's, and does no harm."""

_UMASK = 0o022
_DIRECTORY_MODE = 0o755
_EVERYWHERE = ("/", "/bin", "/etc", "/opt", "/root", "/tmp", "/usr", "/usr/bin", "/usr/local", "/usr/local/bin", "/var")
"""Directories that are in every image that a task can be played in."""

_DOCKERS_SHELL = ("/bin/sh", "-c")
_DOCKERS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT = ("", "0", "root", "0:0", "root:root", "0:root", "root:0")
_REMOTE = re.compile(r"(https?|git|ssh|ftp)://|git@")
_PORTS = re.compile(r"(\d+)-(\d+)(/\w+)?")
_LONGEST_LINE = 1 << 15
"""In characters. buildah's parser refuses lines of 64 KiB."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_STEP = re.compile(r"(?:\[(\d+)/\d+\] )?STEP (\d+)/\d+: ")
"""buildah's line for the start of an instruction, with the stage's number if there are several."""

_NO_NAME = re.compile(r'looking up UID/GID for "([^"]*)": determining run ([ug])id: ')
"""buildah's error for a name in ``--chown`` that the image does not know."""


@dataclass(frozen=True, slots=True)
class StageStart:
    """The state at the start of a stage: the USER, WORKDIR, SHELL, ONBUILD and ENV of its base."""

    user: str = ""
    workdir: str = "/"
    shell: tuple[str, ...] = ()
    """Empty is Docker's default."""

    triggers: tuple[str, ...] = ()
    """The instruction of each ONBUILD."""

    env: tuple[str, ...] = ()
    """``NAME=value`` each."""


ROOT_AT_THE_TOP = StageStart()


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction for buildah."""

    text: str
    origin: Instruction
    """The task's instruction that it was made of."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What buildah builds."""

    stages: tuple[tuple[Line, ...], ...]
    volumes: tuple[str, ...]
    """The VOLUMEs that the Dockerfile names, which buildah does not get to know."""

    @property
    def text(self) -> str:
        """The Dockerfile for buildah."""
        return "".join(f"{_folded(line.text)}\n" for stage in self.stages for line in stage)

    def origin(self, line: str) -> Instruction | None:
        """Return the task's instruction that a line of buildah's output says to begin; None if it says nothing."""
        found = _STEP.match(line)
        if found is None:
            return None
        lines = self.stages[int(found[1] or 1) - 1]
        return lines[int(found[2]) - 1].origin if int(found[2]) <= len(lines) else None


class LookNeeded(Exception):
    """What follows depends on the files of an image: which directories of a path are there, or the files themselves."""

    def __init__(
        self, key: str, path: str = "", *, of: str | int | None = None, pick: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(key, path)
        self.key = key
        """What to answer under: the instruction's place."""
        self.path = path
        """An absolute path; empty with ``pick``."""
        self.pick = pick
        """The arguments of :func:`harbor_gym.sandboxes.images.context.pick`; the answer is its result in PICKED."""
        self.of = of
        """The image: buildah's name of one that is there, or a stage's number; None is the stage so far."""
        self.plan = Plan((), ())
        """What makes the image; empty for one that is there."""


@dataclass(slots=True)
class _State:
    user: str
    workdir: str
    shell: tuple[str, ...]
    env: dict[str, str]
    """What a RUN sees: ENV and ARG, the later one of a name."""

    config: dict[str, str]
    """What the image has: ENV alone."""

    triggers: tuple[Instruction, ...]
    volumes: tuple[str, ...] = ()


def planned(
    recipe: Recipe,
    bases: Mapping[str, StageStart],
    references: Mapping[str, str],
    context: Context,
    *,
    unknown: Collection[tuple[int, str]] = (),
    directories: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Write the Dockerfile for buildah, and the files that it copies.

    Args:
        recipe: The task's Dockerfile.
        bases: The start of each base image, by its name in the Dockerfile.
        references: buildah's name of each base image, without its ONBUILD.
        context: The build context.
        unknown: Users (``u:NAME``) and groups (``g:NAME``) of ``--chown`` that the image does not know, each with the
            line of the instruction: Docker then takes root, and the group of the user.
        directories: The answers to each :class:`LookNeeded`: the directory that is there, or what was picked.

    Raises:
        LookNeeded: An answer is needed.
        TaskError: An instruction can't be read, or buildah can't execute it as Docker does.
        OSError: A file of the context can't be read.
    """
    ends: dict[int, _State] = {}
    written: list[tuple[Line, ...]] = []
    reached = recipe.reached
    volumes: tuple[str, ...] = ()
    for number in reached:
        writer = _Writer(recipe, number, reached, references, context, frozenset(unknown), directories)
        try:
            writer.write(bases, ends)
        except LookNeeded as exc:
            so_far = (*written, tuple(writer.lines)) if exc.of is None else ()
            exc.plan = Plan(tuple(written[: reached.index(exc.of) + 1]) if isinstance(exc.of, int) else so_far, ())
            raise
        ends[number] = writer.state
        written.append(tuple(writer.lines))
        volumes = writer.state.volumes
    return Plan(tuple(written), tuple(dict.fromkeys(volumes)))


def unknown_name(output: str) -> str:
    """Return the user (``u:NAME``) or group (``g:NAME``) of a ``--chown`` for which a build failed; empty if none."""
    found = _NO_NAME.search(output)
    if found is None:
        return ""
    user, _, group = found[1].partition(":")
    return f"{found[2]}:{user if found[2] == 'u' else group}"


@dataclass(slots=True)
class _Writer:
    recipe: Recipe
    number: int
    reached: Sequence[int]
    references: Mapping[str, str]
    context: Context
    unknown: frozenset[tuple[int, str]]
    directories: Mapping[str, str]
    state: _State = field(init=False)
    lines: list[Line] = field(default_factory=list[Line])
    has_cmd: bool = False
    copies: list[int] = field(default_factory=list[int])
    """The lines of the COPYs and ADDs since the last RUN, which may make accounts."""

    @property
    def is_last(self) -> bool:
        return self.number == self.reached[-1]

    def write(self, bases: Mapping[str, StageStart], ends: Mapping[int, _State]) -> None:
        stage = self.recipe.stages[self.number]
        base = self.references.get(stage.base, stage.base) if stage.parent is None else f"s{stage.parent}"
        platform = f"--platform={stage.platform} " if stage.platform else ""
        self.emit(stage.start, f"FROM {platform}{base} AS s{self.number}")
        if stage.parent is not None:
            below = ends[stage.parent]
            self.state = replace(below, env={**below.env, **below.config}, config=dict(below.config))
            inherited = {name: value for name, value in self.state.env.items() if name not in self.state.config}
            for name, value in inherited.items():
                self.emit(stage.start, _argument(name, value))
            triggers = below.triggers
        else:
            start = bases.get(stage.base, ROOT_AT_THE_TOP)
            config = dict(entry.split("=", 1) for entry in start.env if "=" in entry)
            self.state = _State(start.user, start.workdir, start.shell, dict(config), config, ())
            if "PATH" not in config:
                self.state.config["PATH"] = self.state.env["PATH"] = _DOCKERS_PATH
                self.emit(stage.start, f"ENV PATH={_quoted(_DOCKERS_PATH)}")
            found = [instruction for trigger in start.triggers for instruction in instructions(trigger)]
            triggers = tuple(replace(instruction, line=stage.start.line) for instruction in found)
        self.state.triggers = ()
        run = [*triggers, *stage.instructions]
        for place, instruction in enumerate(run):
            self.step(instruction, run[place + 1 :])

    def emit(self, origin: Instruction, text: str) -> None:
        self.lines.append(Line(text, origin))

    def step(self, instruction: Instruction, following: Sequence[Instruction]) -> None:
        rest = instruction.rest
        for flag, _ in instruction.flags if instruction.name in _OPTIONS else ():
            if flag not in _OPTIONS[instruction.name]:
                raise TaskUnsupportedError(
                    f"Dockerfile, line {instruction.line}: buildah has no such option: {instruction.name} --{flag}. "
                    "Do without it, or use --env docker"
                )
        match instruction.name:
            case "ENV" | "LABEL":
                pairs = self.pairs(instruction)
                self.emit(
                    instruction, " ".join([instruction.name, *(f"{_key(n)}={_quoted(v)}" for n, v in pairs.items())])
                )
                if instruction.name == "ENV":
                    self.state.env.update(pairs)
                    self.state.config.update(pairs)
            case "ARG":
                self.argument(instruction)
            case "USER":
                self.state.user = self.expand(rest, instruction)
                self.emit(instruction, f"USER {_bare(self.state.user)}")
            case "WORKDIR":
                self.workdir(instruction, following)
            case "SHELL":
                self.state.shell = tuple(self.json(instruction))
                self.emit(instruction, f"SHELL {json.dumps(self.state.shell)}")
            case "CMD" | "ENTRYPOINT":
                self.command(instruction)
            case "VOLUME":
                volumes = [self.expand(word, instruction) for word in instruction.json or rest.split()]
                self.state.volumes = (*self.state.volumes, *filter(None, volumes))
            case "EXPOSE":
                ports = " ".join(self.expand(word, instruction) for word in rest.split())
                self.emit(instruction, " ".join(["EXPOSE", *(port for word in ports.split() for port in _ports(word))]))
            case "STOPSIGNAL":
                self.emit(instruction, f"STOPSIGNAL {_bare(self.expand(rest, instruction))}")
            case "HEALTHCHECK" | "MAINTAINER":
                self.emit(instruction, instruction.text)
            case "ONBUILD":
                self.trigger(instruction)
            case "COPY" | "ADD":
                self.copy(instruction)
            case "RUN":
                self.run(instruction)
            case name:
                raise unreadable(instruction, f"{name} is no instruction")

    # --- words

    def expand(self, word: str, instruction: Instruction) -> str:
        return expanded(word, instruction, self.state.env, self.recipe.escape)

    def pairs(self, instruction: Instruction) -> dict[str, str]:
        found = named_values(instruction, self.recipe.escape, needs_value=True)
        return {self.expand(name, instruction): self.expand(value or "", instruction) for name, value in found}

    def json(self, instruction: Instruction) -> list[str]:
        words = instruction.json
        if not words:
            raise unreadable(instruction, f"{instruction.name} takes a JSON list of words", instruction.rest)
        return words

    # --- settings

    def argument(self, instruction: Instruction) -> None:
        for name, value in named_values(instruction, self.recipe.escape, needs_value=False):
            new = self.recipe.arguments.get(name) if value is None else self.expand(value, instruction)
            if new is None:
                continue
            self.state.env[name] = new
            if name not in self.state.config:
                self.emit(instruction, _argument(name, new))

    def workdir(self, instruction: Instruction, following: Sequence[Instruction]) -> None:
        parts = posixpath.join(self.state.workdir, self.expand(instruction.rest, instruction)).split("/")
        path = _rooted("/".join(parts))
        self.require_name(path, instruction)
        # Docker makes a directory that ".." leaves again, too.
        left = [_rooted("/".join(parts[:place])) for place, part in enumerate(parts) if part == ".."]
        made = [place for place in left if place not in (self.state.workdir, "/")]
        made += [path] if self._must_make(following, path) else []
        owner = "0:0" if self.state.user in _ROOT else self.state.user
        for place in made:
            self.emit(instruction, f"COPY --chown={_bare(owner)} --from={EMPTY} {_list('/', f'{place}/')}")
        self.state.workdir = path
        self.emit(instruction, f"WORKDIR {_bare(path)}")

    def _must_make(self, following: Sequence[Instruction], path: str) -> bool:
        """Return whether buildah would not make this WORKDIR, or make it for another user.

        The last one of the final stage is made when a sandbox starts.
        """
        if path == "/":
            return False
        if self.state.user not in _ROOT:
            return True
        for instruction in following:
            if instruction.name in ("RUN", "WORKDIR", "USER", "COPY", "ADD"):
                return instruction.name != "RUN"
        return not self.is_last

    def require_name(self, path: str, instruction: Instruction) -> None:
        """Refuse to make a file that the image's layer would have as a deletion.

        Raises:
            TaskUnsupportedError: A name in the path begins with ``.wh.``.
        """
        if any(part.startswith(DELETION) for part in path.split("/")):
            raise TaskUnsupportedError(
                f"Dockerfile, line {instruction.line}: {path}: a name that begins with {DELETION} is a deletion in an "
                "image's layers: take another name, or use --env docker"
            )

    def absolute(self, path: str) -> str:
        return _rooted(posixpath.join(self.state.workdir, path))

    def command(self, instruction: Instruction) -> None:
        words = instruction.json
        if words is None:
            words = [*(self.state.shell or _DOCKERS_SHELL), instruction.rest]
        # buildah keeps the CMD of the stage below with a new ENTRYPOINT.
        is_on_stage = self.recipe.stages[self.number].parent is not None
        if instruction.name == "ENTRYPOINT" and is_on_stage and not self.has_cmd:
            self.emit(instruction, "CMD []")
        self.has_cmd = self.has_cmd or instruction.name == "CMD"
        self.emit(instruction, f"{instruction.name} {json.dumps(words)}")

    def trigger(self, instruction: Instruction) -> None:
        trigger = replace(instruction, text=instruction.rest)
        self.state.triggers = (*self.state.triggers, trigger)
        if self.is_last:
            documents = "".join(f"\n{document.source}" for document in instruction.documents)
            self.emit(instruction, f"ONBUILD {instruction.rest}{documents}")

    # --- RUN

    def run(self, instruction: Instruction) -> None:
        self.copies.clear()
        flags: list[str] = []
        words = instruction.json
        if words is None:
            text = instruction.rest
            only = re.fullmatch(r"\d*<<-?\s*\S+", text) if instruction.documents else None
            if only and instruction.documents[0].content.startswith("#!"):
                document = instruction.documents[0]
                name = self.context.write([document], [document.content], mode="755")
                flags.append(f"--mount=type=bind,from={MADE},source=/{name},target=/dev/pipes")
                text = f"/dev/pipes/{document.name}"
            elif only:
                text = instruction.documents[0].content
            else:
                text += "".join(f"\n{document.content}{document.name}" for document in instruction.documents)
            words = [*(self.state.shell or _DOCKERS_SHELL), text]
        secrets: list[str] = []
        for flag, value in instruction.flags:
            expanded = self.expand(_in_quotes(value), instruction)
            if flag == "mount" and (variable := dict(mount_options(expanded)).get("env")):
                secrets.append(f"{variable}=")
            flags += (
                self.mount(expanded, instruction)
                if flag == "mount"
                else [f"--{flag}={expanded}" if value else f"--{flag}"]
            )
        # buildah lets an ENV hide an ARG of its name, where in Docker the later one counts.
        hidden = {name: value for name, value in self.state.config.items() if self.state.env[name] != value}
        self.set(instruction, {name: self.state.env[name] for name in hidden})
        rest = instruction.rest
        # A variable whose secret is not given is empty.
        words = ["env", *secrets, *words] if secrets else words
        is_plain = instruction.json is None and not (instruction.documents or secrets)
        is_plain = is_plain and "<<" not in rest and rest[-1:] != "\\"
        command = rest if is_plain else json.dumps(words).replace("<", r"\u003c")
        self.emit(instruction, " ".join(["RUN", *flags, command]))
        self.set(instruction, hidden)

    def set(self, instruction: Instruction, values: Mapping[str, str]) -> None:
        if values:
            self.emit(instruction, " ".join(["ENV", *(f"{_key(n)}={_quoted(v)}" for n, v in values.items())]))

    def mount(self, value: str, instruction: Instruction) -> list[str]:
        options = dict(mount_options(value))
        kind = options.setdefault("type", "bind")
        if kind in ("secret", "ssh"):
            # A build has neither: Docker leaves the mount out, too.
            if options.get("required", "false").lower() in ("", "1", "t", "true"):
                raise unreadable(instruction, f"no {kind} is given to a task's build, and this one is required", kind)
            return []
        if "target" in options:
            options["target"] = self.absolute(options["target"])
        if kind == "tmpfs" and (size := options.pop("size", "")):
            found = _SIZE.fullmatch(size)
            if found is None:
                raise unreadable(instruction, f"{size} is no size", size)
            options["tmpfs-size"] = str(int(float(found[1]) * 1024 ** " kmgtp".index(found[2].lower() or " ")))
        if "from" in options:
            options["from"] = self.source(options["from"])
        words = [
            name if not text and name in ("readonly", "readwrite") else f"{name}={text}"
            for name, text in options.items()
        ]
        quoted = [f'"{word}"' if set(word) & set(' "') else word for word in words]
        return [f"--mount={','.join(quoted)}"]

    def source(self, name: str) -> str:
        number = self.recipe.numbered(name, self.number)
        return self.references.get(name, name) if number is None else f"s{number}"

    # --- COPY and ADD

    def copy(self, instruction: Instruction) -> None:
        self.copies.append(instruction.line)
        words = instruction.json or instruction.rest.split()
        if len(words) < 2:
            raise unreadable(instruction, f"{instruction.name} needs a source and a destination")
        target = self.expand(words[-1], instruction)
        is_folder = target.endswith("/") or posixpath.basename(target) in ("", ".", "..")
        path = self.absolute(target)
        self.require_name(path, instruction)
        target = f"{path}/" if is_folder and path != "/" else path
        sources = [
            self.expand(word, instruction)
            for word in words[:-1]
            if instruction.json is not None or not _is_document(word, instruction)
        ]
        flags = [(name, self.expand(_in_quotes(value), instruction)) for name, value in instruction.flags]
        given = dict(flags)
        passed = [f"--chown={_bare(self.owner(given['chown']))}"] if given.get("chown") else []
        others = [f"--{name}={value}" if value else f"--{name}" for name, value in flags if name not in _OF_BOTH]
        mode, excluded = given.get("chmod", ""), [value for name, value in flags if name == "exclude"]
        is_one = len(sources) + len(instruction.documents) == 1 and not target.endswith("/")
        if is_one and "from" in given:
            is_other = is_octal(mode) and _mode_of_new(mode) != _DIRECTORY_MODE
            is_one = not is_other or self.is_file(given["from"], sources[0])
        elif is_one and not instruction.documents:
            found = self.context.resolve(sources[0])
            is_one = found is None or not found.is_dir()
        above = posixpath.dirname(target) if is_one else path
        if is_octal(mode) and "from" in given:
            self.make_parents(instruction, above, mode, passed)
        if "from" in given and mode and not is_octal(mode):
            self.copy_picked(instruction, given["from"], target, passed, sources, mode, excluded)
            return
        if "from" in given:
            passed += [f"--chmod={mode}"] if mode else []
            passed += [f"--exclude={value}" for value in excluded]
            patterns = [re.sub(r"\*{2,}", "*", _rooted(source)) for source in sources]
            start = [instruction.name, f"--from={self.source(given['from'])}", *passed, *others]
            self.emit(instruction, f"{' '.join(start)} {_list(*patterns, target)}")
            return
        try:
            is_empty = not any(_REMOTE.match(source) or self.context.find(source) for source in sources)
            if is_octal(mode) and (instruction.documents or not is_empty):
                self.make_parents(instruction, above, mode, passed)
            self.copy_from_context(instruction, sources, target, [*passed, *others], mode, excluded)
        except (ValueError, FileNotFoundError) as exc:
            raise unreadable(instruction, str(exc)) from None

    def is_file(self, stage: str, source: str) -> bool:
        """Return whether a source of ``COPY --from`` is no directory. A pattern counts as a file's."""
        path = _rooted(source)
        if re.search(r"[*?\[]", path):
            return True
        key = f"{self.number} {len(self.lines)} source"
        if key not in self.directories:
            raise LookNeeded(key, path, of=self.image(stage))
        return self.directories[key] != path

    def image(self, stage: str) -> str | int:
        """Return the image that ``--from`` means, for a :class:`LookNeeded`."""
        number = self.recipe.numbered(stage, self.number)
        return self.source(stage) if number is None else number

    def copy_picked(
        self,
        instruction: Instruction,
        stage: str,
        target: str,
        passed: Sequence[str],
        sources: Sequence[str],
        mode: str,
        excluded: Sequence[str],
    ) -> None:
        """Copy files of an image with a symbolic mode, which buildah does not know."""
        key = f"{self.number} {len(self.lines)} files"
        if key not in self.directories:
            try:
                changed_mode(mode)
            except ValueError as exc:
                raise unreadable(instruction, str(exc), "--chmod") from None
            pick = {"sources": sources, "mode": mode, "excluded": excluded}
            raise LookNeeded(key, of=self.image(stage), pick=pick)
        if picked := self.directories[key]:
            self.copy_made(instruction, PICKED, picked, target, passed)

    def copy_made(self, instruction: Instruction, context: str, path: str, target: str, passed: Sequence[str]) -> None:
        """Copy what :meth:`Context.make` returned."""
        target = f"{target.rstrip('/')}/" if path.endswith("/") else target
        self.emit(instruction, f"COPY --from={context} {' '.join([*passed, _list(_literal(f'/{path}'), target)])}")

    def make_parents(self, instruction: Instruction, path: str, mode: str, passed: Sequence[str]) -> None:
        """Make the directories that Docker makes for a COPY, to which it gives the mode of the files, too."""
        new = _mode_of_new(mode)
        above = str(PurePosixPath(self.state.workdir)), *map(str, PurePosixPath(self.state.workdir).parents)
        if new == _DIRECTORY_MODE or path in (*above, *_EVERYWHERE):
            return
        key = f"{self.number} {len(self.lines)}"
        if key not in self.directories:
            raise LookNeeded(key, path)
        if (there := self.directories[key]) != path:
            name = self.context.make_directories(posixpath.relpath(path, there), new)
            words = [*passed, _list(f"/{name}/", f"{there.rstrip('/')}/")]
            self.emit(instruction, f"COPY --from={MADE} {' '.join(words)}")

    def copy_from_context(
        self,
        instruction: Instruction,
        sources: Sequence[str],
        target: str,
        passed: Sequence[str],
        mode: str,
        excluded: Sequence[str],
    ) -> None:
        if sources:
            self.copy_sources(instruction, sources, target, passed, mode, excluded)
        if instruction.documents:
            contents = [
                self.content(document.content, instruction) if document.is_expanded else document.content
                for document in instruction.documents
            ]
            name = self.context.write(instruction.documents, contents, mode=mode)
            names = [posixpath.basename(document.name) for document in instruction.documents]
            places = [_literal(f"/{name}/{file}") for file in names]
            self.emit(instruction, f"COPY --from={MADE} {' '.join([*passed, _list(*places, target)])}")

    def copy_sources(
        self,
        instruction: Instruction,
        sources: Sequence[str],
        target: str,
        passed: Sequence[str],
        mode: str,
        excluded: Sequence[str],
    ) -> None:
        if any(_REMOTE.match(source) for source in sources):
            passed = [*passed, *([f"--chmod={mode}"] if mode else [])]
            words = [_literal(source) for source in sources]
            self.emit(instruction, f"ADD {' '.join([*passed, _list(*words, target)])}")
            return
        found = [path for source in sources for path in self.context.find(source)]
        if any(self.context.has_deletions(path) for path in found):
            excluded = [*excluded, f"**/{DELETION}*"]
            found = [path for path in found if not (target.endswith("/") and is_deletion(path))]
        # No file matches the patterns: Docker makes nothing then.
        for is_unpacked, paths in itertools.groupby(
            found, lambda path: instruction.name == "ADD" and self.context.is_archive(path)
        ):
            group = list(paths)
            if is_unpacked:
                words = [_literal(_rooted(path)) for path in group]
                self.emit(instruction, f"ADD {' '.join([*passed, _list(*words, target)])}")
            elif not mode and not excluded and not any(self.context.is_link(path) for path in group):
                words = [_literal(_rooted(f"{self.context.place}/{path}")) for path in group]
                self.emit(instruction, f"COPY --from={CONTEXT} {' '.join([*passed, _list(*words, target)])}")
            else:
                made = self.context.make(group, mode=mode, excluded=read_patterns(excluded))
                self.copy_made(instruction, MADE, made, target, passed)

    def content(self, text: str, instruction: Instruction) -> str:
        try:
            return expand(text, self.state.env, is_document=True)
        except ValueError as exc:
            raise unreadable(instruction, str(exc)) from None

    def owner(self, value: str) -> str:
        user, _, group = value.partition(":")
        if not user or self.is_unknown(f"u:{user}"):
            user = "0"
        return user if not group or self.is_unknown(f"g:{group}") else f"{user}:{group}"

    def is_unknown(self, name: str) -> bool:
        return any((line, name) in self.unknown for line in self.copies)


# --- text ------------------------------------------------------------------------------------------------------------


def _mode_of_new(mode: str) -> int:
    """Return the mode of a directory that Docker makes for a COPY with an octal ``--chmod``."""
    return int(mode, 8) & 0o777 & ~_UMASK


def _is_document(word: str, instruction: Instruction) -> bool:
    return bool(instruction.documents) and re.match(r"\d*<<", word) is not None


def _in_quotes(value: str) -> str:
    """Return an option's value, which has lost its quotes, as a word for :func:`expand`."""
    return re.sub(r"""(["'\\])""", r"\\\1", value)


def _quoted(value: str) -> str:
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def _argument(name: str, value: str) -> str:
    # buildah refuses another value than its own, which is the same, for the names of the platform.
    return f"ARG {name}" if name in PLATFORM else f"ARG {name}={_quoted(value)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w.-]+", name) else _quoted(name)


def _bare(value: str) -> str:
    return re.sub(r"""(["'\\$])""", r"\\\1", value)


def _rooted(path: str) -> str:
    """Return a path from the root, without dots; normpath keeps two slashes at the beginning."""
    return "/" + posixpath.normpath(f"/{path}").lstrip("/")


def _literal(path: str) -> str:
    """Return a path as a pattern that means it alone."""
    return re.sub(r"([\\*?\[])", r"\\\1", path)


def _list(*words: str) -> str:
    """Return words as JSON, in which buildah finds no variable and no here-document."""
    return json.dumps([_bare(word) for word in words]).replace("<", r"\u003c")


def _ports(word: str) -> list[str]:
    found = _PORTS.fullmatch(word)
    if found is None:
        return [word]
    return [f"{port}{found[3] or ''}" for port in range(int(found[1]), int(found[2]) + 1)]


def _folded(text: str) -> str:
    """Return a line in parts that buildah joins; one part is not continued by accident, and is no comment."""
    parts: list[str] = []
    while len(text) > _LONGEST_LINE and "\n" not in text:
        found = re.compile(r"(?<=[A-Za-z0-9])(?=[A-Za-z0-9])").search(text, _LONGEST_LINE - 2000)
        if found is None:
            break
        parts.append(text[: found.start()])
        text = text[found.start() :]
    return "\\\n".join([*parts, text])
