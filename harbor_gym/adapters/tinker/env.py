"""The token environment as tinker-cookbook's ``Env``."""

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    Action,
    ActionExtra,
    Env,
    InitialObservationOverflow,
    Logs,
    Metrics,
    StepResult,
    StopReason,
    Trajectory,
)

from harbor_gym._runtime.shielded import shielded
from harbor_gym.adapters.tinker.branch import Branch
from harbor_gym.adapters.tinker.codec import RendererCodec
from harbor_gym.adapters.tinker.shaping import TrajectoryReward, trajectory_reward
from harbor_gym.config import Snapshot
from harbor_gym.errors import HarborGymError
from harbor_gym.outcomes import describe
from harbor_gym.stragglers import DropReason
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.transcripts import add_logprobs, episode_name, write_transcript
from harbor_gym.types import EndReason, EpisodeInfo, ForkMode, TokenStep

logger = logging.getLogger(__name__)

_COOKBOOK_WORDS: dict[EndReason, str] = {
    EndReason.COMPLETED: StopReason.COMPLETED,
    EndReason.MAX_TURNS: StopReason.MAX_TURNS,
    EndReason.MAX_TOKENS: StopReason.MAX_TOKENS,
    EndReason.CONTEXT_OVERFLOW: StopReason.CONTEXT_OVERFLOW,
    EndReason.PARSE_FAILURES: StopReason.PARSE_ERROR,
}

STOP_REASONS: tuple[str, ...] = tuple(
    str(_COOKBOOK_WORDS.get(reason, reason.value))
    for reason in EndReason
    if reason not in (EndReason.INFRASTRUCTURE_ERROR, EndReason.DROPPED)
)
"""Every ``stop/<reason>`` that this environment reports: the cookbook's reason if it has one, else the end reason."""


def stop_metric(reason: EndReason) -> str:
    """Return the name of the metric for an end reason."""
    return f"{STOP_METRIC_PREFIX}{_COOKBOOK_WORDS.get(reason, reason.value)}"


class HarborTerminalTinkerEnv(Env):
    """One episode of a Harbor task for tinker-cookbook's RL loop. Single-use, as the cookbook's environments are.

    Observations are ``tinker.ModelInput`` objects that extend one another; actions are sampled tokens, whose text is
    in the environment's ``action_format``. The reward is the verifier's, for every end reason; an infrastructure
    failure raises, and the loop's rollout strategy retries or leaves out the episode.

    Args:
        token_env: The token environment. This object owns it.
        codec: The codec of ``token_env``.
        labels: The episode's labels in logs and its transcript.
        transcript_path: The file for the episode's transcript; None writes none.
        reward: Adds to the reward of the last transition; its metric is ``trajectory_reward``.
    """

    def __init__(
        self,
        token_env: TokenTerminalEnv,
        codec: RendererCodec,
        *,
        labels: dict[str, Any] | None = None,
        transcript_path: Path | None = None,
        reward: TrajectoryReward | None = None,
    ) -> None:
        self._token_env = token_env
        self._codec = codec
        self._labels = dict(labels or {})
        self.name = episode_name(self._labels)
        """The episode's name for people."""

        self._transcript_path = transcript_path
        self._reward = reward
        self._sums: Metrics = {}
        self._written = False
        self.branch: Branch | None = None
        """Where copies of the episode will begin; None makes none."""

        self.snapshot_mode: ForkMode = "replay"
        """See :meth:`harbor_gym.AsyncTerminalGymEnv.snapshot`."""

        self.snapshots: dict[int, Snapshot] = {}
        """Turns at which the copies may begin → the snapshot, with its tokens; :meth:`close` frees their dumps."""

        self.error: HarborGymError | None = None
        """The error that ended the episode, if one did."""

    async def initial_observation(self) -> tuple[tinker.ModelInput, StopCondition] | InitialObservationOverflow:
        """Start the sandbox and return the first prompt.

        Returns:
            The prompt and the stop condition, or the cookbook's overflow sentinel with the verifier's reward when
            the prompt alone would not fit the context.

        Raises:
            HarborGymError: The task, the sandbox or its terminal failed.
        """
        try:
            step = await self._token_env.reset()
        except HarborGymError as exc:
            await self._write_transcript(exc)
            raise
        metrics = self._metrics(step)
        if step.done:
            await self._write_transcript()
            return InitialObservationOverflow(reward=step.reward, metrics=metrics)
        self._sums = {name: value for name, value in metrics.items() if name.startswith(("time/", "pool/"))}
        return tinker.ModelInput.from_ints(step.observation), self._codec.stop

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Type the text of the sampled tokens and return the extended prompt.

        Args:
            action: Sampled token ids.
            extra: The cookbook's note on why sampling stopped.

        Raises:
            HarborGymError: Sandbox, terminal or verifier failed; there is no reward then.
            UsageError: The trajectory's reward is not a finite number.
        """
        stop_reason = (extra or {}).get("stop_reason", "stop")
        return await self._result(self._token_env.step(action, stop_reason=stop_reason))

    async def cut(self) -> StepResult:
        """End the episode because the batch's deadline has passed, and verify it.

        Returns:
            A replacement for the last transition, with the verifier's reward.

        Raises:
            HarborGymError: As :meth:`step`.
        """
        return await self._result(self._token_env.truncate(EndReason.BATCH_DEADLINE))

    async def drop(self, why: DropReason) -> None:
        """Stop the sandbox of a dropped episode, and note this in its transcript."""
        await self.close()
        await self._write_transcript(dropped=why)

    async def _result(self, taking: Awaitable[TokenStep]) -> StepResult:
        try:
            step = await taking
        except HarborGymError as exc:
            await self._write_transcript(exc)
            raise
        metrics = self._metrics(step)
        added = 0.0
        if step.done:
            if self._reward is not None:
                added = await trajectory_reward(self._reward, self._token_env.transcript)
                self._labels["trajectory_reward"] = metrics["trajectory_reward"] = added
            self._log_end(step)
            await self._write_transcript()
        elif self.branch is not None:
            await self._keep_snapshot(self.branch)
        return StepResult(
            reward=step.reward + added,
            episode_done=step.done,
            next_observation=tinker.ModelInput.from_ints(step.observation),
            next_stop_condition=self._codec.stop,
            metrics=metrics,
            logs=self._logs(step.info),
        )

    async def close(self) -> None:
        """Stop the sandbox. Idempotent, at any time."""
        for snapshot in self.snapshots.values():
            snapshot.close()
        await self._token_env.close()

    async def note_logprobs(self, trajectory: Trajectory) -> None:
        """Add the sampled tokens' log-probabilities, which the loop reveals only at the end, to the transcript."""
        if self._transcript_path is not None:
            known = [transition.ac.maybe_logprobs for transition in trajectory.transitions]
            known = [None] * (len(self._token_env.transcript.turns) - len(known)) + known  # a copy's begin later
            await asyncio.to_thread(add_logprobs, self._transcript_path, known)

    async def _keep_snapshot(self, branch: Branch) -> None:
        taken = len(self._token_env.transcript.turns)
        for turn in [turn for turn in self.snapshots if not branch.may_begin(turn, taken=taken)]:
            self.snapshots.pop(turn).close()
        if branch.may_begin(taken, taken=taken):
            self.snapshots[taken] = await self._token_env.snapshot(mode=self.snapshot_mode)

    def _metrics(self, step: TokenStep) -> Metrics:
        metrics: Metrics = {**self._sums, **step.info["metrics"]}
        self._sums = {}
        metrics["parse_error"] = float(step.info.get("parse_error") is not None)
        if step.done:
            metrics["off_template_history"] = float(self._codec.off_template)
            reason = step.info.get("end_reason", EndReason.COMPLETED)
            metrics[stop_metric(reason)] = 1.0
            for name, value in step.info.get("rewards", {}).items():
                metrics[f"verifier/{name}"] = value
        return metrics

    def _logs(self, info: EpisodeInfo) -> Logs:
        turn = self._token_env.transcript.turns[-1]
        logs: Logs = {"shown": turn.observation, "action": turn.action}
        if (reason := info.get("end_reason")) is not None:
            logs["end_reason"] = reason.value
            logs["final_observation"] = self._token_env.transcript.final_observation
        return logs

    def _log_end(self, step: TokenStep) -> None:
        reason = step.info.get("end_reason", EndReason.COMPLETED)
        turns = len(self._token_env.transcript.turns)
        logger.info("%s: %s after %d turns, reward %g", self.name, reason.value, turns, step.reward)

    async def _write_transcript(
        self, error: HarborGymError | None = None, *, dropped: DropReason | None = None
    ) -> None:
        if error is not None:
            self.error = error
        if self._transcript_path is None or (self._written and dropped is None):
            return
        self._written = True
        writing = asyncio.to_thread(
            write_transcript,
            self._transcript_path,
            self._token_env.transcript,
            labels=self._labels,
            error=describe(error) if error is not None else None,
            dropped=dropped,
        )
        await shielded(writing)  # if the episode is dropped meanwhile, `drop` writes the file again afterwards
