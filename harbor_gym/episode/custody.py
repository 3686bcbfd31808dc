"""Take the sandbox out of the policy's hands before it is graded: its processes end, its leavings go."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harbor.environments.base import BaseEnvironment

from harbor_gym.errors import HarborGymError, SandboxLostError, VerifierError
from harbor_gym.owners import boot_id, this_process
from harbor_gym.shell_text import with_arguments, without_comments

_SCRIPTS = Path(__file__).parent / "sandbox"
_TIMEOUT_SEC = 60
_AUTOPSY_TIMEOUT_SEC = 10
_SEALING = "empty the verifier's directories before grading"

type _Call = tuple[str, Sequence[object]]
"""A script by name, and its arguments."""


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

    empty: tuple[PurePosixPath, ...] = ()
    """Of the directories that were to be looked into: those that hold nothing, and in which nobody is left to write."""

    is_quiet: bool = False
    """Whether nothing runs in the sandbox any more."""


@dataclass(frozen=True)
class Sealing:
    """What is to be emptied before the verifier writes there, and whose it becomes."""

    directories: tuple[PurePosixPath, ...]
    """Where the verifier writes, then where the tests will lie."""

    owner: str
    """Who runs the verifier. Empty: the first directory is open to all, as Harbor has it."""

    @property
    def arguments(self) -> tuple[object, ...]:
        """The script's arguments."""
        return self.owner, *self.directories


@dataclass(frozen=True)
class Autopsy:
    """What a sandbox could tell after its verifier had given no verdict."""

    oom_kills: int | None
    """Processes that the memory limit killed since the sandbox started; None where it doesn't tell."""

    output: str
    """The end of what the tests printed."""


async def take_census(environment: BaseEnvironment) -> Census:
    """Note when a phase begins, so that what the policy starts can be told from what was there.

    An environment on this machine's kernel may know by itself, and offer ``look_at_clock()``: a census's two numbers.

    Raises:
        SandboxLostError: The sandbox does not answer.
    """
    if (offer := getattr(environment, "look_at_clock", None)) is not None:
        tick, kills = offer()
        return Census(tick, kills)
    what = "note the beginning of the agent's phase"
    match (await _run(environment, [("census", ())], what, _TIMEOUT_SEC)).split():
        case ["census", tick, kills]:
            return Census(int(tick), _count(kills))
        case said:
            raise _no_answer(what, " ".join(said))


async def stop_processes(
    environment: BaseEnvironment,
    since: Census,
    *,
    look_into: Sequence[PurePosixPath] = (),
    sealing: Sealing | None = None,
) -> Stopped:
    """Kill what was started since the census.

    Spared are older processes and what these have started (a server's workers). So a process that a service starts at
    the policy's bidding, such as a cron job, is spared too: only a separate verifier is out of its reach.

    Args:
        environment: The sandbox.
        since: When the policy's phase began.
        look_into: Directories of which to tell whether they are empty then.
        sealing: What to :func:`seal` in the same trip.

    Raises:
        SandboxLostError: The sandbox does not answer.
        VerifierError: Some could not be killed, or something not be removed, so that an honest verdict can't be had.
    """
    if (rest := await _at_rest(environment, since, look_into, sealing)) is not None:
        return rest
    what = "stop the policy's processes"
    calls: list[_Call] = [("stop", (since.tick, *_caller(), *look_into))]
    if sealing is not None:
        calls.append(("seal", sealing.arguments))
    said, _, sealed = (await _run(environment, calls, what, _TIMEOUT_SEC)).strip().partition("\n")
    match said.split():
        case ["stop", stopped, left, kills, others, *states] if len(states) == len(look_into):
            if left != "0":
                raise VerifierError(f"{left} of the policy's processes could not be stopped before grading")
        case _:
            raise _no_answer(what, said)
    if sealing is not None:
        _require_sealed(sealed)
    grown = _grown(_count(kills), since)
    empty = tuple(path for path, state in zip(look_into, states, strict=True) if state == "empty")
    return Stopped(int(stopped), grown, empty, is_quiet=others == "0")


async def _at_rest(
    environment: BaseEnvironment, since: Census, look_into: Sequence[PurePosixPath], sealing: Sealing | None
) -> Stopped | None:
    """Find out without a trip that nothing runs any more and all is clean, as after most episodes; None elsewhere.

    An environment on this machine's kernel may offer ``settle_at_rest(look_into, output, missing)``.
    """
    offer = getattr(environment, "settle_at_rest", None)
    if offer is None or (sealing is not None and sealing.owner):
        return None
    output, *missing = sealing.directories if sealing is not None else (None,)
    empty = await offer(look_into, output, missing)
    if empty is None:
        return None
    return Stopped(0, _grown((await take_census(environment)).oom_kills, since), empty, is_quiet=True)


def _grown(oom_kills: int | None, since: Census) -> int | None:
    return None if oom_kills is None or since.oom_kills is None else oom_kills - since.oom_kills


async def seal(environment: BaseEnvironment, sealing: Sealing) -> None:
    """Empty the verifier's directories and make them root's; the first becomes its user's.

    Raises:
        SandboxLostError: The sandbox does not answer.
        VerifierError: Something in them could not be removed.
    """
    _require_sealed(await _run(environment, [("seal", sealing.arguments)], _SEALING, _TIMEOUT_SEC))


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
        said = await _run(environment, [("autopsy", (test_output,))], "look back", _AUTOPSY_TIMEOUT_SEC)
    except SandboxLostError:
        return None
    head, _, output = said.partition("\n")
    return Autopsy(_count(head.removeprefix("autopsy ")), output)


def _caller() -> tuple[object, ...]:
    """Return this machine's boot id, our process id and our start: a sandbox that sees us shares our processes."""
    me = this_process()
    return boot_id(), me.pid, me.start_time


async def _run(environment: BaseEnvironment, calls: Sequence[_Call], what: str, timeout_sec: int) -> str:
    parts = [read_script("common")]
    for script, arguments in calls:
        parts.append(with_arguments(read_script(script), arguments))
    return await _run_command(environment, "".join(parts), "root", what, timeout_sec)


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


def _no_answer(what: str, said: str) -> SandboxLostError:
    return SandboxLostError(f"the sandbox could not {what}: it answered {said[-500:]!r}")


def _require_sealed(said: str) -> None:
    if said.strip().splitlines()[-1:] != ["sealed"]:
        raise VerifierError(f"could not {_SEALING}: {said.strip() or 'no answer'}")


@functools.cache
def read_script(name: str) -> str:
    """Return one of the scripts that run in the sandbox, without its arguments and its lines that are comments."""
    return without_comments((_SCRIPTS / f"{name}.sh").read_text())


def _count(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None
