"""The ``terminal`` harness: TRL's ``rollout_func`` plays whole episodes concurrently, token by token."""

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from harbor_gym.adapters.trl.harness import HarnessSettings
from harbor_gym.adapters.trl.rewards import LOST_METRIC
from harbor_gym.adapters.trl.slot import run_of
from harbor_gym.codecs import HFCodec
from harbor_gym.errors import UsageError
from harbor_gym.rollout import end_word
from harbor_gym.samplers import BatchSampler
from harbor_gym.sequences import flatten
from harbor_gym.stragglers import equal_places
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.types import Rollout, Sample, TokenSequence

TASK_KEY = "task_index"
"""The key of the task's index in a prompt's first message, because ``rollout_func`` receives only prompts."""


class TerminalRollouts:
    """A trainer's ``rollout_func``, which runs an episode for each prompt with the trainer's own generation.

    The trainer's ``max_completion_length`` limits a message; ``max_context_tokens`` and the configuration's budgets
    limit an episode.

    Args:
        settings: Made by :class:`harbor_gym.adapters.trl.HarborSpec`.
        max_context_tokens: Most tokens of an episode's prompt, messages and observations together. None:
            ``vllm_max_model_length`` if the trainer uses vLLM and sets it, else the model's context window.
    """

    def __init__(self, settings: HarnessSettings, *, max_context_tokens: int | None = None) -> None:
        self._settings = settings
        self._max_context_tokens = max_context_tokens

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Run the episodes of a batch. Blocks.

        Args:
            prompts: Prompts of the spec's dataset, one per episode.
            trainer: The ``GRPOTrainer``.

        Returns:
            ``prompt_ids``, ``completion_ids``, ``env_mask`` and ``logprobs`` (None if the trainer's engine returns
            none: TRL then computes them), one sequence per prompt and none empty; ``harbor_reward`` (None for a lost
            episode, of which no token is trained) and ``harbor_end``, which reward functions receive. With
            ``stragglers``, the batch's episodes of one task are a group, and ``harbor_dropped`` is its number of
            dropped episodes for each that counts.

        Raises:
            HarborGymError: A task or the configuration is wrong, which no retry can repair.
            UsageError: A prompt is not from the spec's dataset.
        """
        indices = [_task_index(prompt) for prompt in prompts]
        configs = [self._settings.config_of(index) for index in indices]
        tokenizer = trainer._tokenizer
        codec = HFCodec(tokenizer, None, trainer.eos_token_ids, **trainer.chat_template_kwargs)
        max_tokens = int(trainer.max_completion_length)
        window = self._max_context_tokens or _context_window(trainer)

        def make(number: int) -> TokenTerminalEnv:
            env = run_of(self._settings.run_id).make_env(configs[number], pool_size=self._settings.pool_size)
            return TokenTerminalEnv(env, codec, max_tokens=max_tokens, max_context_tokens=window)

        sampler = BatchSampler(functools.partial(_generate, trainer))
        stragglers, retries = self._settings.stragglers, self._settings.max_retries
        groups = equal_places(indices)
        makers = [[functools.partial(make, place) for place in places] for places in groups]
        rollouts, dropped = dict[int, Rollout](), dict[int, float]()
        for places, (played, closed) in zip(
            groups, sampler.run_groups(makers, stragglers, max_retries=retries), strict=True
        ):
            rollouts |= zip(places, played, strict=True)
            dropped |= dict.fromkeys(places, len(closed.dropped) / len(places))
        columns = _columns([rollouts[place] for place in range(len(prompts))], tokenizer.pad_token_id)
        if stragglers.is_active:
            columns["harbor_dropped"] = [dropped[place] for place in range(len(prompts))]
        return columns


def rollout_reward(
    harbor_reward: Sequence[float | None],
    harbor_end: Sequence[str] = (),
    harbor_dropped: Sequence[float] = (),
    log_metric: Callable[[str, float], None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Return the rewards that the ``rollout_func`` returned.

    Args:
        harbor_reward: The rollouts' rewards; TRL leaves None out of the group's baseline and of training.
        harbor_end: The end reason of each episode; the ``failure_kind`` of a lost one.
        harbor_dropped: As :class:`TerminalRollouts` returns it.
        log_metric: Called with ``harbor/lost``, the share of episodes without a verdict, and mean ``harbor/dropped``.
        log_extra: Called with ``harbor_end`` and ``harbor_dropped``, columns of the trainer's table of completions.
        columns: The other columns, which are ignored.
    """
    if log_metric is not None and harbor_reward:
        log_metric(LOST_METRIC, sum(reward is None for reward in harbor_reward) / len(harbor_reward))
    if log_metric is not None and harbor_dropped:
        log_metric("harbor/dropped", statistics.fmean(harbor_dropped))
    if log_extra is not None and harbor_end:
        log_extra("harbor_end", list(harbor_end))
    if log_extra is not None and harbor_dropped:
        log_extra("harbor_dropped", list(harbor_dropped))
    return list(harbor_reward)


def _task_index(prompt: Any) -> int:
    match prompt:
        case [{"task_index": int(index)}, *_]:
            return index
        case _:
            raise UsageError(
                f"a prompt's first message must have the key {TASK_KEY!r}: train on the spec's train_dataset"
            )


def _context_window(trainer: Any) -> int | None:
    if trainer.use_vllm and trainer.args.vllm_max_model_length is not None:
        return int(trainer.args.vllm_max_model_length)
    config = trainer.accelerator.unwrap_model(trainer.model).config.get_text_config()
    return getattr(config, "max_position_embeddings", None)


def _generate(trainer: Any, prompts: list[list[int]]) -> list[Sample]:
    """Sample one message for each prompt with the engine that the trainer uses for its own rollouts."""
    ends = set(trainer.eos_token_ids)
    sampled, logprobs = trainer._generate_single_turn(prompts, None, {}, num_generations=1)
    return [
        Sample(
            tokens,
            None if logprobs is None else _finite(logprobs[number]),
            "length" if tokens and tokens[-1] not in ends else "stop",
        )
        for number, tokens in enumerate(sampled)
    ]


def _finite(logprobs: Sequence[float | None]) -> list[float]:
    # vLLM reports one that it could not compute as None; TRL leaves NaN out of its correction.
    return [float("nan") if item is None else float(item) for item in logprobs]


def _columns(rollouts: Sequence[Rollout], pad_token_id: int) -> dict[str, Any]:
    sequences = [_trainable(flatten(rollout), rollout, pad_token_id) for rollout in rollouts]
    samples = [transition.sample for rollout in rollouts for transition in rollout.transitions]
    has_logprobs = bool(samples) and all(sample.logprobs is not None for sample in samples)
    return {
        "prompt_ids": [sequence.prompt for sequence in sequences],
        "completion_ids": [sequence.completion for sequence in sequences],
        "logprobs": [sequence.logprobs for sequence in sequences] if has_logprobs else None,
        "env_mask": [sequence.mask for sequence in sequences],
        "harbor_reward": [rollout.reward for rollout in rollouts],
        "harbor_end": [end_word(rollout) for rollout in rollouts],
    }


def _trainable(sequence: TokenSequence, rollout: Rollout, pad_token_id: int) -> TokenSequence:
    """Return a sequence without empty parts; no token of a lost episode is trained."""
    filled = sequence.filled(pad_token_id)
    return filled.masked() if rollout.is_lost else filled
