"""One episode from a sampler to a token-level trajectory. No training framework is involved."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from harbor_gym.errors import HarborGymError
from harbor_gym.tokens import StopReason, TokenTerminalEnv
from harbor_gym.types import EndReason, EpisodeInfo


@dataclass(frozen=True)
class Sample:
    """One sampled message."""

    tokens: Sequence[int]
    """Token ids, with the stop token if the sampler returns it."""

    logprobs: Sequence[float] | None = None
    """Log-probability of each token under the sampling policy, in nats."""

    stop_reason: StopReason = "stop"
    """Why sampling stopped."""


Sampler = Callable[[Sequence[int]], Awaitable[Sample]]
"""Samples one message for a prompt given as token ids."""


@dataclass(frozen=True)
class TokenTransition:
    """One prompt and what was sampled for it."""

    prompt: Sequence[int]
    """The whole prompt, token ids."""

    sample: Sample
    """What the policy sampled for it."""

    reward: float
    """The reward of this turn."""

    info: EpisodeInfo
    """The environment's info of this turn."""


@dataclass(frozen=True)
class Rollout:
    """A finished episode. With an infrastructure error there is no reward: mask or retry it."""

    transitions: Sequence[TokenTransition]
    """One per turn, in order. Each prompt begins with the last prompt and its sample."""

    end_reason: EndReason
    """Why the episode ended."""

    reward: float | None
    """Sum of the turns' rewards; None after an infrastructure error."""

    error: HarborGymError | None = None
    """The infrastructure error, if that ended the episode."""


async def run_episode(env: TokenTerminalEnv, sample: Sampler) -> Rollout:
    """Run one episode to its end and close the environment.

    Args:
        env: A token environment; it is closed in any case.
        sample: Asked once a turn. Its exceptions pass through.

    Returns:
        The trajectory. A failure of sandbox, terminal or verifier comes back as ``INFRASTRUCTURE_ERROR``, with the
        transitions up to it and without a reward.

    Raises:
        HarborGymError: The task or the configuration is wrong, which no retry can mend.
    """
    transitions: list[TokenTransition] = []
    try:
        step = await env.reset()
        while not step.done:
            prompt = step.observation
            sampled = await sample(prompt)
            step = await env.step(sampled.tokens, stop_reason=sampled.stop_reason)
            transitions.append(TokenTransition(prompt, sampled, step.reward, step.info))
    except HarborGymError as exc:
        if not exc.is_infrastructure:
            raise
        return Rollout(transitions, EndReason.INFRASTRUCTURE_ERROR, None, exc)
    finally:
        await env.close()
    overflowed_at_start = step.reward if not transitions else 0.0
    total = sum(transition.reward for transition in transitions) + overflowed_at_start
    return Rollout(transitions, step.info.get("end_reason", EndReason.COMPLETED), total)
