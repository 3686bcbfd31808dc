"""OpenEnv's server."""

import asyncio

import pytest

from harbor_gym import TokenTerminalEnv, run_with_retries
from tests.contract.players.episode import MAX_TOKENS, Episode, Played, lost, played_of


async def by_openenv_server(episode: Episode) -> Played:
    """The token loop here, the episode on a server, and a WebSocket in between."""
    pytest.importorskip("openenv", reason='pip install "harbor-gym[openenv]"')
    from harbor_gym.adapters.openenv import HarborTerminalClient, RemoteTerminalEnv, ServerConfig, TerminalServer

    config = ServerConfig(env=episode.config, tasks=(str(episode.task_dir),), port=0, max_retries=0)
    with await asyncio.to_thread(TerminalServer, config) as server:

        def make_env() -> TokenTerminalEnv:
            return TokenTerminalEnv(
                RemoteTerminalEnv(HarborTerminalClient(server.url, token=server.token)),
                episode.codec(),
                max_tokens=MAX_TOKENS,
                max_context_tokens=episode.max_context_tokens,
            )

        rollout = await run_with_retries(make_env, episode.sampler, max_retries=episode.max_retries)
    return lost(rollout.error) if rollout.error is not None else played_of(rollout)
