"""SkyRL's generator interface."""

from typing import Any

import pytest

from harbor_gym import EndReason
from tests.contract.players.episode import MAX_TOKENS, Episode, Played, only
from tests.helpers.sequences import of_mask


async def by_skyrl(episode: Episode) -> Played:
    return await _by_skyrl(episode, **episode.own_settings)


async def by_skyrl_step_wise(episode: Episode) -> Played:
    return await _by_skyrl(episode, step_wise=True, **episode.own_settings)


async def by_skyrl_agent(episode: Episode) -> Played:
    agent = episode.agent()
    return await _by_skyrl(episode, step_wise=True, agent=agent.import_path, agent_options=agent.kwargs)


async def _by_skyrl(episode: Episode, *, step_wise: bool = False, **own: Any) -> Played:
    """SkyRL's own validation and merging around our generator."""
    pytest.importorskip("skyrl", reason='pip install "harbor-gym[skyrl]"')
    from skyrl.train.config import SamplingParams
    from skyrl.train.generators.utils import merge_stepwise_output
    from skyrl.train.utils.trainer_utils import validate_generator_output

    from tests.helpers.skyrl.batches import make_generator, make_input
    from tests.helpers.skyrl.engine import SamplerEngine

    generator = make_generator(
        SamplerEngine(episode.sampler),
        {"env": {**episode.where, **own}, "max_retries": episode.max_retries},
        **episode.turns,
        max_input_length=episode.max_context_tokens - MAX_TOKENS,
        sampling_params=SamplingParams(max_generate_length=MAX_TOKENS),
        step_wise_trajectories=step_wise,
    )
    batch, _ = make_input(episode.task_dir, size=1)
    output: Any = await generator.generate(batch)
    output.pop("rollout_metrics")
    validate_generator_output(1, output, step_wise=step_wise)
    (end,) = (name for name in output["env_metrics"][-1] if name.startswith(("end/", "lost/")))
    output = merge_stepwise_output(output) if step_wise else output
    columns = (output[name] for name in ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs"))
    sequences = [of_mask(*row) for row in zip(*columns, strict=True)]
    if output["stop_reasons"] == ["error"]:
        assert sequences[0].mask == [0]
        return Played(None, EndReason.INFRASTRUCTURE_ERROR, end.removeprefix("lost/"))
    reward = sum(sum(reward) if step_wise else reward for reward in output["rewards"])
    return Played(reward, EndReason(end.removeprefix("end/")), sequence=only(sequences), sequences=sequences)
