"""Take the sandbox out of the policy's hands before it is graded: its processes end, its leavings go."""

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment

from harbor_gym.errors import HarborGymError, SandboxLostError, VerifierError

_SCRIPTS = Path(__file__).parent / "sandbox"
_TIMEOUT_SEC = 60
_AUTOPSY_TIMEOUT_SEC = 10
_WITH_COMMON = ("census", "stop", "autopsy")
_ANSWERS = {"census": 2, "stop": 3}
"""Script → values in its one-line answer, after its name."""


@dataclass(frozen=True)
class Census:
    """The sandbox at the moment a phase began."""

    tick: int
    """The moment, in the clock by which the sandbox's kernel dates processes."""

    oom_kills: int | None
    """Processes that the sandbox's memory limit had killed by then; None where it doesn't tell."""


@dataclass(frozen=True)
class Stopped:
    """What was found when the policy's processes were stopped."""

    processes: int
    """How many were killed."""

    oom_kills: int | None
    """Processes that the memory limit killed since the census; None where the sandbox doesn't tell."""


@dataclass(frozen=True)
class Autopsy:
    """What a sandbox could tell after its verifier had given no verdict."""

    oom_kills: int | None
    """Processes that the memory limit killed since the sandbox started; None where it doesn't tell."""

    output: str
    """The end of what the tests printed."""


async def take_census(environment: BaseEnvironment) -> Census:
    """Note when a phase begins, so that what the policy starts can be told from what was there.

    Raises:
        SandboxLostError: The sandbox does not answer.
    """
    tick, kills = await _answer(environment, "census", what="note the beginning of the agent's phase")
    return Census(int(tick), _count(kills))


async def stop_processes(environment: BaseEnvironment, since: Census) -> Stopped:
    """Kill what was started since the census.

    Spared are older processes and what these have started (a server's workers). So a process that a service starts at
    the policy's bidding, such as a cron job, is spared too: only a separate verifier is out of its reach.

    Raises:
        SandboxLostError: The sandbox does not answer.
        VerifierError: Some could not be killed, so that an honest verdict can't be had.
    """
    what = "stop the policy's processes"
    stopped, left, kills = await _answer(environment, "stop", since.tick, *_own_namespace(), what=what)
    if left != "0":
        raise VerifierError(f"{left} of the policy's processes could not be stopped before grading")
    killed = _count(kills)
    grown = None if killed is None or since.oom_kills is None else killed - since.oom_kills
    return Stopped(int(stopped), grown)


async def seal(environment: BaseEnvironment, directories: Sequence[PurePosixPath], *, owner: str) -> None:
    """Empty the verifier's directories and make them root's; the first becomes ``owner``'s.

    Args:
        environment: The sandbox.
        directories: Where the verifier writes, then where the tests will lie.
        owner: Who runs the verifier. Empty: the first directory is open to all, as Harbor has it.

    Raises:
        SandboxLostError: The sandbox does not answer.
        VerifierError: Something in them could not be removed.
    """
    what = "empty the verifier's directories before grading"
    said = await _run(environment, "seal", owner, *directories, what=what, timeout_sec=_TIMEOUT_SEC)
    if said.strip().splitlines()[-1:] != ["sealed"]:
        raise VerifierError(f"could not {what}: {said.strip() or 'no answer'}")


async def user_id(environment: BaseEnvironment) -> str:
    """Return the numeric id of the image's own user.

    Raises:
        SandboxLostError: The sandbox does not answer.
    """
    with environment.with_default_user(None):
        return (await _run_command(environment, "id -u", None, "find its own user", _TIMEOUT_SEC)).strip()


async def examine(environment: BaseEnvironment, test_output: PurePosixPath) -> Autopsy | None:
    """Ask a sandbox about a verifier that gave no verdict; None where it does not answer any more."""
    try:
        said = await _run(environment, "autopsy", test_output, what="look back", timeout_sec=_AUTOPSY_TIMEOUT_SEC)
    except SandboxLostError:
        return None
    head, _, output = said.partition("\n")
    return Autopsy(_count(head.removeprefix("autopsy ")), output)


@functools.cache
def _own_namespace() -> tuple[str, str]:
    """Return this machine's boot id and process namespace, by which a sandbox that shares it is known."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot_id, str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "", ""  # not Linux: no sandbox shares our processes


async def _answer(environment: BaseEnvironment, script: str, *arguments: object, what: str) -> list[str]:
    said = await _run(environment, script, *arguments, what=what, timeout_sec=_TIMEOUT_SEC)
    match said.split():
        case [name, *values] if name == script and len(values) == _ANSWERS[script]:
            return values
        case _:
            raise SandboxLostError(f"the sandbox could not {what}: it answered {said.strip()[-500:]!r}")


async def _run(environment: BaseEnvironment, script: str, *arguments: object, what: str, timeout_sec: int) -> str:
    text = f"set -- {shlex.join(map(str, arguments))}\n{read_script(script)}" if arguments else read_script(script)
    return await _run_command(environment, text, "root", what, timeout_sec)


async def _run_command(
    environment: BaseEnvironment, command: str, user: str | None, what: str, timeout_sec: int
) -> str:
    try:
        result = await environment.exec(command, cwd="/", timeout_sec=timeout_sec, user=user)
    except HarborGymError:
        raise
    except Exception as exc:  # The boundary to foreign code: environments raise whatever their client library raises.
        raise SandboxLostError(f"the sandbox could not {what}: {type(exc).__name__}: {exc}") from exc
    return f"{result.stdout or ''}{result.stderr or ''}"


@functools.cache
def read_script(name: str) -> str:
    """Return what runs in the sandbox under this name, without its arguments."""
    parts = ["common", name] if name in _WITH_COMMON else [name]
    return "".join((_SCRIPTS / f"{part}.sh").read_text() for part in parts)


def _count(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None
