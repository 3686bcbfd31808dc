"""A small subset of the shell for in-memory sandboxes. Nothing here runs a process."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from harbor_gym.testing.fake.files import FakeFiles

_TOKEN = re.compile(
    r"""[ \t\r]*(?:(\n|;|&&|\|\||2>&1|2>/dev/null|1?>&2|>>|>)"""
    r"""|((?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s;&|<>'"\\])+)|(\S))""",
    re.DOTALL,
)
_PIECE = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)|([^'"\\]+)""", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+|\?))")
_NOT_FOUND = 127
_DUPLICATIONS = ("2>/dev/null", "2>&1", ">&2", "1>&2")
_ENDS = (";", "\n", "&&", "||")


@dataclass
class Output:
    """A command's output and status."""

    stdout: list[str] = field(default_factory=list[str])
    stderr: list[str] = field(default_factory=list[str])
    code: int = 0
    exited: bool = False
    """Whether it ended by ``exit``, which also ends an interactive shell."""


type Words = list[str]
type Program = Callable[["FakeShell", Words, Output], Awaitable[int]]


class FakeShell:
    """Runs ``;``, ``&&``, ``||``, ``>``, ``>>``, quotes, ``$VARIABLE`` and the commands in ``programs``.

    Args:
        files: The file system.
        cwd: Where commands start.
        env: Variables.
        user: The user that ``whoami`` prints.
        programs: More commands by name.
    """

    def __init__(
        self, files: FakeFiles, cwd: str, env: Mapping[str, str], user: str, programs: Mapping[str, Program]
    ) -> None:
        self.files, self.cwd, self.env, self.user = files, cwd, dict(env), user
        self.programs = {**_PROGRAMS, **programs}
        self.code = 0

    async def run(self, script: str) -> Output:
        """Run a script to its end, or to ``exit``."""
        output = Output()
        simple: Words = []
        skip = False
        for operator, word, unknown in [*_TOKEN.findall(script), (";", "", "")]:
            if unknown:
                return Output(stderr=[f"bash: the fake's shell does not know {unknown!r}\n"], code=2)
            token = operator or word
            if token not in _ENDS:
                simple.append(token)
                continue
            if simple and not skip:
                try:
                    self.code = await self._simple(simple, output)
                except ShellExit as exc:
                    output.code, output.exited = exc.code, True
                    return output
            simple = []
            skip = (token == "&&" and self.code != 0) or (token == "||" and self.code == 0)
        output.code = self.code
        return output

    def path(self, name: str) -> str:
        """Return the absolute path of ``name`` in this shell."""
        parts: list[str] = []
        for part in (PurePosixPath(self.cwd) / name).parts[1:]:
            parts = parts[:-1] if part == ".." else [*parts, part]
        return "/" + "/".join(parts)

    async def _simple(self, tokens: Words, output: Output) -> int:
        words: Words = []
        redirections: list[tuple[str, str]] = []
        rest = iter(tokens)
        for token in rest:
            if token in (">", ">>"):
                redirections.append((token, self.path(self._expand(next(rest, "")))))
            elif token in _DUPLICATIONS:
                redirections.append((token, ""))
            else:
                words.append(self._expand(token))
        own = Output()
        try:
            code = await self._program(words, own)
            self._redirect(own, redirections)
        except OSError as exc:
            own.stderr.append(f"{words[0] if words else 'bash'}: {exc}\n")
            code = 1
        output.stdout += own.stdout
        output.stderr += own.stderr
        return code

    async def _program(self, words: Words, own: Output) -> int:
        if not words:
            return 0
        name, is_assignment, value = words[0].partition("=")
        if is_assignment and name.isidentifier():
            self.env[name] = value
            return 0
        program = self.programs.get(words[0])
        if program is None:
            own.stderr.append(f"bash: {words[0]}: command not found\n")
            return _NOT_FOUND
        return await program(self, words[1:], own)

    def _redirect(self, own: Output, redirections: list[tuple[str, str]]) -> None:
        for kind, target in reversed(redirections):
            if kind.endswith(">&2"):
                own.stderr, own.stdout = own.stderr + own.stdout, []
            elif kind.startswith("2>"):
                own.stdout += own.stderr if kind == "2>&1" else []
                own.stderr.clear()
            elif target == "/dev/null":
                own.stdout.clear()
            else:
                before = self.files.text(target) or "" if kind == ">>" else ""
                self.files.write(target, (before + "".join(own.stdout)).encode())
                own.stdout.clear()

    def _expand(self, token: str) -> str:
        return "".join(self._piece(match) for match in _PIECE.finditer(token))

    def _piece(self, match: re.Match[str]) -> str:
        single, double, escaped, plain = match.groups()
        if single is not None:
            return single
        if escaped is not None:
            return escaped
        text = _VARIABLE.sub(self._value, plain if double is None else double)
        return text if double is None else re.sub(r'\\(["\\$`])', r"\1", text)

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return str(self.code) if name == "?" else self.env.get(name, "")


class ShellExit(Exception):
    """Raised by ``exit`` in a script."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


# --- programs --------------------------------------------------------------------------------------------------------


async def _echo(shell: FakeShell, words: Words, output: Output) -> int:
    bare = words[:1] == ["-n"]
    output.stdout.append(" ".join(words[bare:]) + ("" if bare else "\n"))
    return 0


async def _cat(shell: FakeShell, words: Words, output: Output) -> int:
    for word in words:
        output.stdout.append(shell.files.read(shell.path(word)).decode(errors="replace"))
    return 0


async def _cd(shell: FakeShell, words: Words, output: Output) -> int:
    target = shell.path(words[0] if words else "/")
    if not shell.files.is_dir(target):
        raise FileNotFoundError(f"{target}: No such file or directory")
    shell.cwd = target
    return 0


async def _ls(shell: FakeShell, words: Words, output: Output) -> int:
    where = shell.path(next((word for word in words if not word.startswith("-")), "."))
    if not shell.files.is_dir(where):
        shell.files.read(where)
    output.stdout += [f"{name}\n" for name in shell.files.below(where) if "/" not in name]
    return 0


async def _test(shell: FakeShell, words: Words, output: Output) -> int:
    words = words[:-1] if words[-1:] == ["]"] else words
    match words:
        case ["-f", path]:
            return 0 if shell.files.is_file(shell.path(path)) else 1
        case ["-d", path]:
            return 0 if shell.files.is_dir(shell.path(path)) else 1
        case ["-e", path]:
            where = shell.path(path)
            return 0 if shell.files.is_file(where) or shell.files.is_dir(where) else 1
        case [left, "=" | "==", right]:
            return 0 if left == right else 1
        case [left, "!=", right]:
            return 0 if left != right else 1
        case _:
            output.stderr.append(f"test: the fake does not know {words}\n")
            return 2


async def _each(shell: FakeShell, words: Words, act: Callable[[str], None]) -> int:
    for word in words:
        if not word.startswith("-"):
            act(shell.path(word))
    return 0


async def _mkdir(shell: FakeShell, words: Words, output: Output) -> int:
    return await _each(shell, words, shell.files.make_dir)


async def _rm(shell: FakeShell, words: Words, output: Output) -> int:
    return await _each(shell, words, shell.files.remove)


async def _touch(shell: FakeShell, words: Words, output: Output) -> int:
    return await _each(shell, words, lambda path: shell.files.write(path, (shell.files.text(path) or "").encode()))


async def _chmod(shell: FakeShell, words: Words, output: Output) -> int:
    for word in words[1:]:
        old = shell.files.mode(shell.path(word))
        shell.files.set_mode(shell.path(word), int(words[0], 8) if words[0].isdigit() else old | 0o111)
    return 0


async def _env(shell: FakeShell, words: Words, output: Output) -> int:
    output.stdout += [f"{name}={value}\n" for name, value in shell.env.items()]
    return 0


async def _id(shell: FakeShell, words: Words, output: Output) -> int:
    output.stdout.append(f"{shell.user if words == ['-un'] else 0}\n")
    return 0


async def _sleep(shell: FakeShell, words: Words, output: Output) -> int:
    await asyncio.sleep(float(words[0]))
    return 0


async def _export(shell: FakeShell, words: Words, output: Output) -> int:
    shell.env.update({name: value for name, _, value in (word.partition("=") for word in words)})
    return 0


async def _exit(shell: FakeShell, words: Words, output: Output) -> int:
    raise ShellExit(int(words[0]) if words else shell.code)


def _says(words_of: Callable[[FakeShell], str]) -> Program:
    async def program(shell: FakeShell, words: Words, output: Output) -> int:
        output.stdout.append(f"{words_of(shell)}\n")
        return 0

    return program


def _returns(code: int) -> Program:
    async def program(shell: FakeShell, words: Words, output: Output) -> int:
        return code

    return program


_PROGRAMS: dict[str, Program] = {
    "echo": _echo,
    "cat": _cat,
    "cd": _cd,
    "ls": _ls,
    "test": _test,
    "[": _test,
    "mkdir": _mkdir,
    "rm": _rm,
    "touch": _touch,
    "sleep": _sleep,
    "export": _export,
    "exit": _exit,
    "pwd": _says(lambda shell: shell.cwd),
    "whoami": _says(lambda shell: shell.user),
    "true": _returns(0),
    ":": _returns(0),
    "chmod": _chmod,
    "env": _env,
    "id": _id,
    "chown": _returns(0),
    "false": _returns(1),
}
