"""One episode as tinker-cookbook's ``Env``, by any player, and the one that our own loop plays."""

import asyncio
import contextlib
import json
import logging
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, override

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
    Transition,
)

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.shielded import shielded
from harbor_gym._runtime.traces import left_to_caller
from harbor_gym.adapters.tinker.branch import Branch
from harbor_gym.adapters.tinker.codec import TrainedCodec
from harbor_gym.adapters.tinker.shaping import TrajectoryReward, trajectory_reward
from harbor_gym.checking.audit.episodes import Played, find_in_episode, limit_of
from harbor_gym.config import Snapshot
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.formats.prompts import SUMMARY_REQUEST
from harbor_gym.outcomes import describe
from harbor_gym.rollout import run_episode
from harbor_gym.stragglers import BatchDeadlineError, DropReason
from harbor_gym.tasks.receipts import Finding
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.transcripts import add_logprobs, episode_name, write_transcript
from harbor_gym.types import EndReason, ForkMode, Rollout, Sample, Transcript

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


LIMITS = frozenset(str(_COOKBOOK_WORDS.get(reason, reason.value)) for reason in EndReason if reason.is_truncation)
"""The reasons among these that are limits."""

FINDINGS = "audit"
"""The key of an episode's findings, as JSON, in the logs of its last transition, where there are any."""


def stop_metric(reason: EndReason) -> str:
    """Return the name of the metric for an end reason."""
    return f"{STOP_METRIC_PREFIX}{_COOKBOOK_WORDS.get(reason, reason.value)}"


@dataclass
class _Request:
    prompt: list[int]
    answer: asyncio.Future[Sample]


class EpisodeEnv(Env):
    """One episode for tinker-cookbook's RL loop. Single-use, as the cookbook's environments are.

    A player plays the episode in a task of its own. Each prompt that it wants to have answered is an observation, and
    the sampled action is the answer. The last action gets the verifier's reward, for every end reason; an
    infrastructure failure raises, and the loop's rollout strategy retries or leaves out the episode.

    Args:
        codec: The codec of the episode's tokens.
        labels: The episode's labels in logs and its transcript.
        transcript_path: The file for the episode's transcript; None writes none.
        reward: Adds to the reward of the last transition; its metric is ``trajectory_reward``.
    """

    def __init__(
        self,
        codec: TrainedCodec,
        *,
        labels: dict[str, Any] | None = None,
        transcript_path: StrPath | None = None,
        reward: TrajectoryReward | None = None,
    ) -> None:
        self._codec = codec
        self._labels = dict(labels or {})
        self.name = episode_name(self._labels)
        """The episode's name for people."""

        self._transcript_path = None if transcript_path is None else Path(transcript_path)
        self._reward = reward
        self._written = False
        self._requests: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._request: _Request | None = None
        self._playing: asyncio.Task[Rollout] | None = None
        self._rollout: Rollout | None = None
        self._returned = 0.0
        self._findings: list[Finding] = []
        self.ends_at: float | None = None
        """The batch's deadline by the event loop's clock, set before the episode starts; None sets none."""

        self.error: HarborGymError | None = None
        """The error that ended the episode, if one did."""

    @abstractmethod
    async def _play(self) -> Rollout:
        """Play the episode to its end, with :meth:`_ask` as the policy."""

    @abstractmethod
    def _transcript(self) -> Transcript:
        """Return the episode as text, as far as it is known."""

    @abstractmethod
    def _last_turn(self) -> tuple[float, Metrics, Logs]:
        """Return the reward, the metrics and the logs of the last turn, which may have ended the episode."""

    async def initial_observation(self) -> tuple[tinker.ModelInput, StopCondition] | InitialObservationOverflow:
        """Start the episode and return the first prompt.

        Returns:
            The prompt and the stop condition, or the cookbook's overflow sentinel with the verifier's reward when the
            episode ended without an answer: the first prompt does not fit the context, or an agent made no request.

        Raises:
            HarborGymError: The task, the sandbox, its terminal or the agent failed.
        """
        if self._playing is not None:
            raise UsageError("an environment plays one episode")
        self._playing = asyncio.create_task(self._play_untraced())
        self._playing.add_done_callback(lambda _: self._requests.put_nowait(None))
        if (prompt := await self._next_prompt()) is None:
            ended = await self._result(None)
            return InitialObservationOverflow(reward=ended.reward, metrics=ended.metrics)
        return tinker.ModelInput.from_ints(prompt), self._codec.stop

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Answer the player with the sampled tokens, and return its next prompt.

        Args:
            action: Sampled token ids.
            extra: The cookbook's note on why sampling stopped.

        Raises:
            HarborGymError: Sandbox, terminal, agent or verifier failed; there is no reward then.
            UsageError: The trajectory's reward is not a finite number.
        """
        if self._request is None:
            raise UsageError("step can't be called before initial_observation")
        # A budget may have run out, or the agent gone, while the cookbook sampled.
        if not self._request.answer.done():
            self._request.answer.set_result(Sample(list(action), None, (extra or {}).get("stop_reason", "stop")))
        return await self._result(await self._next_prompt())

    async def cut(self) -> StepResult:
        """End the episode because the batch's deadline has passed, and verify it.

        Returns:
            A replacement for the last transition, with the verifier's reward.

        Raises:
            HarborGymError: As :meth:`step`.
        """
        assert self._request is not None, "the deadline cuts an episode that waits for an answer"
        prompt: list[int] | None = self._request.prompt
        while prompt is not None:
            if not self._request.answer.done():
                self._request.answer.set_exception(BatchDeadlineError("the batch's deadline has passed"))
            prompt = await self._next_prompt()
        return await self._result(None)

    async def complete(self, trajectory: Trajectory) -> None:
        """Make the trajectory one to train on, or the transcript complete, once the loop has the whole episode."""

    @staticmethod
    def _keep_trained(trajectory: Trajectory, trained: Iterable[Sequence[int]]) -> None:
        """Reduce a trajectory to the answers that are trained, in their order; what the last one got stays last.

        Args:
            trajectory: Every prompt and answer, in the order of the answers.
            trained: Each prompt with its answer.
        """
        waiting: dict[tuple[int, ...], list[Transition]] = {}
        for item in trajectory.transitions:
            waiting.setdefault((*item.ob.to_ints(), *item.ac.tokens), []).append(item)
        kept = [waiting[key].pop(0) for key in map(tuple, trained) if waiting.get(key)]
        if not kept:
            return
        end, last = kept[-1], trajectory.transitions[-1]
        if end is not last:
            end.reward, last.reward = last.reward, end.reward
            end.metrics, last.metrics = last.metrics, end.metrics
            end.episode_done, last.episode_done = True, False
        end.reward += sum(item.reward for left_out in waiting.values() for item in left_out)
        trajectory.transitions[:] = kept

    async def drop(self, why: DropReason) -> None:
        """Stop the sandbox of a dropped episode, and note this in its transcript."""
        await self.close()
        await self._write_transcript(dropped=why)

    async def close(self) -> None:
        """Stop the sandbox. Idempotent, at any time."""
        if self._playing is None:
            return
        was_over = self._playing.done()
        self._playing.cancel()
        await asyncio.wait([self._playing])
        error = None if self._playing.cancelled() else self._playing.exception()
        if error is not None and not was_over:
            raise error

    async def _play_untraced(self) -> Rollout:
        with contextlib.nullcontext() if self._transcript_path is None else left_to_caller():  # it has the labels
            return await self._play()

    async def _ask(self, prompt: Sequence[int]) -> Sample:
        request = _Request(list(prompt), asyncio.get_running_loop().create_future())
        self._requests.put_nowait(request)
        return await request.answer

    async def _next_prompt(self) -> list[int] | None:
        """Return the next prompt that still needs an answer; None when the episode is over.

        Raises:
            HarborGymError: There is no verdict.
        """
        while (request := await self._requests.get()) is not None:
            if not request.answer.done():
                self._request = request
                return request.prompt
        assert self._playing is not None
        try:
            self._rollout = await self._playing
            if self._rollout.error is not None:
                raise self._rollout.error
        except HarborGymError as exc:
            self.error = exc
            await self._write_transcript()
            raise
        return None

    async def _result(self, prompt: list[int] | None) -> StepResult:
        reward, metrics, logs = self._last_turn()
        self._returned += reward
        if prompt is None:
            reward, ended = await self._end(reward)
            metrics |= ended
            if self._findings:
                logs = {**logs, FINDINGS: json.dumps([one.model_dump(mode="json") for one in self._findings])}
        return StepResult(
            reward=reward,
            episode_done=prompt is None,
            next_observation=tinker.ModelInput.from_ints(prompt or []),
            next_stop_condition=self._codec.stop,
            metrics=metrics,
            logs=logs,
        )

    async def _end(self, reward: float) -> tuple[float, Metrics]:
        """Record the end of a verified episode, and return the last transition's reward and further metrics.

        Args:
            reward: The reward of the last transition.

        Raises:
            UsageError: The trajectory's reward is not a finite number.
        """
        assert self._rollout is not None
        transcript, reason = self._transcript(), self._rollout.end_reason
        metrics: Metrics = {"off_template_history": float(self._codec.off_template), stop_metric(reason): 1.0}
        metrics |= {f"verifier/{name}": value for name, value in self._rollout.rewards.items()}
        if self._reward is not None and transcript.turns:
            added = await trajectory_reward(self._reward, transcript)
            self._labels["trajectory_reward"] = metrics["trajectory_reward"] = added
            reward += added
        played = Played(
            self.name,
            transcript,
            self._rollout.reward,
            limit_of(reason),
            (transcript.last_info or {}).get("verifier_output", ""),
        )
        self._findings = await asyncio.to_thread(find_in_episode, played)
        logger.info("%s: %s after %d turns, reward %g", self.name, reason.value, len(transcript.turns), reward)
        await self._write_transcript()
        return reward, metrics

    async def _write_transcript(self, *, dropped: DropReason | None = None) -> None:
        if self._transcript_path is None or (self._written and dropped is None):
            return
        self._written = True
        writing = asyncio.to_thread(
            write_transcript,
            self._transcript_path,
            self._transcript(),
            labels=self._labels,
            error=None if self.error is None else describe(self.error),
            dropped=dropped,
        )
        await shielded(writing)  # if the episode is dropped meanwhile, `drop` writes the file again afterwards


class HarborTerminalTinkerEnv(EpisodeEnv):
    """One episode of our own loop for tinker-cookbook's RL loop.

    Observations are ``tinker.ModelInput`` objects that extend one another; actions are sampled tokens, whose text is
    in the environment's ``action_format``.

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
        codec: TrainedCodec,
        *,
        labels: dict[str, Any] | None = None,
        transcript_path: StrPath | None = None,
        reward: TrajectoryReward | None = None,
    ) -> None:
        super().__init__(codec, labels=labels, transcript_path=transcript_path, reward=reward)
        self._token_env = token_env
        self._is_first_turn = True
        self.branch: Branch | None = None
        """Where copies of the episode will begin; None makes none."""

        self.snapshot_mode: ForkMode = "replay"
        """See :meth:`harbor_gym.AsyncTerminalGymEnv.snapshot`."""

        self.snapshots: dict[int, Snapshot] = {}
        """Turns at which the copies may begin → the snapshot, with its tokens; :meth:`close` frees their dumps."""

    @override
    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        result = await super().step(action, extra=extra)
        if not result.episode_done and self.branch is not None:
            await self._keep_snapshot(self.branch)
        return result

    @override
    async def close(self) -> None:
        for snapshot in self.snapshots.values():
            snapshot.close()
        await super().close()
        await self._token_env.close()

    @override
    async def complete(self, trajectory: Trajectory) -> None:
        """Add the sampled tokens' log-probabilities, which the loop reveals only at the end, to the transcript."""
        if self._transcript_path is not None:
            known = [transition.ac.maybe_logprobs for transition in trajectory.transitions]
            answers = sum(1 + len(turn.summaries) for turn in self._token_env.transcript.turns)
            known = [None] * (answers - len(known)) + known  # a copy's begin later
            await asyncio.to_thread(add_logprobs, self._transcript_path, known)
        if self._rollout is not None and not self._token_env.trains_summaries:
            self._keep_trained(trajectory, [[*item.prompt, *item.sample.tokens] for item in self._rollout.transitions])

    async def _keep_snapshot(self, branch: Branch) -> None:
        taken = len(self._token_env.transcript.turns)
        for turn in [turn for turn in self.snapshots if not branch.may_begin(turn, taken=taken)]:
            self.snapshots.pop(turn).close()
        if branch.may_begin(taken, taken=taken):
            self.snapshots[taken] = await self._token_env.snapshot(mode=self.snapshot_mode)

    @override
    async def _play(self) -> Rollout:
        return await run_episode(self._token_env, self._ask)

    @override
    def _transcript(self) -> Transcript:
        return self._token_env.transcript

    @override
    def _last_turn(self) -> tuple[float, Metrics, Logs]:
        transcript = self._token_env.transcript
        metrics: Metrics = {}
        if self._is_first_turn and transcript.turns:  # it has the times of the start as well
            begun = transcript.infos[0]["metrics"]
            metrics |= {name: value for name, value in begun.items() if name.startswith(("time/", "pool/"))}
        self._is_first_turn = False
        info = transcript.last_info
        assert info is not None, "an episode without a turn has an end"
        metrics |= {**info["metrics"], "parse_error": float(info.get("parse_error") is not None)}
        if not transcript.turns:
            return transcript.reward, metrics, {}
        if (summary := self._token_env.summary) is not None:
            # The turn's own reward was returned with the turn; what the end adds is in the rollout's.
            reward, own = 0.0, {"summary_used": float(summary.state == "used")}
            if self._rollout is not None:
                reward, own = sum(item.reward for item in self._rollout.transitions) - self._returned, metrics
            return reward, own, {"shown": SUMMARY_REQUEST, "action": summary.text}
        last = transcript.turns[-1]
        logs: Logs = {"shown": last.observation, "action": last.action}
        if (reason := info.get("end_reason")) is not None:
            logs |= {"end_reason": reason.value, "final_observation": transcript.final_observation}
        return last.reward, metrics, logs
