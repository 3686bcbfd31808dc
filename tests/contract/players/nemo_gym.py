"""NeMo Gym: the core of the agent server, and the server."""

from typing import Any

from harbor_gym import EndReason, UsageError
from harbor_gym.outcomes import FAILURE_KINDS
from tests.contract.players.episode import MAX_TOKENS, Episode, Played, lost
from tests.helpers.engine_double import EngineDouble


async def by_nemo_gym(episode: Episode) -> Played:
    return await _by_nemo_gym(episode, episode.config)


async def by_nemo_gym_agent(episode: Episode) -> Played:
    return await _by_nemo_gym(episode, episode.agents_config)


async def _by_nemo_gym(episode: Episode, config: Any) -> Played:
    """All of the adapter but NeMo Gym's own types, which its environment's tests put around it."""
    from harbor_gym.adapters.nemo_gym.model_server import ModelServer
    from harbor_gym.adapters.nemo_gym.play import play
    from harbor_gym.adapters.nemo_gym.rows import make_row
    from harbor_gym.adapters.nemo_gym.settings import EpisodePlan
    from tests.helpers.nemo_gym.trainer import read_as_trainer

    engine = EngineDouble(
        episode.sampler, codec=episode.codec(), max_context_tokens=episode.max_context_tokens - MAX_TOKENS
    )
    plan = EpisodePlan(config, max_retries=episode.max_retries)
    rollout, calls = await play(plan, lambda: ModelServer(engine.post, {}, require_token_ids=True))
    row = make_row(rollout, calls, require_token_ids=True)
    sequence = read_as_trainer(row.output)
    if rollout.error is not None:
        assert row.fields["mask_sample"]
        return lost(rollout.error)
    assert not row.fields["mask_sample"]
    return Played(row.fields["reward"], EndReason(row.fields["end_reason"]), sequence=sequence)


async def by_nemo_gym_server(episode: Episode) -> Played:
    """The same through ``/run``, with NeMo Gym's own types."""
    from harbor_gym.adapters.nemo_gym.rows import nemo_kind
    from tests.helpers.nemo_gym.agent import make_agent, post
    from tests.helpers.nemo_gym.trainer import read_as_trainer

    engine = EngineDouble(
        episode.sampler, codec=episode.codec(), max_context_tokens=episode.max_context_tokens - MAX_TOKENS
    )
    agent = make_agent(
        episode.task_dir.parent,
        engine,
        harbor_datasets={"own": {"local_dataset_path": episode.task_dir}},
        env={**episode.where, **episode.turns, **episode.own_settings},
        require_token_ids=True,
        max_retries=episode.max_retries,
    )
    status, row = await post(agent, {"instance_id": f"own::{episode.task_dir.name}"})
    if status != 200:  # which ends NeMo Gym's collection
        raise UsageError(str(row))
    end_reason, sequence = EndReason(row["end_reason"]), read_as_trainer(row["response"]["output"])
    if row["mask_sample"]:
        words = {nemo_kind(word): word for word in FAILURE_KINDS}
        return Played(None, end_reason, words[row["failure_kind"]])
    return Played(row["reward"], end_reason, sequence=sequence)
