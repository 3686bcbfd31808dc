"""Harbor's rollout interface."""

from typing import Any

from harbor_gym import EndReason
from tests.contract.players.episode import MAX_TOKENS, Episode, Played, lost, only


async def by_harbor_env(episode: Episode) -> Played:
    return await _by_harbor(episode, **episode.own_settings)


async def by_harbor_gateway(episode: Episode) -> Played:
    return await _by_harbor(episode, agent=episode.agent())


async def _by_harbor(episode: Episode, **settings: Any) -> Played:
    from harbor.models.trial.config import TaskConfig

    from harbor_gym.adapters.harbor import RolloutInterface
    from harbor_gym.gateway import SessionLimits

    interface = RolloutInterface(
        {**episode.where, **episode.turns, **settings},
        episode.sampler,
        episode.codec(),
        limits=SessionLimits(max_context_tokens=episode.max_context_tokens, max_answer_tokens=MAX_TOKENS),
        max_retries=episode.max_retries,
    )
    (rollout,) = await interface.run([TaskConfig(path=episode.task_dir)])
    if rollout.error is not None:
        assert rollout.reward is None
        assert rollout.end_reason is EndReason.INFRASTRUCTURE_ERROR
        return lost(rollout.error)
    return Played(rollout.reward, rollout.end_reason, sequence=only(rollout.segments), sequences=rollout.segments)
