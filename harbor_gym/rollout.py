"""One episode from a sampler to a token-level trajectory. No training framework is involved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from harbor_gym.config.snapshot import KeepSnapshot
from harbor_gym.errors import BudgetSpentError, HarborGymError
from harbor_gym.outcomes import RetryBudget, classify
from harbor_gym.stragglers import EpisodeClock
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.types import EndReason, Rollout, Sample, Sampler, TokenTransition


@runtime_checkable
class KnowsContext(Protocol):
    """A sampler whose engine tells its context window."""

    async def __call__(self, prompt: Sequence[int], /) -> Sample:
        """Sample one message."""
        ...

    async def context_tokens(self) -> int | None:
        """Return the window in tokens; None where the engine does not tell."""
        ...


async def context_tokens_of(sample: Sampler) -> int | None:
    """Return the context window in tokens of a sampler's engine; None where it does not tell.

    A sampler around another one asks this of the inner one, or the episode would not know of the window.
    """
    return await sample.context_tokens() if isinstance(sample, KnowsContext) else None


async def run_episode(env: TokenTerminalEnv, sample: Sampler, *, keep: KeepSnapshot | None = None) -> Rollout:
    """Run one episode to its end and close the environment.

    Args:
        env: A token environment; it is closed in any case.
        sample: Asked once a turn. Its ``BudgetSpentError`` (the prompt does not fit the engine) ends the episode
            truncated, its ``SamplerError`` is an infrastructure error; other exceptions pass through. One that knows
            its engine's context window (:class:`KnowsContext`) sets the environment's, where that has none.
        keep: Called before each answer but the first.

    Returns:
        The trajectory. A failure of sandbox, terminal, verifier or sampler comes back as ``INFRASTRUCTURE_ERROR``, with
        the transitions up to it and without a reward.

    Raises:
        HarborGymError: The task or the configuration is wrong, which no retry can repair.
    """
    transitions: list[TokenTransition] = []
    try:
        env.limit_context(await context_tokens_of(sample))
        step = await env.reset()
        while not step.done:
            prompt = step.observation
            if keep is not None and env.transcript.turns:
                await keep(await env.snapshot())
            try:
                sampled = await sample(prompt)
            except BudgetSpentError as exc:
                step = await env.truncate(EndReason(exc.reason))
                transitions[-1:] = [replace(last, reward=step.reward, info=step.info) for last in transitions[-1:]]
                break
            step = await env.step(
                sampled.tokens,
                stop_reason=sampled.stop_reason,
                logprobs=sampled.logprobs,
                version=sampled.version,
            )
            transitions.append(TokenTransition(prompt, sampled, step.reward, step.info))
    except HarborGymError as exc:
        if not exc.is_infrastructure:
            raise
        return Rollout.lost(exc, transitions=transitions, transcript=env.transcript)
    finally:
        await env.close()
    return Rollout.ended(step.info, env.transcript.reward, transitions=transitions, transcript=env.transcript)


async def run_with_retries(
    make_env: Callable[[], TokenTerminalEnv],
    sample: Sampler,
    *,
    max_retries: int = 1,
    clock: EpisodeClock | None = None,
) -> Rollout:
    """Run one episode, again in a fresh sandbox while the infrastructure fails and retries last.

    A provider that throttles is waited for as long as it asks (:func:`harbor_gym.outcomes.pause_sec`).

    Args:
        make_env: Makes the environment of one attempt. For sandboxes of a warm pool, give the environment its ``pool``.
        sample: Asked once a turn. Its exceptions pass through; a :class:`harbor_gym.SamplerError` counts as the
            infrastructure's.
        max_retries: Attempts that may follow a failed one; 0 runs once.
        clock: Of an episode of :func:`harbor_gym.stragglers.play_group`. No attempt follows the deadline.

    Returns:
        The last attempt's trajectory. Its ``failed_attempts`` are the errors of those before it.

    Raises:
        HarborGymError: The task or the configuration is wrong, which no retry can repair.
    """
    budget, failed, clock = RetryBudget(max_retries), list[HarborGymError](), clock or EpisodeClock()
    while True:
        rollout = await run_episode(make_env(), clocked(sample, clock))
        error = rollout.error
        if error is None or not clock.restart() or not await budget.allows(error, len(failed)):
            return replace(rollout, failed_attempts=tuple(failed))
        failed.append(error)


@dataclass(frozen=True)
class _Clocked:
    sample: Sampler
    clock: EpisodeClock

    async def __call__(self, prompt: Sequence[int], /) -> Sample:
        return await self.clock.answer(lambda: self.sample(prompt))

    async def context_tokens(self) -> int | None:
        return await context_tokens_of(self.sample)


def clocked(sample: Sampler, clock: EpisodeClock) -> Sampler:
    """Return a sampler whose answers an episode's clock counts, and refuses after the batch's deadline."""
    return _Clocked(sample, clock)


def end_word(rollout: Rollout) -> str:
    """Return why an episode ended, in one word; of a lost one its ``failure_kind`` (:mod:`harbor_gym.outcomes`)."""
    return rollout.end_reason.value if rollout.error is None else classify(rollout.error).failure_kind
