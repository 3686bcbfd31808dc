"""Grade the stored episodes of a run anew: each is replayed in a fresh sandbox and verified by its task of today."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym._runtime.files import StrPath, open_regular
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.config import DEFAULT_MAX_RETRIES, DEFAULT_N_CONCURRENT, Snapshot
from harbor_gym.config.snapshot import NO_START
from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import ForkDivergedError, HarborGymError, UsageError
from harbor_gym.outcomes import RetryBudget, describe
from harbor_gym.transcripts import read_transcript, transcripts_of
from harbor_gym.types import EndReason, StepResult, Turn

if TYPE_CHECKING:
    from harbor_gym.config import TerminalEnvConfig

_NOT_PLAYED = (EndReason.MAX_TOKENS,)
"""After these the last answer was not executed."""


@dataclass(frozen=True)
class Regraded:
    """A stored episode and its two rewards."""

    run: StrPath
    """The run's folder."""

    name: str
    """The transcript's path in the run's folder ``transcripts``, without its suffix."""

    task: str
    """Name of the task's directory."""

    old: float | None
    """The stored reward; None where there was no verdict."""

    new: float | None = None
    """The reward by the task's verifier of today; None where ``error`` says why."""

    error: str | None = None
    """Why there is no new reward: the replay showed another screen, the episode has no turns of our own loop, or the
    infrastructure failed."""

    @property
    def is_changed(self) -> bool:
        """Whether both rewards are known and differ."""
        return None not in (self.old, self.new) and self.old != self.new


async def regrade(
    runs: Sequence[StrPath],
    *,
    tasks: Mapping[str, StrPath] | None = None,
    sandbox: str | None = None,
    n_concurrent: int = DEFAULT_N_CONCURRENT,
    max_retries: int = DEFAULT_MAX_RETRIES,
    on_episode: Callable[[Regraded], None] | None = None,
) -> list[Regraded]:
    """Replay every stored episode of these runs in a fresh sandbox, and verify it by its task as it is today.

    An episode is replayed turn by turn, and each screen must be the recorded one. Where one differs, because the task's
    image or instruction changed, or a program prints what no replay repeats, the episode is not graded. Neither is one
    of an agent, whose turns are messages and not keys.

    Args:
        runs: Folders of training runs or evaluations.
        tasks: Name of a task's directory → where it is today. Other tasks are read where they were.
        sandbox: The kind of sandbox; None is the episode's own.
        n_concurrent: Concurrent episodes.
        max_retries: Retries of an episode, in a fresh sandbox, after failures of the infrastructure.
        on_episode: Called with each result as it is known.

    Returns:
        A result for each transcript, in the order of the runs and of the transcripts' names.

    Raises:
        UsageError: A run has no transcript, or a count is too small.
    """
    if n_concurrent < 1:
        raise UsageError(f"n_concurrent must be at least 1, got {n_concurrent}")
    stored = [(run, path) for run in map(Path, runs) for path in transcripts_of(run)]
    slots = asyncio.Semaphore(n_concurrent)

    async def one(run: Path, path: Path) -> Regraded:
        async with slots:
            result = await regrade_episode(run, path, tasks=tasks, sandbox=sandbox, max_retries=max_retries)
        if on_episode is not None:
            on_episode(result)
        return result

    async with task_group() as group:
        grading = [group.create_task(one(run, path)) for run, path in stored]
    return [task.result() for task in grading]


async def regrade_episode(
    run: Path,
    path: Path,
    *,
    tasks: Mapping[str, StrPath] | None = None,
    sandbox: str | None = None,
    verify_paths: VerifyPaths | None = None,
    max_retries: int = DEFAULT_MAX_RETRIES,
) -> Regraded:
    """Replay one stored episode in a fresh sandbox and verify it, as :func:`regrade` does with all.

    Args:
        run: The run's folder.
        path: The episode's transcript, in the run's folder ``transcripts``.
        tasks: Name of a task's directory → where it is today.
        sandbox: The kind of sandbox; None is the episode's own.
        verify_paths: The verifier's view, as ``TerminalEnvConfig.verify_paths``; None is the episode's own.
        max_retries: Retries after failures of the infrastructure.
    """
    transcripts = run / "transcripts"
    known = Regraded(run, path.relative_to(transcripts).with_suffix("").as_posix(), "", None)
    try:
        open_regular(path, transcripts).close()
        transcript, document = await asyncio.to_thread(read_transcript, path)
        known = replace(known, task=str(document.get("task") or ""), old=document.get("reward"))
        start = await asyncio.to_thread(Snapshot.read, path)
    except OSError as exc:
        return replace(known, error=f"{path} can't be read: {exc.strerror}")
    except UsageError as exc:
        return replace(known, error=str(exc))
    task_dir = Path((tasks or {}).get(start.config.task_dir.name, start.config.task_dir))
    known = replace(known, task=task_dir.name)
    if (end := document.get("end_reason")) is None or document.get("error"):
        return replace(known, error="the episode did not come to its end")
    same = {**NO_START, "start_from": start, "start_mode": "replay", "copy_command": None}
    changes = {**same, "task_dir": task_dir, "trials_dir": None}
    given = {"sandbox": sandbox, "verify_paths": verify_paths}
    config = start.config.model_copy(update=changes | {name: one for name, one in given.items() if one is not None})
    last = transcript.turns[-1] if transcript.turns and EndReason(end) not in _NOT_PLAYED else None

    async def attempt() -> Regraded:
        try:
            ended = await _play(config, last, EndReason(end))
        except ForkDivergedError as exc:  # another attempt would most likely differ, too
            return replace(known, error=str(exc))
        return replace(known, new=ended.end["episode_reward"])

    try:
        return await RetryBudget(max_retries, warns=False).run(attempt)
    except HarborGymError as exc:
        return replace(known, error=describe(exc))


async def _play(config: "TerminalEnvConfig", last: Turn | None, end: EndReason) -> StepResult:
    """Replay an episode to its last turn, take that, and end it as it ended."""
    env = AsyncTerminalGymEnv(config)
    try:
        await env.reset()
        if last is not None:
            result = await env.step(last.action if last.commands is None else last.commands)
            if result.done:
                return result
        if end.is_truncation:
            return await env.truncate(end)
        if end in (EndReason.COMPLETED, EndReason.NO_TOOL_CALL):
            return await env.finish(end)
        raise ForkDivergedError(f"the episode ended as {end.value}, and its replay goes on")
    finally:
        await env.close()


def format_regraded(results: Sequence[Regraded], *, every: bool = False) -> str:
    """Return a table of the episodes whose reward changed, or of all, and a line of counts."""
    from harbor_gym._runtime.console.tables import plain_table

    several = len({result.run for result in results}) > 1
    rows = [
        [
            *([Path(result.run).name] if several else []),
            *(result.name, result.task, _number(result.old), _number(result.new), result.error or ""),
        ]
        for result in results
        if every or result.is_changed or result.new is None
    ]
    head = [*(["run"] if several else []), "episode", "task", "old", "new", "why there is none"]
    graded = [result for result in results if result.new is not None]
    changed = sum(result.is_changed for result in graded)
    counts = f"{len(graded)} of {len(results)} episodes graded anew, {changed} of them with another reward"
    if both := [(result.old, result.new) for result in graded if result.old is not None and result.new is not None]:
        before, after = (sum(values) / len(both) for values in zip(*both, strict=True))
        counts += f"; mean reward {after:.3f}, before {before:.3f}"
    return "\n".join([*([plain_table(head, rows, right=[len(head) - 3, len(head) - 2])] if rows else []), counts])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
