"""Clean a sandbox up before grading: end the policy's processes, remove its leftover files.

Afterwards the directories of grading exist, with room for the tests and the verifier's files.
"""

import contextlib
import functools
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment
from harbor.models.trial.paths import EnvironmentPaths

from harbor_gym._runtime.owners import boot_id, this_process
from harbor_gym._runtime.shell_text import QUIET, Marked, with_arguments, without_comments
from harbor_gym.errors import HarborGymError, SandboxLostError, SandboxTimeoutError, printable
from harbor_gym.sandboxes.archive.trees.records import MAX_REWARD_BYTES
from harbor_gym.sandboxes.extensions import SupportsCleanUp
from harbor_gym.terminal.session import Leftovers

_SCRIPTS = Path(__file__).parent / "scripts"
_TIMEOUT_SEC = 30
_SHORT_TIMEOUT_SEC = 10
_GRACE_SEC, _STOP_SEC = 0.5, 20.0
"""From SIGTERM to SIGKILL, and for the whole stop: a thousand processes end in a fraction of that on a busy machine."""
_ANSWERS = 3
_STOPPING = "stop the policy's processes"
_OPENING = "make the directories for grading"
_RESETTING = "empty the verifier's directories before grading"

type _Call = tuple[str, Sequence[object]]
"""A script by name, and its arguments."""


class BrokenByPolicyError(Exception):
    """The policy left a sandbox in which no honest verdict is possible. Internal to this package: ends the episode."""


@dataclass(frozen=True)
class Baseline:
    """The task's own processes and objects in a sandbox."""

    processes: frozenset[str]
    """Processes as ``pid:start``, the start in clock ticks since boot, which tells reused pids apart."""

    ipc: frozenset[str]
    """System V objects, as ``shm:3``."""

    oom_kills: int | None
    """Processes that the sandbox's memory limit had killed by then; None where it doesn't report it."""

    workdir: tuple[str, str, str] = ("", "", "")
    """The working directory as ``UID:GID``, the mode in octal digits, and the path; empty where the sandbox keeps it
    itself (:class:`harbor_gym.sandboxes.extensions.SupportsCleanUp`), or it is unknown."""


@dataclass(frozen=True)
class CleanupResult:
    """The result of stopping processes."""

    processes: int
    """The number of running processes that were stopped."""

    oom_kills: int | None
    """Processes that the memory limit has killed so far; None where the sandbox doesn't report it."""

    was_full: bool = False
    """Whether the policy filled the sandbox's storage."""

    kept: int = 0
    """The number of the policy's processes that run on; those that were asked to be kept where it is not known."""

    names: tuple[str, ...] = ()
    """The names of some of the stopped processes; empty where the sandbox doesn't tell them."""


@dataclass(frozen=True)
class VerifierDirsReset:
    """The directories to empty before the verifier runs, and the new owner of the first."""

    directories: tuple[PurePosixPath, ...]
    """The verifier's output directory, then that of the tests."""

    owner: str
    """The verifier's user. Empty: the first directory is writable for all, as under Harbor."""

    @property
    def arguments(self) -> tuple[object, ...]:
        """The script's arguments."""
        return self.owner, *self.directories


@dataclass(frozen=True)
class Postmortem:
    """A sandbox's report after its verifier gave no verdict."""

    oom_kills: int | None
    """Processes that the memory limit killed since the sandbox started; None where it doesn't report it."""

    output: str
    """The end of the tests' output."""


async def take_baseline(environment: BaseEnvironment, *, is_first: bool = False) -> Baseline:
    """Note the processes of a sandbox before the policy, to tell the policy's from them later.

    Args:
        environment: The sandbox.
        is_first: Whether no policy was in the sandbox yet, so that its workdir is the task's.

    Raises:
        SandboxError: The sandbox does not answer.
    """
    if isinstance(environment, SupportsCleanUp):
        found = await environment.clean_up("baseline", {}, timeout_sec=_TIMEOUT_SEC)
        return Baseline(frozenset(found["processes"]), frozenset(found["ipc"]), found["oom_kills"])
    what = "note what runs before the policy"
    answer = await _run(environment, [("baseline", ())], what, _TIMEOUT_SEC, cwd=None if is_first else "/")
    listed, _, place = answer.partition("\n")
    owner, _, place = place.partition(" ")
    mode, _, path = place.strip("\n").partition(" ")
    workdir = (owner, mode, path) if is_first else ("", "", "")
    match listed.split():
        case ["baseline", kills, *names]:
            objects = {name for name in names if not name[0].isdecimal()}
            return Baseline(frozenset(names) - objects, frozenset(objects), _count(kills), workdir)
        case _:
            raise _no_answer(what, answer)


async def stop_processes(
    environment: BaseEnvironment, own: Baseline, *, terminal: Leftovers | None = None, keeps: bool = False
) -> CleanupResult:
    """Stop the processes of a sandbox that are not the task's own, and remove their System V objects.

    A stopped process gets SIGTERM and half a second. Processes that the task's own started (a server's workers) are
    spared. So a process that a service starts on the policy's request, such as a cron job, is spared too: only a
    separate verifier is out of its reach.

    Args:
        environment: The sandbox.
        own: The task's own processes and objects.
        terminal: The policy's terminal: its processes are killed at once and not counted, its directory is removed.
        keeps: Stop nothing while any process runs besides the terminal's own, unless there are more than 128 or the
            terminal's were stopped: then the verifier could not run. A sandbox without
            :class:`harbor_gym.sandboxes.extensions.SupportsCleanUp` is not asked: one counts as running.

    Raises:
        SandboxError: The sandbox does not answer.
        BrokenByPolicyError: Some could not be killed.
    """
    pids = [int(pid) for pid in terminal.pids] if terminal is not None else []
    directory = terminal.directory if terminal is not None else ""
    kept, names = 0, ()
    if isinstance(environment, SupportsCleanUp):
        arguments = {"own": sorted(own.processes), "ipc_objects": sorted(own.ipc), "terminal": pids, "keeps": keeps}
        times = {"grace_sec": _GRACE_SEC, "deadline_sec": _STOP_SEC}
        with _bounded(_STOPPING):
            found = await environment.clean_up(
                "stop", {**arguments, "leftovers": directory, **times}, timeout_sec=_TIMEOUT_SEC
            )
        stopped, left, kills = found["stopped"], found["left"], found["oom_kills"]
        kept, names = found["kept"], tuple(printable(name) for name in found["names"])
    elif keeps:
        return CleanupResult(0, None, kept=1)
    else:
        lists = (f",{','.join([*own.processes, *own.ipc])},", f",{','.join(map(str, pids))},")
        times = (round(_GRACE_SEC * 100), round(_STOP_SEC * 100))
        answer = await _run(environment, [("stop", (*lists, directory, *times, *_caller()))], _STOPPING, _TIMEOUT_SEC)
        match answer.split():
            case ["stop", *numbers] if len(numbers) == _ANSWERS:
                stopped, left, kills = int(numbers[0]), int(numbers[1]), _count(numbers[2])
            case _:
                raise _no_answer(_STOPPING, answer)
    if left:
        raise BrokenByPolicyError(f"{left} of the policy's processes could not be stopped before grading")
    return CleanupResult(stopped, kills, kept=kept, names=names)


async def open_grading(environment: BaseEnvironment, own: Baseline) -> bool:
    """Make what grading needs and the policy may have removed: the workdir, Harbor's log directories, and free space.

    Returns:
        Whether the policy filled the storage; known only for a sandbox with a reserve.

    Raises:
        SandboxError: The sandbox does not answer.
        BrokenByPolicyError: A directory can't be made.
    """
    is_full = False
    if isinstance(environment, SupportsCleanUp):
        with _bounded(_OPENING):
            found = await environment.clean_up("open_grading", {}, timeout_sec=_TIMEOUT_SEC)
        problem, is_full = found["problem"], found["is_full"]
    else:
        paths = EnvironmentPaths.for_os(environment.os)
        call = "open_grading", (*own.workdir, paths.agent_dir, paths.artifacts_dir)
        answer = (await _run(environment, [call], _OPENING, _SHORT_TIMEOUT_SEC)).strip()
        problem = "" if answer.splitlines()[-1:] == ["opened"] else answer or "no answer"
    if problem:
        raise BrokenByPolicyError(f"could not {_OPENING}: {problem}")
    return is_full


async def close_grading(environment: BaseEnvironment) -> None:
    """Reserve the room for grading again, as far as it is free, before the policy goes on.

    Raises:
        SandboxError: The sandbox does not answer.
    """
    if isinstance(environment, SupportsCleanUp):
        await environment.clean_up("close_grading", {}, timeout_sec=_TIMEOUT_SEC)


async def reset_verifier_dirs(environment: BaseEnvironment, reset: VerifierDirsReset) -> None:
    """Empty the verifier's directories and give them to root; the first one to the verifier's user.

    Raises:
        SandboxError: The sandbox does not answer.
        BrokenByPolicyError: Something in them could not be removed.
    """
    if isinstance(environment, SupportsCleanUp):
        directories = [str(path) for path in reset.directories]
        arguments = {"directories": directories, "owner": reset.owner}
        with _bounded(_RESETTING):
            problem = (await environment.clean_up("reset_verifier_dirs", arguments, timeout_sec=_TIMEOUT_SEC))[
                "problem"
            ]
    else:
        answer = (await _run(environment, [("reset_verifier_dirs", reset.arguments)], _RESETTING, _TIMEOUT_SEC)).strip()
        problem = "" if answer.splitlines()[-1:] == ["reset"] else answer or "no answer"
    if problem:
        raise BrokenByPolicyError(f"could not {_RESETTING}: {problem}")


async def cut_rewards(environment: BaseEnvironment, directory: PurePosixPath) -> None:
    """Cut a verifier's reward files in the sandbox to what the transfers of this package's own sandboxes bring of them.

    Where the sandbox does not answer, or by a program that the policy replaced, they stay as they are.
    """
    call = "cut_rewards", (directory, MAX_REWARD_BYTES + 1)
    with contextlib.suppress(HarborGymError):
        await _run(environment, [call], "cut the reward files", _SHORT_TIMEOUT_SEC)


async def user_id(environment: BaseEnvironment) -> str:
    """Return the numeric id of the image's own user.

    Raises:
        SandboxLostError: The sandbox does not answer.
        BrokenByPolicyError: Its ``id`` answers something else.
    """
    with environment.with_default_user(None):
        answer = (await _run_command(environment, "id -u", None, "find its own user", _TIMEOUT_SEC)).strip()
    if not answer.isdecimal():
        raise BrokenByPolicyError(f"its id answers {answer[:100]!r} instead of a user's id")
    return answer


async def examine(environment: BaseEnvironment, test_output: PurePosixPath) -> Postmortem | None:
    """Ask a sandbox about a verifier that gave no verdict; None if it does not answer any more."""
    try:
        answer = await _run(environment, [("postmortem", (test_output,))], "look back", _SHORT_TIMEOUT_SEC)
    except SandboxLostError:
        return None
    head, _, output = answer.partition("\n")
    return Postmortem(_count(head.removeprefix("postmortem ")), output)


@contextlib.contextmanager
def _bounded(what: str) -> Generator[None]:
    """Blame the policy if a clean-up that runs no program of the sandbox does not end in time.

    It takes a fraction of a second, unless there is a very large tree to remove.
    """
    try:
        yield
    except SandboxTimeoutError as exc:
        raise BrokenByPolicyError(f"could not {what}: {exc}") from exc


def _caller() -> tuple[object, ...]:
    """Return this machine's boot id, our process id and our start: a sandbox that sees us shares our processes."""
    me = this_process()
    return boot_id(), me.pid, me.start_time


async def _run(
    environment: BaseEnvironment, calls: Sequence[_Call], what: str, timeout_sec: int, *, cwd: str | None = "/"
) -> str:
    parts = [read_script("common")]
    for script, arguments in calls:
        parts.append(with_arguments(read_script(script), arguments))
    return await _run_command(environment, "".join(parts), "root", what, timeout_sec, cwd=cwd)


async def _run_command(
    environment: BaseEnvironment, command: str, user: str | None, what: str, timeout_sec: int, *, cwd: str | None = "/"
) -> str:
    marked = Marked(command)
    try:
        result = await environment.exec(marked.command, cwd=cwd, env=QUIET, timeout_sec=timeout_sec, user=user)
    except HarborGymError:
        raise
    except Exception as exc:  # The boundary to foreign code: environments raise whatever their client library raises.
        raise SandboxLostError(f"the sandbox could not {what}: {type(exc).__name__}: {exc}") from exc
    return marked.output(f"{result.stdout or ''}{result.stderr or ''}")


def _no_answer(what: str, answer: str) -> SandboxLostError:
    return SandboxLostError(f"the sandbox could not {what}: it answered {answer[-500:]!r}")


@functools.cache
def read_script(name: str) -> str:
    """Return a script that runs in the sandbox, without its arguments and comment lines."""
    return without_comments((_SCRIPTS / f"{name}.sh").read_text(encoding="utf-8"))


def _count(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None
