"""Play one episode with a sampler and return its token-level trajectory, without any training framework."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from harbor_gym.config.snapshot import KeepSnapshot, suspending
from harbor_gym.errors import BudgetSpentError, HarborGymError
from harbor_gym.outcomes import RetryBudget, classify
from harbor_gym.stragglers import EpisodeClock
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.transcripts import traced
from harbor_gym.types import EndReason, EpisodeInfo, Rollout, Sample, Sampler, TokenTransition


@runtime_checkable
class KnowsContext(Protocol):
    """A sampler that can ask its engine for the context window."""

    async def __call__(self, prompt: Sequence[int], /) -> Sample:
        """Sample one message."""
        ...

    async def context_tokens(self) -> int | None:
        """Return the window in tokens; None if the engine does not report it."""
        ...


async def context_tokens_of(sample: Sampler) -> int | None:
    """Return the context window of a sampler's engine, in tokens; None if it is unknown.

    A sampler that wraps another one must pass the inner one's window on, or the episode has no context limit.
    """
    return await sample.context_tokens() if isinstance(sample, KnowsContext) else None


def _without_known_routes(sampled: Sample, prompt: Sequence[int], last: TokenTransition) -> Sample:
    """Return a sample without the routed experts that the last one has, as an engine may return them all each time."""
    routes, known = sampled.routed_experts, last.sample.routed_experts
    before = [*last.prompt, *last.sample.tokens]
    if routes is None or known is None or routes.start >= known.end or list(prompt[: len(before)]) != before:
        return sampled
    new = routes.experts[known.end - routes.start :].copy()  # a view would keep the others
    return replace(sampled, routed_experts=replace(routes, start=known.end, experts=new))


@traced
async def run_episode(env: TokenTerminalEnv, sample: Sampler, *, keep: KeepSnapshot | None = None) -> Rollout:
    """Run one episode to its end and close the environment.

    Args:
        env: A token environment; it is closed in any case.
        sample: Called once a turn. Its ``BudgetSpentError`` (the prompt does not fit the engine) ends the episode
            truncated, unless ``TerminalEnvConfig.compaction`` makes the prompt shorter; its ``SamplerError`` is an
            infrastructure error; other exceptions pass through. If it knows its engine's context window
            (:class:`KnowsContext`) and the environment has no limit, that window is the limit.
        keep: Called with a snapshot before each answer but the first; see :data:`KeepSnapshot` for a cancellation.

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
            try:
                async with suspending(keep if env.transcript.turns else None, lambda mode: env.snapshot(mode=mode)):
                    sampled = (await sample(prompt)).checked()
            except BudgetSpentError as exc:
                reason = EndReason(exc.reason)
                shorter = await env.compact() if reason is EndReason.CONTEXT_OVERFLOW else None
                step = shorter or await env.truncate(reason)
                transitions[-1:] = [replace(last, reward=step.reward, info=step.info) for last in transitions[-1:]]
                continue
            if sampled.routed_experts is not None and transitions:
                sampled = _without_known_routes(sampled, prompt, transitions[-1])
            step = await env.step(
                sampled.tokens,
                stop_reason=sampled.stop_reason,
                logprobs=sampled.logprobs,
                version=sampled.version,
                queued_sec=sampled.queued_sec,
                routed_experts=sampled.routed_experts,
            )
            transitions.append(TokenTransition(prompt, sampled, step.reward, step.info))
    except HarborGymError as exc:
        if not exc.is_infrastructure:
            raise
        return Rollout.lost(exc, transitions=transitions, transcript=env.transcript)
    finally:
        await env.close()
    if not env.trains_summaries:
        transitions = _without_summaries(transitions)
    return Rollout.ended(step.info, env.transcript.reward, transitions=transitions, transcript=env.transcript)


def _without_summaries(transitions: Sequence[TokenTransition]) -> list[TokenTransition]:
    """Leave summaries out of an ended episode's transitions; what it paid and said upon one is the last answer's."""
    kept = [transition for transition in transitions if "summary" not in transition.info]
    if not kept or kept[-1] is transitions[-1]:
        return kept
    reward = kept[-1].reward + sum(item.reward for item in transitions if "summary" in item.info)
    info: EpisodeInfo = {**transitions[-1].info}
    info.pop("summary", None)
    kept[-1] = replace(kept[-1], reward=reward, info=info)
    return kept


async def run_with_retries(
    make_env: Callable[[], TokenTerminalEnv],
    sample: Sampler,
    *,
    max_retries: int = 1,
    clock: EpisodeClock | None = None,
) -> Rollout:
    """Run one episode; after an infrastructure failure, run it again in a fresh sandbox, up to ``max_retries`` times.

    A throttled start waits before its retry (:func:`harbor_gym.outcomes.pause_sec`).

    Args:
        make_env: Makes the environment of one attempt. To use a warm pool, give the environment its ``pool``.
        sample: See :func:`run_episode`.
        max_retries: Attempts that may follow a failed one; 0 runs once.
        clock: The episode's clock in :func:`harbor_gym.stragglers.play_group`. No attempt starts after its deadline.

    Returns:
        The last attempt's trajectory. Its ``failed_attempts`` are the errors of the earlier attempts.

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
    """Wrap a sampler so that a clock counts its answers and refuses further ones after the batch's deadline."""
    return _Clocked(sample, clock)


def end_word(rollout: Rollout) -> str:
    """Return the end reason of an episode; for a lost one, its ``failure_kind`` (:mod:`harbor_gym.outcomes`)."""
    return rollout.end_reason.value if rollout.error is None else classify(rollout.error).failure_kind
