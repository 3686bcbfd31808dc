"""OpenEnv: a session, and a server."""

import asyncio
import copy

import pytest

from harbor_gym import EndReason, Sample, TokenTerminalEnv, merge, run_episode
from tests.contract.players.episode import MAX_TOKENS, Episode, Played, lost, played_of
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engine_double import EngineDouble, serve
from tests.helpers.policies.typists import CHAT_TEMPLATE

_MORE = 9 * MAX_TOKENS
"""How much longer the engine's scripted answers may be than what is asked for; the room for a prompt stays the same."""


async def by_openenv_session(episode: Episode) -> Played:
    """A session as TRL's worker drives it, which trains on OpenEnv's trace."""
    pytest.importorskip("openenv", reason='pip install "harbor-gym[openenv]"')
    from harbor_gym.adapters.openenv import HarborTerminalSessionFactory, LocalTasks, TaskSuite

    tokenizer = copy.deepcopy(byte_level_tokenizer())
    tokenizer.chat_template = CHAT_TEMPLATE
    tasks = LocalTasks(await asyncio.to_thread(TaskSuite.resolve, episode.task_dir), episode.config)
    async with serve(EngineDouble(episode.sampler)) as engine:
        engine.heeds_limit = False  # as every other door's sampler
        factory = HarborTerminalSessionFactory(
            tasks,
            tokenizer=tokenizer,
            engine_url=engine.url,
            model="policy",
            max_tokens=MAX_TOKENS + _MORE,
            max_context_tokens=episode.max_context_tokens + _MORE,
            max_retries=0,
        )
        session = factory.create(0)
        await asyncio.to_thread(session.wait_for_completion)
    trace, verdict = session.fetch_training_trace(), session.verify([])
    end = EndReason(verdict.metrics["end_reason"])
    if verdict.env_reward is None:
        assert not any(mask for turn in trace.turns for mask in turn.loss_mask)
        return Played(None, end, verdict.metrics["failure_kind"])
    assert all(sum(turn.loss_mask) == len(turn.completion_token_ids) for turn in trace.turns)
    turns = [(turn.prompt_token_ids, Sample(turn.completion_token_ids, turn.per_token_logps)) for turn in trace.turns]
    (sequence,) = merge(turns)
    return Played(verdict.env_reward, end, sequence=sequence)


async def by_openenv_server(episode: Episode) -> Played:
    """The token loop here, the episode on a server, and a WebSocket in between."""
    pytest.importorskip("openenv", reason='pip install "harbor-gym[openenv]"')
    from harbor_gym.adapters.openenv import HarborTerminalClient, RemoteTerminalEnv, ServerConfig, TerminalServer

    config = ServerConfig(env=episode.config, tasks=(str(episode.task_dir),), port=0, max_retries=0)
    with await asyncio.to_thread(TerminalServer, config) as server:
        env = TokenTerminalEnv(
            RemoteTerminalEnv(HarborTerminalClient(server.url, token=server.token)),
            episode.codec(),
            max_tokens=MAX_TOKENS,
            max_context_tokens=episode.max_context_tokens,
        )
        rollout = await run_episode(env, episode.sampler)
    return lost(rollout.error) if rollout.error is not None else played_of(rollout)
