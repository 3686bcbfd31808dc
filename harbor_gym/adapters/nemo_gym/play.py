"""One episode against a model server: by our own loop, or by one of Harbor's agents through the gateway."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harbor_gym.adapters.nemo_gym.model_server import CALL, ModelCall, ModelServer
from harbor_gym.adapters.nemo_gym.settings import EpisodePlan
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError
from harbor_gym.outcomes import RetryBudget
from harbor_gym.samplers.chat import Messages, run_chat_episode
from harbor_gym.types import EndReason, TokenSequence

ANEW = "begins_anew"
"""Key of a message with which an agent begins a new conversation: in each step of a task, or behind a summary."""


@dataclass(frozen=True)
class Played:
    """A finished episode."""

    conversation: Sequence[dict[str, Any]]
    """The policy's chat, with its answers; those hold the number of their call."""

    calls: Sequence[ModelCall]
    """The answered calls."""

    reward: float | None
    """The verifier's reward; None after an infrastructure error."""

    end_reason: EndReason
    """Why it ended."""

    error: HarborGymError | None = None
    """The infrastructure error, if that ended it."""

    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Every key of the episode's reward."""

    trial_dir: Path | None = None
    """The trial's folder, if it is kept."""

    attempts: int = 1
    """Attempts, this one included."""


async def play(plan: EpisodePlan, make_server: Callable[[], ModelServer]) -> Played:
    """Play an episode, again in a fresh sandbox while the infrastructure fails and retries last.

    Args:
        plan: The episode.
        make_server: Makes the model server of one attempt.

    Raises:
        HarborGymError: The task or the configuration is wrong, which no retry can repair.
    """
    budget, play_once = RetryBudget(plan.max_retries), _by_loop if plan.agent is None else _by_agent
    for attempt in itertools.count():
        server = make_server()
        played = await play_once(plan, server)
        if server.misuse is not None:  # the gateway takes whatever a sampler raises for its failure
            raise server.misuse
        if played.error is None or not await budget.allows(played.error, attempt):
            return replace(played, attempts=attempt + 1)
    raise AssertionError


async def _by_loop(plan: EpisodePlan, server: ModelServer) -> Played:
    rollout = await run_chat_episode(AsyncTerminalGymEnv(plan.config), server)
    info = rollout.info or {}
    return Played(
        rollout.messages,
        server.calls,
        rollout.reward,
        rollout.end_reason,
        rollout.error,
        rewards=info.get("rewards", {}),
        trial_dir=info.get("trial_dir") if rollout.error is None else rollout.error.trial_dir,
    )


async def _by_agent(plan: EpisodePlan, server: ModelServer) -> Played:
    from harbor_gym.adapters.harbor import RolloutInterface
    from harbor_gym.gateway.proxy import ProxyCodec, ProxySampler

    config = plan.config
    interface = RolloutInterface.from_config(config, ProxySampler(server), ProxyCodec(), plan.agent)
    rollout = await interface.run_one(config.task_dir)
    return Played(
        conversation(rollout.segments),
        server.calls,
        rollout.reward,
        rollout.end_reason,
        rollout.error,
        rewards=rollout.rewards,
        trial_dir=None if config.trials_dir is None else config.trials_dir / rollout.trial_name,
    )


def conversation(segments: Sequence[TokenSequence]) -> Messages:
    """Return the chat of the agent's own calls. A segment that repeats an earlier one adds what is new in it.

    The first message of each segment but the first is marked with :data:`ANEW`.
    """
    from harbor_gym.gateway.proxy import read_lines

    conversation: list[dict[str, Any]] = []
    for segment in segments:
        lines = [line for line in read_lines([*segment.prompt, *segment.completion]) if "role" in line]
        known = {message[CALL] for message in conversation if CALL in message}
        new = (place for place, line in enumerate(lines) if CALL in line and line[CALL] not in known)
        own = next(new, len(lines))
        # The messages right before its first answer are what that answer was shown; the rest is known, or edited.
        while conversation and own and lines[own - 1]["role"] not in ("assistant", "system"):
            own -= 1
        if conversation and lines[own:]:
            lines[own] = {**lines[own], ANEW: True}
        conversation += lines[own:] if conversation else lines
    return conversation
