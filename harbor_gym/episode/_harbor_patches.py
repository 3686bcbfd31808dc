"""The methods of Harbor's sandboxes and tasks that an episode replaces on the instances of its own trial.

Some are replaced for all of Harbor: two find what was found before without a walk through a task's files, the others
read a verifier's rewards with limits.

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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from types import CoroutineType
from typing import Any, cast, override

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.task.config import NetworkPolicy
from harbor.models.task.paths import TaskPaths
from harbor.models.task.task import Task
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.paths import EnvironmentPaths
from harbor.models.trial.result import StepResult, TrialResult
from harbor.models.verifier.result import VerifierResult
from harbor.publisher.packager import Packager
from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.trial import Trial
from harbor.verifier.verifier import Verifier

from harbor_gym._runtime.harbor_versions import file_filter_class
from harbor_gym._runtime.unchanged import UntilChanged
from harbor_gym.episode.grading.cleanup import cut_rewards
from harbor_gym.episode.grading.verdict import read_reward_json, read_reward_text
from harbor_gym.errors import printable
from harbor_gym.sandboxes.archive.environment import CarriesFiles
from harbor_gym.sandboxes.extensions import DeclaresCutRewards, SupportsBuild

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

_content_hashes = UntilChanged[tuple[str, list[Path]]]()
_FEW_FILES = 64
_file_filter = file_filter_class()
_compute_content_hash = Packager.compute_content_hash
_validate_input_tree = TaskPaths.validate_input_tree


class KnownTask(Task):
    """A task with what Harbor finds for each trial by a walk through its files, found once. To make it blocks."""

    @functools.cached_property
    def known(self) -> _Known:
        """What it finds. The first use reads all files."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Task\.checksum ", category=DeprecationWarning)
            checksum = super().checksum
        return _Known(self.task_dir, checksum, _compute_content_hash(self.task_dir))

    @property
    @override
    def checksum(self) -> str:
        return self.known.checksum


@dataclass(frozen=True, slots=True)
class _Known:
    """Results from all of a task's files, which lie within it."""

    task_dir: Path
    checksum: str
    content_hash: tuple[str, list[Path]]
    selections: Mapping[Path, Any] = field(default_factory=dict[Path, Any])
    """Folder → what Harbor 0.26 takes of it, while the task is verified."""

    @property
    def is_large(self) -> bool:
        """Whether a walk through its files is worth a thread."""
        return len(self.content_hash[1]) > _FEW_FILES


_known: ContextVar[_Known | None] = ContextVar("harbor_gym_known_task", default=None)
"""What is known of the task whose trial is being made."""

_tasks = UntilChanged[KnownTask]()


def known_task(task_dir: Path) -> KnownTask:
    """Return the task of a directory, read again only after a change of one of its files. Blocks.

    Raises:
        Exception: As Harbor's ``Task`` raises it.
    """
    return _tasks.get(task_dir, lambda: KnownTask(task_dir))


async def create_trial(config: TrialConfig, task: Task | Path) -> Trial:
    """Create Harbor's trial without its walks through the task's files, which it would do on the event loop.

    Args:
        config: The trial's.
        task: Its task, or the directory. All of its files are read in a thread, unless it is a :class:`KnownTask`.

    Raises:
        Exception: As ``Trial.create`` raises it.
    """
    if not isinstance(task, KnownTask):
        task_dir = task if isinstance(task, Path) else task.task_dir
        task = await asyncio.to_thread(known_task, task_dir)
    known = task.known if "known" in vars(task) else await asyncio.to_thread(lambda: task.known)
    token = _known.set(known)
    try:
        trial = await Trial.create(config)
    finally:
        _known.reset(token)
    silence_checksum(trial.task, known)
    return trial


def silence_checksum(task: Task, known: _Known | None = None) -> None:
    """Suppress Harbor's warning when its trial reads the task's checksum: warnings may be turned into errors.

    Args:
        task: The trial's.
        known: What is known of its files; None reads them when it is needed.
    """
    if not isinstance(task, KnownTask):
        task.__class__ = KnownTask
        if known is not None:
            vars(task)["known"] = known


def _walk_once() -> None:
    """Let Harbor walk through the files of a task whose trial :func:`create_trial` makes no second time.

    Other hashes of a task, for the lock that each trial writes, are found once until a file changes.
    """

    @functools.wraps(_compute_content_hash)
    def kept(task_dir: Path) -> tuple[str, list[Path]]:
        known = _known.get()
        if known is not None and known.task_dir == task_dir.resolve():
            digest, files = known.content_hash
        else:
            digest, files = _content_hashes.get(task_dir, lambda: _compute_content_hash(task_dir))
        return digest, list(files)

    @functools.wraps(_validate_input_tree)
    def validated(self: TaskPaths, path: Path, **newer: Any) -> None:
        known = _known.get()
        if known is None or known.task_dir != self.task_dir:
            _validate_input_tree(self, path, **newer)

    Packager.compute_content_hash = staticmethod(kept)
    TaskPaths.validate_input_tree = validated
    if _file_filter is None:
        return
    select = _file_filter.select

    @functools.wraps(select)
    def selected(self: Any, source_dir: Path) -> Any:
        known = _known.get()
        found = None if known is None else known.selections.get(Path(source_dir))
        return select(self, source_dir) if found is None else found

    _file_filter.select = selected


_walk_once()


def _read_rewards_without_trust() -> None:
    """Let Harbor's verifier, of any trial and any sandbox, read its rewards by our reader: it bounds what it reads."""
    Verifier._parse_reward_text = lambda self: read_reward_text(self.trial_paths.reward_text_path)  # pyright: ignore[reportPrivateUsage]  # nothing public is between download and parser
    Verifier._parse_reward_json = lambda self: read_reward_json(self.trial_paths.reward_json_path)  # pyright: ignore[reportPrivateUsage]
    verify = Verifier.verify

    @functools.wraps(verify)
    async def bounded(self: Verifier) -> VerifierResult:
        _cut_rewards(self.environment)
        known: _Known | None = vars(self.task).get("known")
        if known is None or not known.is_large:
            return await verify(self)
        try:
            known = await asyncio.to_thread(_read_again, self.task, known)
        except Exception:  # the boundary to Harbor, which finds and reports the same
            return await verify(self)
        token = _known.set(known)
        try:
            return await verify(self)
        finally:
            _known.reset(token)

    Verifier.verify = bounded


def _read_again(task: Task, known: _Known) -> _Known:
    """Return what is known of a task, with the files that its verification takes; raise what reading it raises."""
    known_task(task.task_dir)
    if _file_filter is None:
        return known
    files, paths = cast("Any", task).file_filter, task.paths
    folders = [paths.tests_dir, *(paths.step_tests_dir(step.name) for step in task.config.steps or [])]
    return replace(known, selections={folder: files.select(folder) for folder in folders if folder.is_dir()})


def _cut_rewards(environment: Any) -> None:
    """Let the sandbox cut its reward files before Harbor downloads their directory, unless the class does so itself."""
    if environment.capabilities.mounted or isinstance(environment, DeclaresCutRewards):
        return
    directory = EnvironmentPaths.for_os(environment.os).verifier_dir

    def cutting(download: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        @functools.wraps(download)
        async def cut_first(*args: Any, **settings: Any) -> None:
            if PurePath(args[0] if args else settings["source_dir"]) == directory:
                await cut_rewards(environment, directory)
            await download(*args, **settings)

        return cut_first

    environment.download_dir = cutting(environment.download_dir)
    environment.download_dir_filtered = cutting(environment.download_dir_filtered)
    environment.cuts_rewards = True


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


def build_before_start(trial: Trial) -> None:
    """Get the image before Harbor counts the time of the start, which a wait for other builds would use up.

    A failure is the start's. In the trial's result the start begins with the build.
    """
    environment = trial.agent_environment
    if not isinstance(environment, SupportsBuild):
        return
    build, start = environment.build_image, environment.start
    failures: list[Exception] = []
    began: list[datetime] = []

    async def build_first(event: TrialHookEvent) -> None:
        began.append(datetime.now(UTC))
        try:
            await build(force_build=event.config.environment.force_build)
        except Exception as exc:  # the boundary to foreign code, such as a sandbox class of the user's
            failures.append(exc)

    async def started(force_build: bool) -> None:
        if trial.result.environment_setup is not None and began:
            trial.result.environment_setup.started_at = began[0]
        for failure in failures:
            raise failure
        await start(force_build)

    environment.start = started
    trial.add_hook(TrialEvent.ENVIRONMENT_START, build_first)


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
            if not any(next(os.walk(logs), ("", [], []))[1:]):  # as our own loop's; a thread costs an episode 0.2 ms
                await read(target)
                return
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
