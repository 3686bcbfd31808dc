"""verl's agent loop worker."""

import importlib
import tempfile
from pathlib import Path
from typing import Any

from harbor_gym import EndReason
from harbor_gym.errors import HarborGymError
from tests.contract.players.episode import MAX_TOKENS, Episode, Played, lost
from tests.helpers.sequences import of_mask


async def by_verl(episode: Episode) -> Played:
    return await _by_verl(episode, "HarborTerminalLoop", **episode.own_settings)


async def by_verl_agent(episode: Episode) -> Played:
    agent = episode.agent()
    return await _by_verl(episode, "HarborAgentLoop", agent=agent.import_path, agent_options=agent.kwargs)


async def _by_verl(episode: Episode, loop: str, **own: Any) -> Played:
    """verl's own worker, with its padding taken off again."""
    from tests.helpers.verl.workers import SamplerServers, make_batch, play, row_of, verl_config

    refused: Any = importlib.import_module("hydra.errors").InstantiationException
    entry = {
        "name": "contract",
        "_target_": f"harbor_gym.adapters.verl.{loop}",
        "env": {**episode.where, **own},
        "max_answer_tokens": MAX_TOKENS,
        "max_retries": episode.max_retries,
    }
    window = episode.max_context_tokens
    with tempfile.TemporaryDirectory() as directory:
        config = verl_config(
            Path(directory),
            [entry],
            prompt_length=window,
            response_length=window,
            max_model_len=window,
            **({} if episode.max_turns is None else {"multi_turn__max_assistant_turns": episode.max_turns}),
        )
        try:
            output = await play(config, SamplerServers(episode.sampler), make_batch(episode.task_dir, "contract"))
        except HarborGymError as exc:
            if not exc.is_infrastructure:
                raise
            return lost(exc)
        except refused as exc:  # hydra's, around the loop's own
            raise exc.__cause__ or exc from None
    (harbor,), (score,) = output.non_tensor_batch["harbor"], output.batch["rm_scores"].sum(dim=-1).tolist()
    sequence = None if harbor["untrained_segments"] else of_mask(*row_of(output))
    return Played(score, EndReason(harbor["end_reason"]), sequence=sequence)
