"""One of Harbor's agents as tinker-cookbook's ``Env``: the agent's requests are the observations."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    InitialObservationOverflow,
    Metrics,
    StepResult,
    Trajectory,
)

from harbor_gym._runtime.shielded import shielded
from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.adapters.tinker.codec import RendererCodec
from harbor_gym.adapters.tinker.env import stop_metric
from harbor_gym.adapters.tinker.shaping import TrajectoryReward, trajectory_reward
from harbor_gym.config import AgentEpisodeConfig
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.gateway import SessionLimits
from harbor_gym.outcomes import describe
from harbor_gym.stragglers import BatchDeadlineError, DropReason, EpisodeClock
from harbor_gym.transcripts import episode_name, write_transcript
from harbor_gym.types import Rollout, Sample, Transcript

logger = logging.getLogger(__name__)


@dataclass
class _Request:
    prompt: list[int]
    answer: asyncio.Future[Sample]


class HarborAgentTinkerEnv(Env):
    """One episode with an agent for tinker-cookbook's RL loop. Single-use, as the cookbook's environments are.

    The agent runs in a Harbor trial and calls a session of the gateway. Each request becomes an observation, the
    session's exact tokens, and the sampled action becomes the answer. The last action gets the verifier's reward; an
    infrastructure failure raises.

    Args:
        config: The task, the sandbox and the agent.
        codec: Writes and reads chats in the model family's format.
        max_tokens: The sampler's limit for one message, in tokens.
        max_context_tokens: The model's context window in tokens; None sets no limit.
        labels: The episode's labels in logs and its transcript.
        transcript_path: The file for the episode's transcript; None writes none.
        reward: Adds to the reward of the last transition; its metric is ``trajectory_reward``.
    """

    def __init__(
        self,
        config: AgentEpisodeConfig,
        codec: RendererCodec,
        *,
        max_tokens: int,
        max_context_tokens: int | None = None,
        labels: dict[str, Any] | None = None,
        transcript_path: Path | None = None,
        reward: TrajectoryReward | None = None,
    ) -> None:
        self._codec, self._config, self._labels = codec, config, labels or {}
        self.name = episode_name(self._labels)
        """The episode's name for people."""

        self._transcript_path, self._reward = transcript_path, reward
        limits = SessionLimits(max_context_tokens=max_context_tokens, max_answer_tokens=max_tokens)
        # The loop's strategy retries an episode.
        self._interface = RolloutInterface(config, self._sample, codec, limits=limits, max_retries=0)
        self._requests: asyncio.Queue[_Request] = asyncio.Queue()
        self._playing: asyncio.Task[Rollout] | None = None
        self._request: _Request | None = None
        self._rollout: Rollout | None = None
        self._started = 0.0
        self.ends_at: float | None = None
        """The batch's deadline by the event loop's clock, set before the episode starts; None sets none."""

        self.error: HarborGymError | None = None
        """The error that ended the episode, if one did."""

    async def initial_observation(self) -> tuple[tinker.ModelInput, StopCondition] | InitialObservationOverflow:
        """Start the trial and return the agent's first prompt.

        Returns:
            The prompt and the stop condition, or the cookbook's overflow sentinel with the verifier's reward when the
            agent ended without an answer: its first prompt does not fit, or it made no request.

        Raises:
            HarborGymError: The task, the sandbox or the agent failed.
        """
        if self._playing is not None:
            raise UsageError("an environment plays one episode")
        self._started = time.monotonic()
        clock = EpisodeClock(self.ends_at)
        self._playing = asyncio.create_task(self._interface.run_one(self._config.task_dir, clock=clock))
        prompt = await self._next()
        if prompt is None:
            reward, metrics = await self._end()
            return InitialObservationOverflow(reward=reward, metrics=metrics)
        return tinker.ModelInput.from_ints(prompt), self._codec.stop

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Answer the agent and return its next prompt.

        Args:
            action: Sampled token ids.
            extra: The cookbook's note on why sampling stopped.

        Raises:
            HarborGymError: Sandbox, agent or verifier failed; there is no reward then.
        """
        if self._request is None:
            raise UsageError("step can't be called before initial_observation")
        # A budget may have run out, or the agent gone, while the cookbook sampled.
        if not self._request.answer.done():
            self._request.answer.set_result(Sample(list(action), None, (extra or {}).get("stop_reason", "stop")))
        return await self._result(await self._next())

    async def cut(self) -> StepResult:
        """End the agent because the batch's deadline has passed, and verify the episode.

        Returns:
            A replacement for the last transition, with the verifier's reward.

        Raises:
            HarborGymError: As :meth:`step`.
        """
        prompt = None if self._request is None else self._request.prompt
        while prompt is not None:
            if self._request is not None and not self._request.answer.done():
                self._request.answer.set_exception(BatchDeadlineError("the batch's deadline has passed"))
            prompt = await self._next()
        return await self._result(None)

    async def drop(self, why: DropReason) -> None:
        """End the agent of a dropped episode, stop its sandbox, and note this in its transcript."""
        await self.close()
        await self._write_transcript(Transcript(), dropped=why)

    async def _result(self, prompt: list[int] | None) -> StepResult:
        is_done = prompt is None
        reward, metrics = await self._end() if is_done else (0.0, {})
        return StepResult(
            reward=reward,
            episode_done=is_done,
            next_observation=tinker.ModelInput.from_ints(prompt or []),
            next_stop_condition=self._codec.stop,
            metrics=metrics,
        )

    async def close(self) -> None:
        """End the agent and stop the sandbox. Idempotent, at any time."""
        playing, self._playing = self._playing, None
        if playing is not None:
            playing.cancel()
            with contextlib.suppress(asyncio.CancelledError, HarborGymError):
                await asyncio.wait([playing])

    def keep_segments(self, trajectory: Trajectory) -> None:
        """Order a trajectory's transitions by the rollout's segments, and remove answers that no segment trains.

        The cookbook makes one datum of turns that extend one another, and begins a new datum at any other turn.
        """
        if self._rollout is None:
            return
        wholes = [(len(segment.prompt), segment.token_ids, segment.mask) for segment in self._rollout.segments]
        homes = [(_home(item.ob.to_ints(), item.ac.tokens, wholes), item) for item in trajectory.transitions]
        kept = [item for number in range(len(wholes)) for home, item in homes if home == number]
        if not kept:
            return
        end, last = kept[-1], trajectory.transitions[-1]
        if end is not last:
            end.reward, last.reward = last.reward, end.reward
            end.metrics, last.metrics = last.metrics, end.metrics
            end.episode_done, last.episode_done = True, False
        trajectory.transitions[:] = kept

    async def _sample(self, prompt: Sequence[int]) -> Sample:
        request = _Request(list(prompt), asyncio.get_running_loop().create_future())
        await self._requests.put(request)
        return await request.answer

    async def _next(self) -> list[int] | None:
        """Return the agent's next prompt; None when the episode is over."""
        assert self._playing is not None
        while True:
            waiting = asyncio.ensure_future(self._requests.get())
            try:
                await asyncio.wait((waiting, self._playing), return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    self._rollout = await self._playing
                    return None
                request = waiting.result()
            finally:
                waiting.cancel()
            if not request.answer.done():
                self._request = request
                return request.prompt

    async def _end(self) -> tuple[float, Metrics]:
        """Return the reward and the last metrics, and write the transcript.

        Raises:
            HarborGymError: There is no verdict.
        """
        assert self._rollout is not None
        rollout = self._rollout
        if rollout.error is not None or rollout.reward is None:
            assert rollout.error is not None
            self.error = rollout.error
            await self._write_transcript(rollout.transcript)
            raise rollout.error
        reward = rollout.reward
        logger.info("%s: %s, reward %g", self.name, rollout.end_reason, reward)
        metrics: Metrics = {**rollout.metrics, "off_template_history": float(self._codec.off_template)}
        metrics |= {stop_metric(rollout.end_reason): 1.0, "time/episode_sec": time.monotonic() - self._started}
        turns = rollout.transcript.turns
        if self._reward is not None and turns:
            added = await trajectory_reward(self._reward, rollout.transcript)
            metrics["trajectory_reward"] = added
            reward += added
            turns[-1] = replace(turns[-1], reward=reward)
        await self._write_transcript(rollout.transcript)
        return reward, metrics

    async def _write_transcript(self, transcript: Transcript, *, dropped: DropReason | None = None) -> None:
        if self._transcript_path is None:
            return
        error = None if self.error is None else describe(self.error)
        await shielded(
            asyncio.to_thread(
                write_transcript, self._transcript_path, transcript, labels=self._labels, error=error, dropped=dropped
            )
        )


def _home(prompt: list[int], sampled: list[int], wholes: Sequence[tuple[int, list[int], list[int]]]) -> int | None:
    """Return the index of the segment that trains an answer; None if there is none.

    Args:
        prompt: The answer's prompt.
        sampled: The answer's tokens.
        wholes: Each segment's length of the prompt, all tokens, and mask.
    """
    whole = [*prompt, *sampled]

    def holds(shown: int, tokens: list[int], mask: list[int]) -> bool:
        start = len(prompt) - shown
        return start >= 0 and tokens[: len(whole)] == whole and all(mask[start : start + len(sampled)])

    return next((number for number, item in enumerate(wholes) if holds(*item)), None)
