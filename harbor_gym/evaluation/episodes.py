"""Play the episodes of an evaluation."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from harbor_gym._runtime.console.under_way import LABEL
from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.shielded import shielded
from harbor_gym._runtime.task_groups import task_group
from harbor_gym._runtime.traces import left_to_caller
from harbor_gym.config import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_N_CONCURRENT,
    EpisodeConfig,
    Snapshot,
    TerminalEnvConfig,
    aliases,
    require_own_loop,
)
from harbor_gym.config.snapshot import NO_START, KeepSnapshot, SnapshotFile
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.episode.task import load_task
from harbor_gym.errors import ForkDivergedError, HarborGymError, UsageError
from harbor_gym.outcomes import RetryBudget, describe
from harbor_gym.rollout import context_tokens_of, run_episode
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.transcripts import episode_name, write_transcript
from harbor_gym.types import ChatCodec, EndReason, Rollout, Sample, Sampler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpisodeResult:
    """One episode of an evaluation."""

    task: str
    """Name of the task's directory."""

    episode: int
    """Its number among the task's episodes, from 1."""

    reward: float | None
    """The verifier's reward; None after an infrastructure error."""

    end_reason: EndReason
    """Why it ended."""

    turns: int
    """Messages of the policy."""

    prompt_tokens: int
    """Length of the last answered prompt, in tokens."""

    sampled_tokens: int
    """Tokens that the policy sampled in all turns."""

    seconds: float
    """Wall-clock seconds from the sandbox's start to its end."""

    sampling_sec: float
    """Seconds of waiting for the sampler, included in ``seconds``."""

    error: str | None = None
    """The infrastructure error that ended the episode, if one did."""

    unread_calls: int = 0
    """An agent's messages that look like a tool call but can't be read as one."""

    failed_attempts: int = 0
    """Earlier attempts, each ended by an infrastructure error."""

    resumed: str | None = None
    """How an episode of an interrupted evaluation went on: ``exact`` or ``replay``. None if it did not."""


@aliases.accepting(aliases.PLAYER)
@dataclass(frozen=True)
class Player:
    """Plays episodes with a sampler of tokens."""

    codec: ChatCodec
    """Writes and reads chats in the model family's format."""

    sample: Sampler
    """The policy."""

    max_tokens: int
    """The sampler's limit for one message, in tokens."""

    max_context_tokens: int | None = None
    """The model's context window in tokens; None takes the window that the sampler's engine reports, if it does."""

    max_retries: int = DEFAULT_MAX_RETRIES
    """Retries of an episode, in a fresh sandbox, after failures of the infrastructure."""

    transcripts_dir: StrPath | None = None
    """Folder for transcripts and recordings, with the layout of a training run; None writes none."""

    async def attempt(self, config: EpisodeConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        """See :meth:`EpisodePlayer.attempt`."""
        timed = _TimedSampler(self.sample)

        async def play(config: EpisodeConfig, keep: KeepSnapshot | None) -> Rollout:
            env = TokenTerminalEnv(
                AsyncTerminalGymEnv(require_own_loop(config, "a sampler")),
                self.codec,
                max_tokens=self.max_tokens,
                max_context_tokens=self.max_context_tokens,
            )
            return await run_episode(env, timed, keep=keep)

        result, rollout = await play_recorded(config, number, play, self.transcripts_dir)
        return replace(result, sampling_sec=round(timed.seconds, 3)), rollout.error


class EpisodePlayer(Protocol):
    """The interface of :class:`Player` and its alternatives, which play the episodes of an evaluation."""

    @property
    def max_retries(self) -> int:
        """Retries of an episode, in a fresh sandbox, after failures of the infrastructure."""
        ...

    async def attempt(self, config: EpisodeConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        """Play an episode once; return its result, and the infrastructure error if one ended it.

        Args:
            config: The task, its sandbox and budgets.
            number: The episode's number among the task's, from 1.

        Raises:
            HarborGymError: The task or the configuration is wrong, which no retry can repair.
        """
        ...


type Play = Callable[[EpisodeConfig, KeepSnapshot | None], Awaitable[Rollout]]
"""Plays an episode of a configuration, and passes snapshots to the second argument, if there is one."""


async def play_recorded(
    config: EpisodeConfig,
    number: int,
    play: Play,
    transcripts_dir: StrPath | None,
) -> tuple[EpisodeResult, Rollout]:
    """Play an episode once, and write its transcript and the terminal's recording.

    Until the episode ends, its snapshot is kept in the same folder (``.snapshot``), with a dump if it was cancelled
    while it waited for the policy and its sandbox can be copied exactly. After an interruption the episode continues
    from there, without a usable dump by replay; if the replay diverges, it begins anew. ``seconds`` counts the
    continued part only.

    Args:
        config: The task, its sandbox and budgets.
        number: The episode's number among the task's, from 1.
        play: Plays the episode.
        transcripts_dir: Folder for transcripts; None writes none.

    Returns:
        The episode's result, with ``sampling_sec`` 0, and its rollout.
    """
    name = config.task_dir.resolve().name
    labels = {"task": name, "group": name, "episode": number}
    LABEL.set(episode_name(labels))
    path: Path | None = None
    start: Snapshot | None = None
    if transcripts_dir is not None:
        path = Path(transcripts_dir) / "test" / "batch_0000" / name / f"episode_{number:03d}.json"
        if isinstance(config, TerminalEnvConfig):
            config = config.model_copy(update={"recording_path": path.with_suffix(".cast")})
        start = await asyncio.to_thread(_read_kept, path.with_suffix(".snapshot"))
    started = time.monotonic()
    resumed: str | None = None
    if path is None:
        rollout = await play(config, None)
    else:
        with left_to_caller():  # the transcript has the labels
            rollout, resumed = await _play_on(config, play, path.with_suffix(".snapshot"), start)
    result = replace(result_of(name, number, rollout, time.monotonic() - started), resumed=resumed)
    if path is not None:
        await asyncio.to_thread(write_transcript, path, rollout.transcript, labels=labels, error=result.error)
        await asyncio.to_thread(Snapshot.remove, path.with_suffix(".snapshot"))
    return result, rollout


async def _play_on(config: EpisodeConfig, play: Play, kept: Path, start: Snapshot | None) -> tuple[Rollout, str | None]:
    """Play an episode, if possible from the snapshot ``start``, and write its snapshots to ``kept``.

    Returns:
        The rollout, and the ``fork_mode`` with which it went on from ``start``, if it did.
    """

    def keeping(begun: Snapshot | None) -> KeepSnapshot:
        file = SnapshotFile(kept, begun)

        async def keep(snapshot: Snapshot) -> None:
            with contextlib.suppress(UsageError):  # a configuration that JSON can't hold
                await shielded(asyncio.to_thread(file.keep, snapshot))

        return keep

    if start is not None and isinstance(config, TerminalEnvConfig):
        going_on = config.model_copy(update={**NO_START, "start_from": start, "copy_command": None})
        try:
            rollout = await play(going_on, keeping(start))
            if not isinstance(rollout.error, ForkDivergedError):
                return rollout, (rollout.transcript.start_info or {}).get("fork_mode")
            _log_anew(kept, rollout.error)
        except UsageError as exc:  # for instance, the task has changed
            _log_anew(kept, exc)
    return await play(config, keeping(None)), None


def _read_kept(path: Path) -> Snapshot | None:
    try:
        return Snapshot.read(path) if path.is_file() else None
    except UsageError as exc:
        _log_anew(path, exc)
        return None


def _log_anew(kept: Path, why: HarborGymError) -> None:
    logger.warning("%s begins anew: %s", kept.stem, why)


@aliases.accepting(aliases.PLAYER)
async def evaluate(
    tasks: Sequence[EpisodeConfig],
    player: EpisodePlayer,
    *,
    episodes: int,
    n_concurrent: int = DEFAULT_N_CONCURRENT,
    on_episode: Callable[[EpisodeResult], None] | None = None,
    played: Sequence[EpisodeResult] = (),
) -> list[EpisodeResult]:
    """Play every task's episodes, and return their results by task and number.

    Args:
        tasks: Each task once, with its sandbox and budgets. All are read before the first sandbox starts.
        player: Plays the episodes.
        episodes: Episodes per task.
        n_concurrent: Concurrent episodes, over all tasks.
        on_episode: Called with each result as its episode ends.
        played: Results of an earlier call; these episodes are not played again.

    Raises:
        TaskError: A task is wrong.
        UsageError: A count is below 1, two tasks have the same name, or there are no tasks.
        HarborGymError: An error that no retry can repair; the other episodes are cancelled and closed first.
    """
    for name, value in (("episodes", episodes), ("n_concurrent", n_concurrent)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}")
    names = [config.task_dir.resolve().name for config in tasks]
    if len(set(names)) < len(names) or not names:
        raise UsageError(f"an evaluation needs tasks of different names, got {', '.join(names) or 'none'}")
    for config in tasks:
        await load_task(config.task_dir, config)
    slots = asyncio.Semaphore(n_concurrent)

    known = {(result.task, result.episode): result for result in played}

    async def item(config: EpisodeConfig, number: int) -> EpisodeResult:
        if (earlier := known.get((config.task_dir.resolve().name, number))) is not None:
            return earlier
        await slots.acquire()
        result = await _play(config, player, number)
        slots.release()  # not after an error: no further episode begins while all are being cancelled
        if on_episode is not None:
            on_episode(result)
        return result

    async with task_group() as group:
        playing = [group.create_task(item(config, number)) for config in tasks for number in range(1, episodes + 1)]
    return [task.result() for task in playing]


async def _play(config: EpisodeConfig, player: EpisodePlayer, number: int) -> EpisodeResult:
    """Play one episode; after an infrastructure error, retry it in a fresh sandbox."""
    budget = RetryBudget(player.max_retries, warns=False)
    for attempt in itertools.count():
        result, error = await player.attempt(config, number)
        if error is None or not await budget.allows(error, attempt):
            return replace(result, failed_attempts=attempt)
    raise AssertionError("there is no end to the attempts' numbers")


def result_of(name: str, number: int, rollout: Rollout, seconds: float) -> EpisodeResult:
    """Return the result of a rollout, with ``sampling_sec`` 0."""
    turns, error = rollout.turns, rollout.error
    return EpisodeResult(
        task=name,
        episode=number,
        reward=rollout.reward,
        end_reason=rollout.end_reason,
        turns=len(turns),
        prompt_tokens=turns[-1].prompt_tokens if turns else 0,
        sampled_tokens=sum(turn.sampled_tokens for turn in turns),
        seconds=round(seconds, 3),
        sampling_sec=0.0,
        error=None if error is None else describe(error),
    )


class Timed[**P, T]:
    """Wraps a policy and adds up the seconds that its callers waited."""

    def __init__(self, ask: Callable[P, Awaitable[T]]) -> None:
        self._ask = ask
        self.seconds = 0.0

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the policy."""
        started = time.monotonic()
        try:
            return await self._ask(*args, **kwargs)
        finally:
            self.seconds += time.monotonic() - started


class _TimedSampler(Timed[[Sequence[int]], Sample]):
    async def context_tokens(self) -> int | None:
        return await context_tokens_of(self._ask)
