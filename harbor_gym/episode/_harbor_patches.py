"""The methods of Harbor's sandboxes and tasks that an episode replaces on the instances of its own trial.

Two are replaced for all of Harbor: one finds what it found before without reading a task's files again, the other
reads a verifier's rewards with limits.

Harbor has no hooks at these moments. tests/unit/episode/test_harbor_patches.py names the parts of Harbor that call the
methods, and fails if an upgrade changes one of them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shlex
import warnings
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path, PurePath
from types import CoroutineType
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.task.config import NetworkPolicy
from harbor.models.task.task import Task
from harbor.models.trial.result import StepResult, TrialResult
from harbor.publisher.packager import Packager
from harbor.trial.trial import Trial
from harbor.verifier.verifier import Verifier

from harbor_gym._runtime.unchanged import UntilChanged
from harbor_gym.episode.grading.verdict import read_reward_json, read_reward_text
from harbor_gym.errors import printable
from harbor_gym.sandboxes.archive.environment import CarriesFiles

_CALLS = (
    *("exec", "upload_file", "upload_dir", "download_file", "download_dir", "download_dir_with_exclusions"),
    *("is_file", "is_dir", "ensure_dirs", "empty_dirs", "reset_dirs"),
)
"""The methods through which a caller acts on a sandbox."""


_PREPARING_CALLS = ("exec", "upload_file", "upload_dir", "ensure_dirs", "empty_dirs", "reset_dirs")
"""Those by which Harbor, and an episode, prepare a sandbox for its policy."""


_MAX_LOGS_BYTES = 32 << 20
"""Size of the largest log that Harbor's readers parse on the event loop."""

_MAX_TEXT = 300

_logger = logging.getLogger(__name__)

_checksums = UntilChanged[str]()
_content_hashes = UntilChanged[tuple[str, list[Path]]]()


class _QuietTask(Task):
    @property
    @override
    def checksum(self) -> str:
        return _checksums.get(self.task_dir, self._quiet_checksum)

    def _quiet_checksum(self) -> str:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Task\.checksum ", category=DeprecationWarning)
            return super().checksum


def silence_checksum(task: Task) -> None:
    """Suppress Harbor's warning when its trial reads the task's checksum: warnings may be turned into errors.

    The checksum is found once for all trials, until a file of the task changes.
    """
    task.__class__ = _QuietTask


def _keep_content_hashes() -> None:
    """Let Harbor's trials hash the files of a task once, until one changes, for the lock that each of them writes."""
    compute = Packager.compute_content_hash

    @functools.wraps(compute)
    def kept(task_dir: Path) -> tuple[str, list[Path]]:
        digest, files = _content_hashes.get(task_dir, lambda: compute(task_dir))
        return digest, list(files)

    Packager.compute_content_hash = staticmethod(kept)


_keep_content_hashes()


def _read_rewards_without_trust() -> None:
    """Let Harbor's verifier, of any trial and any sandbox, read its rewards by our reader: it bounds what it reads."""
    Verifier._parse_reward_text = lambda self: read_reward_text(self.trial_paths.reward_text_path)  # pyright: ignore[reportPrivateUsage]  # nothing public is between download and parser
    Verifier._parse_reward_json = lambda self: read_reward_json(self.trial_paths.reward_json_path)  # pyright: ignore[reportPrivateUsage]


_read_rewards_without_trust()


def note_start_error(environment: BaseEnvironment, note: Callable[[BaseException], None]) -> None:
    """Call ``note`` with the exception that a start raises: Harbor's result keeps only its name and text."""
    start = environment.start

    async def noted(force_build: bool) -> None:
        try:
            await start(force_build)
        except BaseException as exc:
            note(exc)
            raise

    environment.start = noted


def contain_agent_logs(trial: Trial) -> None:
    """Let no log that an agent, or its policy, left in the sandbox end the trial: Harbor's readers raise at odd values.

    What they find is dropped then, with a warning: of an agent's own report, such as its tokens, nothing is lost.
    """
    logs = trial.agent.logs_dir
    download = trial._download_agent_logs  # pyright: ignore[reportPrivateUsage]  # nothing public is between the two
    read = trial._sync_agent_output  # pyright: ignore[reportPrivateUsage]

    async def contained(target: TrialResult | StepResult) -> None:
        reported = None if target.agent_result is None else target.agent_result.model_copy()
        try:
            await download()
            if (size := await asyncio.to_thread(_size_of, logs)) > _MAX_LOGS_BYTES:
                raise ValueError(f"they have {size} bytes")
            await read(target)
            target.model_dump_json()
        except Exception as exc:  # the boundary to foreign code, which reads what a sandbox wrote
            target.agent_result = reported
            text = printable(str(exc)[:_MAX_TEXT])
            _logger.warning("the agent's logs of %s can't be read: %s: %s", trial.config.trial_name, type(exc), text)

    trial._sync_agent_output = contained  # pyright: ignore[reportPrivateUsage]


def _size_of(logs: Path) -> int:
    """Return the bytes of the largest file below a folder that Harbor's readers of logs read whole."""
    paths = (Path(place) / name for place, _, names in os.walk(logs) for name in names)
    return max((path.lstat().st_size for path in paths if path.suffix != ".cast"), default=0)


def keep_closed(environment: BaseEnvironment, verifier_dir: PurePath, before: Callable[[], Awaitable[None]]) -> None:
    """Let Harbor empty a step's verifier directory again, but not make it writable for all: kept processes may write.

    Args:
        environment: The sandbox.
        verifier_dir: The directory that stays closed.
        before: Awaited first. Harbor's first action on a new step is to empty directories, so this is also the end of
            the step before.
    """
    empty_dirs = environment.empty_dirs

    async def kept(dirs: Sequence[str | PurePath], *, chmod: bool = True) -> ExecResult | None:
        await before()
        return await empty_dirs(dirs, chmod=chmod and verifier_dir not in dirs)

    environment.empty_dirs = kept


def leave_out_reward_removal(environment: BaseEnvironment, verifier_dir: PurePath) -> None:
    """Answer Harbor's removal of old rewards before the tests (since 0.26) without running a program of the sandbox.

    The clean-up has emptied that directory by then, and a policy's ``rm`` must not decide whether it is graded.
    """
    run = environment.exec
    removal = f"rm -f -- {verifier_dir / 'reward.txt'} {verifier_dir / 'reward.json'}"

    @functools.wraps(run)
    async def run_others(command: str, *args: Any, **settings: Any) -> ExecResult:
        if command == removal:
            return ExecResult(stdout="", stderr="", return_code=0)
        return await run(command, *args, **settings)

    environment.exec = run_others


def leave_out_chmod(environment: BaseEnvironment) -> None:
    """Answer Harbor's ``chmod +x`` of the tests' script where the upload has set that bit, without running a program.

    It is answered once: whoever may change the script's mode between the upload and the tests could do so after
    ``chmod`` too. Everything else runs, also that command where the script came in another way.
    """
    if not isinstance(environment, CarriesFiles):
        return
    run = environment.exec

    @functools.wraps(run)
    async def run_others(command: str, *args: Any, **settings: Any) -> ExecResult:
        if environment.is_executable and command == f"chmod +x {shlex.quote(str(environment.executable))}":
            environment.is_executable = False
            return ExecResult(stdout="", stderr="", return_code=0)
        return await run(command, *args, **settings)

    environment.exec = run_others


def examine_before_stop(environment: BaseEnvironment, examine: Callable[[], Awaitable[None]]) -> None:
    """Await ``examine`` before Harbor stops the sandbox, and let no failure of the stop end the trial.

    To stop a sandbox is to clean up: what could not be removed is reported, and left to the reaper. Harbor would record
    the failure beside a verdict, as if it had come before it.
    """
    stop = environment.stop

    async def examined(delete: bool) -> None:
        await examine()
        try:
            await stop(delete)
        except Exception as exc:  # the boundary to foreign code: whatever a provider's client raises
            _logger.warning("the sandbox %s could not be removed: %s", environment.session_id, exc)

    environment.stop = examined


def tolerate_last_switch(environment: BaseEnvironment, is_last: Callable[[], bool]) -> None:
    """Let no failure to give a sandbox its own network back end the trial, if nothing but its stop follows."""
    switch = environment.set_network_policy

    @functools.wraps(switch)
    async def switched(network_policy: NetworkPolicy) -> None:
        was_last = is_last()
        try:
            await switch(network_policy)
        except Exception as exc:  # as above
            if not was_last:
                raise
            _logger.warning("the sandbox %s keeps its verifier's network: %s", environment.session_id, exc)

    environment.set_network_policy = switched


def prepare_nothing(environment: BaseEnvironment, is_prepared: Callable[[], bool]) -> None:
    """Answer what prepares a sandbox for its policy as done, while that is so: no call reaches into it.

    A copy of a sandbox was prepared in the one that was copied, and its files are the policy's.
    """
    for name in _PREPARING_CALLS:
        setattr(environment, name, _answered(getattr(environment, name), is_prepared))


def _answered(
    call: Callable[..., CoroutineType[Any, Any, ExecResult]], is_done: Callable[[], bool]
) -> Callable[..., CoroutineType[Any, Any, ExecResult]]:
    @functools.wraps(call)
    async def answered_call(*args: Any, **kwargs: Any) -> ExecResult:
        return ExecResult(stdout="", stderr="", return_code=0) if is_done() else await call(*args, **kwargs)

    return answered_call


def precede_commands(environment: BaseEnvironment, before: Callable[[], Awaitable[None]]) -> None:
    """Await ``before`` at each command, of which a step's first begins its set-up."""
    environment.exec = _preceded(environment.exec, before)


def precede_calls(environment: BaseEnvironment, before: Callable[[], Awaitable[None]]) -> None:
    """Await ``before`` at each call that reaches into the sandbox."""
    for name in _CALLS:
        setattr(environment, name, _preceded(getattr(environment, name), before))


def _preceded[**P, T](
    call: Callable[P, CoroutineType[Any, Any, T]], before: Callable[[], Awaitable[None]]
) -> Callable[P, CoroutineType[Any, Any, T]]:
    @functools.wraps(call)
    async def preceded_call(*args: P.args, **kwargs: P.kwargs) -> T:
        await before()
        return await call(*args, **kwargs)

    return preceded_call
