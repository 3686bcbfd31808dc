"""verifiers' environment and train client."""

from typing import Any

from harbor_gym import EndReason
from tests.contract.players.episode import MAX_TOKENS, Episode, Played


async def by_verifiers(episode: Episode) -> Played:
    return await _by_verifiers(episode)


async def by_verifiers_agent(episode: Episode) -> Played:
    agent = {"import_path": episode.agent().import_path, "kwargs": episode.agent().kwargs}
    return await _by_verifiers(episode, agent=agent)


async def _by_verifiers(episode: Episode, **settings: Any) -> Played:
    """verifiers' own environment and train client, over HTTP, to the branch that becomes a sample."""
    from tests.helpers.engine_double import EngineDouble
    from tests.helpers.verifiers.episodes import end_reason_of, env_config, run_episodes, sequence_of

    own = settings or episode.own_settings
    harness = {"terminal_env": {**episode.where, **episode.turns, **own}}
    retries = {} if episode.max_retries else {"retries": {"rules": []}}  # its own rules allow one
    env = env_config([episode.task_dir], harness, retries)
    # The client refuses a prompt that is longer than the model's context: the length of an answer is left free.
    window = episode.max_context_tokens - MAX_TOKENS
    server = EngineDouble(episode.sampler, model=f"policy-{window}", max_context_tokens=window)
    (finished,) = await run_episodes(server, env, model_dir=episode.model_dir)
    (trace,) = finished.traces
    if not trace.ok:
        *_, error = trace.errors  # one an attempt
        assert not any(trace.rewards.values())
        return Played(None, EndReason.INFRASTRUCTURE_ERROR, error.message.partition(":")[0])
    sequence = sequence_of(trace) if len(trace.branches) == 1 else None
    return Played(trace.reward, end_reason_of(trace), sequence=sequence)
