"""Decide whether a sandbox without a verdict was broken by its policy, which has then failed, or by something else.

Only the host's observations count: the sandbox still exists, and something in it is broken. The shell or the tests'
interpreter, which worked before the policy's phase, is gone or gives wrong answers, the terminal's own processes were
stopped or killed, or the verifier's user can't run a command or write its verdict. A sandbox that is gone, or one whose
state only its provider knows, is the infrastructure's failure.
"""

import math
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment

from harbor_gym._runtime.shell_text import QUIET
from harbor_gym.episode.grading.cleanup import take_baseline
from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.extensions import SupportsIsUp, SupportsUnblocking

LATE_PROBE_SEC = 10.0
"""As ``limit_sec``, after a command without an answer: two silences, not one, tell that the sandbox is broken."""

_PROBE_TIMEOUT_SEC = 30.0
_PROBE = ": does it still answer\n"
_ROOT = (None, "root", "0", 0)
_CROWD = 256
"""More processes than honest work leaves where a terminal has not answered in time; a fork bomb goes to the limit."""

_DEAD_OR_STOPPED = frozenset("ZXTt")
_SHELLS, _PYTHON = ("sh", "bash", "dash", "ash", "ksh", "zsh"), "python"


@dataclass(frozen=True)
class Grader:
    """The user that grades in a sandbox, and the directory of the verdict."""

    user: str | int | None
    """None is the image's user."""

    directory: PurePosixPath
    """The verifier's output directory."""


async def find_breakage(
    environment: BaseEnvironment,
    *,
    grader: Grader | None = None,
    interpreter: Sequence[str] = (),
    terminal: Sequence[str] = (),
    answers_nonsense: bool = False,
    has_timed_out: bool = False,
    limit_sec: float = _PROBE_TIMEOUT_SEC,
) -> str | None:
    """Return how the policy broke a sandbox; None without evidence that it did.

    Args:
        environment: The sandbox. With ``is_up()``, as local and Docker ones have, it can report that it exists even if
            no command runs in it.
        grader: The user that must be able to run a command in the task's workdir and to write the verdict, if any.
        interpreter: The command that runs the tests, which must still work.
        terminal: Ids of processes that must still run.
        answers_nonsense: Whether the terminal's answers can't be read, which is the policy's doing if nothing else is
            broken.
        has_timed_out: Whether the terminal gave no answer in time, which is the policy's doing if a crowd of processes
            is there.
        limit_sec: Seconds for all commands of the probe together; one without an answer by then is evidence. The
            default is the time that a very busy machine may take.
    """
    if not await _is_up(environment, unknown=True):
        return None
    if isinstance(environment, SupportsUnblocking) and (held := await environment.unblock()) and terminal:
        return held
    nonce, deadline = secrets.token_hex(8), time.monotonic() + limit_sec
    try:
        result = await environment.exec(
            _probe(nonce, interpreter, terminal), cwd="/", env=QUIET, timeout_sec=_left(deadline), user="root"
        )
    except Exception as exc:  # The boundary to foreign code: environments raise whatever their client library raises.
        # The sandbox may have disappeared meanwhile, which no policy causes.
        return f"no command runs in it any more ({exc})" if await _is_up(environment, unknown=False) else None
    lines = (result.stdout or "").splitlines() or [""]
    if nonce not in lines:
        output = f"its shell answers {lines[0][:100]!r} instead of the expected text"
        return output if await _is_up(environment, unknown=False) else None
    rest = lines[lines.index(nonce) + 1 :]  # before it, and before the interpreter's, stands what BASH_ENV prints
    if interpreter and nonce not in rest:
        return f"{shlex.join(interpreter)}, which runs the tests, does not run any more"
    states = (rest[rest.index(nonce) + 1 :] if interpreter else rest)[: len(terminal)]
    if len(states) != len(terminal) or any(_state(line) in _DEAD_OR_STOPPED for line in states):
        return "the processes of its terminal were stopped or killed"
    if grader is not None and (hindrance := await _hindrance(environment, grader, deadline)) is not None:
        return hindrance if await _is_up(environment, unknown=False) else None
    if has_timed_out and (count := await _count_processes(environment)) > _CROWD:
        return f"its terminal did not answer in time beside {count} processes"
    return "its terminal's answers can't be read" if answers_nonsense else None


async def _count_processes(environment: BaseEnvironment) -> int:
    try:
        return len((await take_baseline(environment)).processes)
    except SandboxError:
        return 0


async def is_there(environment: BaseEnvironment) -> bool:
    """Return whether a sandbox exists, whatever its policy made of it; if its host can't tell, whether it answers."""
    if isinstance(environment, SupportsIsUp):
        return await environment.is_up()
    nonce = secrets.token_hex(8)
    try:
        result = await environment.exec(
            _probe(nonce, (), ()), cwd="/", timeout_sec=round(_PROBE_TIMEOUT_SEC), user="root"
        )
    except Exception:  # as above
        return False
    return (result.stdout or "").split() == [nonce]


async def can_run(environment: BaseEnvironment, user: str | int | None) -> bool:
    """Return whether a user can run a command in the task's own workdir; assumed of root and the image's user."""
    deadline = time.monotonic() + _PROBE_TIMEOUT_SEC
    return user in _ROOT or await _hindrance(environment, Grader(user, PurePosixPath("/dev/null")), deadline) is None


def _left(deadline: float) -> int:
    """Return the whole seconds until then, 1 at least: environments take no fractions, and 0 is no limit to some."""
    return max(1, math.ceil(deadline - time.monotonic()))


async def _hindrance(environment: BaseEnvironment, grader: Grader, deadline: float) -> str | None:
    """Return why a grader can't work; None if it can."""
    nonce = secrets.token_hex(8)
    place = shlex.quote(str(grader.directory))
    command = f"{_PROBE}echo {nonce}; [ ! -w {place} ] || echo {nonce}\n"
    try:
        result = await environment.exec(command, env=QUIET, timeout_sec=_left(deadline), user=grader.user)
    except Exception as exc:  # as above
        return f"its verifier's user can run no command in its workdir any more ({exc})"
    match (result.stdout or "").split().count(nonce):
        case 2:
            return None
        case 1:
            return f"its verifier's user can't write to {grader.directory} any more"
        case _:
            answer = f"{result.stdout or ''}{result.stderr or ''}"[-200:]
            return f"its verifier's user can run no command in its workdir any more ({answer!r})"


async def _is_up(environment: BaseEnvironment, *, unknown: bool) -> bool:
    """Return whether the host sees that the sandbox exists; ``unknown`` if it can't tell."""
    return await environment.is_up() if isinstance(environment, SupportsIsUp) else unknown


def interpreter_of(test_script: Path) -> Sequence[str]:
    """Return the words of a script's ``#!`` line, with which the kernel runs it; none without such a line."""
    try:
        with test_script.open("rb") as stream:
            first = stream.readline(256)
    except OSError:
        return ()
    return first.removeprefix(b"#!").decode("utf-8", "replace").split() if first.startswith(b"#!") else ()


def sound_answer(command: str) -> str | None:
    """Return an intact sandbox's answer to the probe, for sandboxes without a shell; None for other commands."""
    if not command.startswith(_PROBE):
        return None
    nonce = command.removeprefix(_PROBE).split()[1]
    return f"{nonce}\n" * command.count(nonce)


def _probe(nonce: str, interpreter: Sequence[str], terminal: Sequence[str]) -> str:
    lines = [f"{_PROBE}echo {nonce}"]
    if interpreter:
        lines.append(f"{_says(nonce, interpreter)} || echo")
    lines += [f'read -r line </proc/{int(pid)}/stat && echo "$line"' for pid in terminal]
    return "\n".join([*lines, ":"])


def _says(nonce: str, interpreter: Sequence[str]) -> str:
    words = interpreter[1:] if interpreter[0].endswith("/env") else interpreter
    name = PurePosixPath(next((word for word in words if word[0] != "-" and "=" not in word), "")).name
    if name in _SHELLS:
        return shlex.join([*interpreter, "-c", f"echo {nonce}"])
    if name.startswith(_PYTHON):
        return shlex.join([*interpreter, "-c", f"print('{nonce}')"])
    return f"[ -x {shlex.quote(interpreter[0])} ] && echo {nonce}"


def _state(line: str) -> str:
    return line.rpartition(") ")[2][:1]
