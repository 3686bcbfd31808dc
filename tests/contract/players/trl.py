"""TRL's trainers."""

import asyncio
import contextlib
import functools
import math
import warnings
from typing import Any

import pytest

from harbor_gym import EndReason
from harbor_gym.types import TokenSequence
from tests.contract.players.episode import MAX_TOKENS, Episode, Played, only
from tests.helpers.sequences import of_mask


def _spec(episode: Episode, **player: Any) -> Any:
    pytest.importorskip("trl", reason='pip install "harbor-gym[trl]"')
    from harbor_gym.adapters.trl import HarborSpec

    return HarborSpec(
        episode.task_dir,
        **episode.where,
        **episode.turns,
        max_context_tokens=episode.max_context_tokens,
        max_retries=episode.max_retries,
        **player,
    )


async def by_trl(episode: Episode) -> Played:
    """TRL's own trainer, to the tensors that it trains on."""
    pytest.importorskip("trl", reason='pip install "harbor-gym[trl]"')
    from tests.helpers.policies.trl_trainers import GROUP, ScriptedTrainer, logged

    spec = _spec(episode, agent="terminal", **episode.own_settings)

    rows = [dict(spec.train_dataset[0]) for _ in range(GROUP)]
    with spec, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using .* experimental feature", UserWarning)
        trainer = ScriptedTrainer(
            episode.sampler,
            max_completion_length=MAX_TOKENS,
            output_dir=episode.model_dir,
            **spec.trainer_arguments,
        )
        batch = await asyncio.to_thread(trainer.score, rows)
    table = logged(trainer)
    (reward, twin), (end, twins_end) = table["rollout_reward"], table["harbor_end"]
    assert (reward, end) == (twin, twins_end) or reward != reward
    if end not in {reason.value for reason in EndReason}:
        assert math.isnan(reward)
        assert not batch["tool_mask"].any()
        return Played(None, EndReason.INFRASTRUCTURE_ERROR, end)
    sequence = of_mask(
        _shown(batch["prompt_ids"], batch["prompt_mask"]),
        _shown(batch["completion_ids"], batch["completion_mask"]),
        _shown(batch["tool_mask"], batch["completion_mask"]),
        _shown(batch["sampling_per_token_logps"], batch["completion_mask"]),
    )
    return Played(reward, EndReason(end), sequence=sequence)


async def _ignore(sample: object) -> None:
    return None


async def by_trl_async(episode: Episode) -> Played:
    return await _by_rollouts(episode, _spec(episode, agent="terminal", **episode.own_settings))


async def by_trl_async_agent(episode: Episode) -> Played:
    agent = episode.agent()
    return await _by_rollouts(episode, _spec(episode, agent=agent.import_path, agent_options=agent.kwargs))


async def _by_rollouts(episode: Episode, spec: Any) -> Played:
    """The rollout process's work, up to the samples that AsyncGRPO trains on."""
    from harbor_gym._runtime.portal import get_portal
    from harbor_gym.adapters.trl.groups import GroupPlayer
    from harbor_gym.adapters.trl.layout import AsyncGRPOConfig
    from tests.helpers.policies.typists import tokenizer

    args = AsyncGRPOConfig(
        output_dir=episode.model_dir,
        num_generations=2,
        max_completion_length=MAX_TOKENS,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    metrics: dict[str, Any] = {}

    async def play() -> list[Any]:
        opened = functools.partial(contextlib.nullcontext, episode.sampler)
        worker = spec.rollout_worker(args, tokenizer(), model="policy", sampler=opened)
        player = GroupPlayer(worker.plan, emit=_ignore, report=metrics.update, version=lambda: 7)
        return await player.play(0, episode.sampler)

    with spec:
        samples = await get_portal().run(play)
    (end,) = [
        key.removeprefix("harbor/").removesuffix("_total")
        for key in metrics
        if key.startswith("harbor/") and key.endswith("_total")
    ]
    if not samples:
        return Played(None, EndReason.INFRASTRUCTURE_ERROR, end)
    half = len(samples) // 2
    for first, twin in zip(samples[:half], samples[half:], strict=True):
        assert first.metrics == twin.metrics
        assert first.input_ids.tolist() == twin.input_ids.tolist()
        assert (first.advantage, first.model_version, first.group_id) == (0.0, 7, 0)
    sequences = [*map(_sequence, samples[:half])]
    return Played(samples[0].metrics["reward"], EndReason(end), sequence=only(sequences), sequences=sequences)


def _sequence(sample: Any) -> TokenSequence:
    mask = sample.completion_mask.tolist()
    begin = mask.index(1)
    tokens, logprobs = sample.input_ids.tolist(), sample.old_log_probs.tolist()
    return of_mask(tokens[:begin], tokens[begin:], mask[begin:], logprobs[begin:])


def _shown(values: Any, mask: Any) -> list[Any]:
    """Return the first sequence of a padded batch."""
    return values[0][mask[0].bool()].tolist()
