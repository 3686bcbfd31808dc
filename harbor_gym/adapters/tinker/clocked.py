"""The cookbook's rollout with a deadline: an episode may be truncated or dropped."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, override

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_runner import RolloutHooks, RolloutState, run_rollout, stop_reason_from_metrics
from tinker_cookbook.rl.types import Trajectory, Transition

from harbor_gym.adapters.tinker.env import EpisodeEnv
from harbor_gym.stragglers import BatchDeadlineError, DropReason, EpisodeClock


async def clocked_rollout(policy: TokenCompleter, env: EpisodeEnv, clock: EpisodeClock) -> Trajectory:
    """Play an episode as the cookbook does, but at the batch's deadline end it truncated, and verify it.

    If this call is cancelled because the episode is dropped, the sandbox is stopped, and the transcript notes it.

    Raises:
        BatchDeadlineError: The deadline passed before the first answer, and the episode was dropped.
    """
    hooks = _Transitions()
    env.ends_at = clock.ends_at
    try:
        try:
            return await run_rollout(_Clocked(policy, clock), env, hooks=hooks)
        except BatchDeadlineError:
            if not hooks.so_far:
                raise
            return await _cut(env, hooks.so_far)
    except BatchDeadlineError:
        await env.drop(DropReason.BATCH_DEADLINE)
        raise
    except asyncio.CancelledError:
        if clock.dropped is not None:
            await env.drop(clock.dropped)
        raise


async def _cut(env: EpisodeEnv, transitions: list[Transition]) -> Trajectory:
    ended, last = await env.cut(), transitions[-1]
    transitions[-1] = replace(
        last,
        reward=ended.reward,
        episode_done=True,
        metrics={**last.metrics, **ended.metrics},
        logs={**last.logs, **ended.logs},
    )
    reason = stop_reason_from_metrics(transitions[-1].metrics)
    return Trajectory(transitions=transitions, final_ob=ended.next_observation, stop_reason=reason)


@dataclass
class _Transitions(RolloutHooks):
    """Keeps a rollout's transitions, which would be lost with an exception."""

    so_far: list[Transition] = field(default_factory=list[Transition])

    @override
    async def on_turn_begin(self, state: RolloutState) -> None:
        self.so_far = state.transitions


@dataclass
class _Clocked(TokenCompleter):
    policy: TokenCompleter
    clock: EpisodeClock

    @override
    async def __call__(self, model_input: tinker.ModelInput, stop: StopCondition, **options: Any) -> TokensWithLogprobs:
        return await self.clock.answer(lambda: self.policy(model_input, stop, **options))
