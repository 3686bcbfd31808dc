"""One episode from a sampler to a token-level trajectory. No training framework is involved."""

from harbor_gym.errors import HarborGymError
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.types import EndReason, Rollout, Sample, Sampler, TokenTransition

__all__ = ["Rollout", "Sample", "Sampler", "TokenTransition", "run_episode"]


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
