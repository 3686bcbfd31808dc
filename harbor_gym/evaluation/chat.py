"""Play the episodes of an evaluation with a model behind a chat endpoint."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError
from harbor_gym.evaluation.episodes import EpisodeResult, error_text, with_recording
from harbor_gym.formats.prompts import system_prompt
from harbor_gym.samplers import ChatEndpoint, run_chat_episode
from harbor_gym.samplers.chat import ChatAnswer, Messages
from harbor_gym.tokens import Transcript
from harbor_gym.transcripts import write_transcript


@dataclass(frozen=True)
class ChatPlayer:
    """A model behind an OpenAI-style chat endpoint, in our own loop."""

    endpoint: ChatEndpoint
    """The open endpoint."""

    retries: int = 1
    """Fresh attempts at an episode that an infrastructure error ended."""

    transcripts_dir: Path | None = None
    """Where to write transcripts and recordings, as a training run does; None writes none."""

    async def attempt(self, config: TerminalEnvConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        """Play an episode once; return the infrastructure error too, if that ended it."""
        name = config.task_dir.resolve().name
        config, path = with_recording(config, self.transcripts_dir, name, number)
        started, sampling_sec = time.monotonic(), 0.0

        async def ask(messages: Messages) -> ChatAnswer:
            nonlocal sampling_sec
            asked = time.monotonic()
            try:
                return await self.endpoint(messages)
            finally:
                sampling_sec += time.monotonic() - asked

        rollout = await run_chat_episode(AsyncTerminalGymEnv(config), ask)
        seconds = time.monotonic() - started
        if path is not None:
            labels = {"task": name, "group": name, "episode": number}
            prompt = system_prompt(config.action_format)
            transcript = Transcript(turns=list(rollout.turns), system_prompt=prompt, cut=rollout.cut)
            await asyncio.to_thread(write_transcript, path, transcript, labels=labels, error=error_text(rollout.error))
        result = EpisodeResult(
            task=name,
            episode=number,
            reward=rollout.reward,
            end_reason=rollout.end_reason,
            turns=len(rollout.turns),
            prompt_tokens=rollout.turns[-1].prompt_tokens if rollout.turns else 0,
            sampled_tokens=sum(turn.sampled_tokens for turn in rollout.turns),
            seconds=round(seconds, 3),
            sampling_sec=round(sampling_sec, 3),
            error=error_text(rollout.error),
        )
        return result, rollout.error
