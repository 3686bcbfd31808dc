"""Play the episodes of an evaluation with any of Harbor's agents, against a model behind a chat endpoint."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from harbor.models.trial.config import AgentConfig

from harbor_gym.adapters.harbor.interface import RolloutInterface
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import HarborGymError
from harbor_gym.evaluation.episodes import EpisodeResult, error_text, with_recording
from harbor_gym.gateway.proxy import ProxyCodec, ProxySampler
from harbor_gym.samplers import ChatEndpoint
from harbor_gym.tokens import Transcript
from harbor_gym.transcripts import write_transcript


@dataclass(frozen=True)
class AgentPlayer:
    """One of Harbor's agents. It speaks to a session here, and never sees the endpoint's key."""

    endpoint: ChatEndpoint
    """The open endpoint."""

    agent: AgentConfig | str
    """As :class:`RolloutInterface` takes it."""

    retries: int = 1
    """Fresh attempts at an episode that an infrastructure error ended."""

    transcripts_dir: Path | None = None
    """Where to write transcripts, as a training run does; None writes none. An agent's terminal is not recorded."""

    async def attempt(self, config: TerminalEnvConfig, number: int) -> tuple[EpisodeResult, HarborGymError | None]:
        """Play an episode once; return the infrastructure error too, if that ended it."""
        name = config.task_dir.resolve().name
        _, path = with_recording(config, self.transcripts_dir, name, number)
        started = time.monotonic()
        sampler = ProxySampler(self.endpoint)
        interface = RolloutInterface.from_config(config, sampler, ProxyCodec(), self.agent)
        rollout = await interface.run_one(config.task_dir)
        seconds = time.monotonic() - started
        if path is not None:
            labels = {"task": name, "group": name, "episode": number}
            transcript = Transcript(list(rollout.turns), started=time.time() - seconds)
            await asyncio.to_thread(write_transcript, path, transcript, labels=labels, error=error_text(rollout.error))
        result = EpisodeResult(
            task=name,
            episode=number,
            reward=rollout.reward,
            end_reason=rollout.end_reason,
            turns=int(rollout.metrics["turns"]),
            prompt_tokens=sampler.last_prompt_tokens,
            sampled_tokens=sampler.sampled_tokens,
            seconds=round(seconds, 3),
            sampling_sec=round(rollout.metrics["gateway/sampler_sec"], 3),
            error=error_text(rollout.error),
        )
        return result, rollout.error
