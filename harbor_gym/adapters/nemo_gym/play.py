"""Play one episode with a model server: in this package's own loop, or with a Harbor agent through the gateway."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from harbor_gym.adapters.nemo_gym.model_server import CALL, ModelCall, ModelServer
from harbor_gym.adapters.nemo_gym.settings import EpisodePlan
from harbor_gym.config import AnyEpisode, TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError
from harbor_gym.outcomes import RetryBudget
from harbor_gym.samplers.chat import Messages, run_chat_episode
from harbor_gym.types import Rollout, TokenSequence

ANEW = "begins_anew"
"""Key of the first message of an agent's new conversation, as in each step of a task, or after a summary."""


async def play(plan: EpisodePlan, make_server: Callable[[], ModelServer]) -> tuple[Rollout, Sequence[ModelCall]]:
    """Play an episode; after an infrastructure failure, retry it in a fresh sandbox.

    Args:
        plan: The episode.
        make_server: Makes the model server of one attempt.

    Returns:
        The last attempt, and its answered calls. The answers in its ``messages`` have the number of their call.

    Raises:
        HarborGymError: The task or the configuration is wrong, which no retry can repair.
    """
    budget, failed = RetryBudget(plan.max_retries), list[HarborGymError]()
    while True:
        server = make_server()
        rollout = await _play_once(plan.config, server)
        if server.misuse is not None:  # the gateway has turned this into a failure of the sampler
            raise server.misuse
        if rollout.error is None or not await budget.allows(rollout.error, len(failed)):
            return replace(rollout, failed_attempts=failed), server.calls
        failed.append(rollout.error)


async def _play_once(config: AnyEpisode, server: ModelServer) -> Rollout:
    if isinstance(config, TerminalEnvConfig):
        return await run_chat_episode(AsyncTerminalGymEnv(config), server)
    from harbor_gym.adapters.harbor import RolloutInterface
    from harbor_gym.gateway.proxy import ProxyCodec, ProxySampler

    interface = RolloutInterface(config, ProxySampler(server), ProxyCodec(), max_retries=0)
    rollout = await interface.run_one(config.task_dir)
    trial_dir = None if config.trials_dir is None else config.trials_dir / rollout.trial_name
    return replace(rollout, messages=conversation(rollout.segments), trial_dir=trial_dir)


def conversation(segments: Sequence[TokenSequence]) -> Messages:
    """Return the chat of the agent's own calls. A segment that repeats an earlier one adds only its new messages.

    The first new message of each further segment is marked with :data:`ANEW`.
    """
    from harbor_gym.gateway.proxy import read_lines

    conversation: list[dict[str, Any]] = []
    for segment in segments:
        lines = [line for line in read_lines(segment.token_ids) if "role" in line]
        known = {message[CALL] for message in conversation if CALL in message}
        new = (place for place, line in enumerate(lines) if CALL in line and line[CALL] not in known)
        own = next(new, len(lines))
        # The messages right before its first new answer are new as well; earlier ones are known, or edited.
        while conversation and own and lines[own - 1]["role"] not in ("assistant", "system"):
            own -= 1
        if conversation and lines[own:]:
            lines[own] = {**lines[own], ANEW: True}
        conversation += lines[own:] if conversation else lines
    return conversation
