"""SkyRL's ``GeneratorInterface``: token-exact episodes in Harbor sandboxes, sampled by the trainer's own engine."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast, override
from uuid import uuid4

from harbor.models.trial.config import TaskConfig
from skyrl.train.config import GeneratorConfig
from skyrl.train.generators.base import (
    TRAINING_PHASE_EVAL,
    GeneratorInput,
    GeneratorInterface,
    GeneratorOutput,
    TrajectoryID,
)
from skyrl.train.generators.utils import build_vllm_cache_salt, get_custom_chat_template, get_rollout_metrics

from harbor_gym._runtime.task_groups import task_group
from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.adapters.skyrl.rows import RowSettings, Trajectory, make_columns, make_rows, summarise
from harbor_gym.adapters.skyrl.settings import HarborSettings, check_settings
from harbor_gym.codecs import HFCodec
from harbor_gym.episode.task import require_sandbox
from harbor_gym.errors import ContextOverflowError, HarborGymError, SamplerError, UsageError
from harbor_gym.gateway import SessionLimits
from harbor_gym.samplers.attempts import AttemptError, History, ask_patiently, status_error
from harbor_gym.samplers.overflow import is_overflow
from harbor_gym.sequences import staleness
from harbor_gym.types import RoutedExperts, Sample

_MAX_ATTEMPTS = 4
"""Most attempts at a message while SkyRL's engine fails or is overloaded. Lost connections its client repeats."""


class Engine(Protocol):
    """The part of SkyRL's inference client that a generator uses."""

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        """Sample one message for each prompt."""
        ...

    async def finish_session(self, session_id: str) -> None:
        """Release the engine's state of a conversation."""
        ...


class HarborTerminalGenerator(GeneratorInterface):
    """Plays each row's task and returns the sampled tokens in the form that SkyRL's trainers take.

    A row names its task in ``env_extras["task_dir"]``; its prompt is not used, since the episode has its own. With
    ``generator.step_wise_trajectories`` every message is a row, else every episode. After an infrastructure failure an
    episode is retried in a fresh sandbox; one that stays lost adds no gradient, see
    :mod:`harbor_gym.adapters.skyrl.rows`.

    Args:
        generator_cfg: SkyRL's section ``generator``.
        inference_engine_client: SkyRL's client, which samples token ids.
        tokenizer: The policy's tokenizer, with a chat template.
        settings: How episodes are played, and retries.
        policy_model_name: The policy's name in the engine; None is the client's default.

    Raises:
        UsageError: A setting can't be used, or the chat template can't be continued token by token.
        MissingDependencyError: The sandbox needs a program, a package or a key that is not there.
    """

    def __init__(
        self,
        generator_cfg: GeneratorConfig,
        *,
        inference_engine_client: Engine,
        tokenizer: Any,
        settings: HarborSettings | None = None,
        policy_model_name: str | None = None,
    ) -> None:
        self._cfg, self._settings = generator_cfg, check_settings(settings or HarborSettings(), generator_cfg)
        if self._settings.max_token_staleness is not None and _version(inference_engine_client) is None:
            raise UsageError("harbor.max_token_staleness needs an inference engine with a weight_version")
        require_sandbox(self._settings.episode)
        template = get_custom_chat_template(generator_cfg.chat_template)
        self._codec = HFCodec(tokenizer, template, **generator_cfg.chat_template_kwargs)
        self._engine, self._model = inference_engine_client, policy_model_name
        self._filler_token = int(tokenizer.eos_token_id)
        self._slots = asyncio.Semaphore(self._settings.n_concurrent)
        self._lost_calls = 0
        self._history = History()

    @override
    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """Play a batch.

        Args:
            input_batch: SkyRL's batch. ``trajectory_ids`` assign rows to groups; without them all rows are one group.

        Returns:
            A row per input row, in order; with step-wise rows one per message, grouped by trajectory.

        Raises:
            TaskError: A task is wrong.
            UsageError: A row names no task, or the engine refuses the key or the model.
            HarborGymError: ``harbor.max_lost_calls`` successive calls had no verdict; this is the last error.
        """
        params = input_batch.get("sampling_params")
        metadata = input_batch.get("batch_metadata")
        is_training = metadata is None or metadata.training_phase != TRAINING_PHASE_EVAL
        has_routes = is_training and self._cfg.inference_engine.enable_return_routed_experts
        trajectories = await self._play_all(input_batch, params, self._cache_salt(), has_routes=has_routes)
        self._count_lost(trajectories)
        newest = _version(self._engine)
        settings = RowSettings(
            step_wise=self._cfg.step_wise_trajectories,
            is_training=is_training,
            zero_reward_on_non_stop=self._cfg.zero_reward_on_non_stop,
            apply_overlong_filtering=self._cfg.apply_overlong_filtering,
            filler_token=self._filler_token,
            oldest=self._settings.oldest(newest),
        )
        rows = make_rows(trajectories, settings)
        columns = make_columns(rows, settings, has_logprobs=self._has_logprobs(params))
        behind = {} if newest is None else staleness((row.sequence for row in rows), newest)
        metrics = {
            **_standard_metrics(columns, trajectories),
            **summarise(trajectories, settings),
            **{f"harbor/tokens_{age}_behind": float(count) for age, count in behind.items()},
        }
        return cast("GeneratorOutput", {**columns, "rollout_metrics": metrics})

    async def _play_all(
        self, batch: GeneratorInput, params: Mapping[str, Any] | None, cache_salt: str | None, *, has_routes: bool
    ) -> list[Trajectory]:
        ids = batch.get("trajectory_ids") or [None] * len(batch["prompts"])
        extras = batch["env_extras"] or [{}] * len(ids)
        if self._cfg.step_wise_trajectories and None in ids:
            raise UsageError("step-wise rows need trajectory_ids, which SkyRL's prepare_generator_input makes")
        async with task_group() as group:
            playing = [
                group.create_task(self._play(_task_dir(extra), trajectory_id, params, cache_salt, has_routes))
                for extra, trajectory_id in zip(extras, ids, strict=True)
            ]
        return [task.result() for task in playing]

    async def _play(
        self,
        task_dir: Path,
        trajectory_id: TrajectoryID | None,
        params: Mapping[str, Any] | None,
        salt: str | None,
        has_routes: bool,
    ) -> Trajectory:
        session_id = trajectory_id.to_string() if trajectory_id is not None else uuid4().hex
        sampler = _EngineSampler(
            self._engine, self._model, params, session_id, salt, self._has_logprobs(params), has_routes, self._history
        )
        async with self._slots:
            started = time.monotonic()
            try:
                (rollout,) = await self._interface(sampler, params).run([TaskConfig(path=task_dir)])
            finally:
                await self._engine.finish_session(session_id)
        group = trajectory_id.instance_id if trajectory_id is not None else ""
        return Trajectory(group, trajectory_id, rollout, time.monotonic() - started, sampler.seconds)

    def _interface(self, sampler: "_EngineSampler", params: Mapping[str, Any] | None) -> RolloutInterface:
        max_tokens, input_length = self._max_tokens(params), self._cfg.max_input_length
        assert input_length is not None
        limits = SessionLimits(
            max_turns=self._cfg.max_turns,
            max_context_tokens=input_length + max_tokens,
            max_answer_tokens=max_tokens,
        )
        return self._settings.interface(sampler, self._codec, limits)

    def _max_tokens(self, params: Mapping[str, Any] | None) -> int:
        """Return the token limit of one message; an evaluation may set its own."""
        return int((params or {}).get("max_tokens") or self._cfg.sampling_params.max_generate_length)

    def _has_logprobs(self, params: Mapping[str, Any] | None) -> bool:
        asked = self._cfg.sampling_params.logprobs if params is None else params.get("logprobs")
        return asked is not None

    def _cache_salt(self) -> str | None:
        version = _version(self._engine) if self._cfg.use_cache_salt else None
        return None if version is None else build_vllm_cache_salt(version, self._model)

    def _count_lost(self, trajectories: Sequence[Trajectory]) -> None:
        errors = [item.rollout.error for item in trajectories if item.rollout.is_lost]
        self._lost_calls = self._lost_calls + 1 if len(errors) == len(trajectories) else 0
        if self._lost_calls >= self._settings.max_lost_calls and isinstance(errors[-1], HarborGymError):
            errors[-1].add_note(f"every episode of {self._lost_calls} calls of generate in a row was lost")
            raise errors[-1]


@dataclass
class _EngineSampler:
    """The sampler of one trajectory."""

    engine: Engine
    model: str | None
    params: Mapping[str, Any] | None
    session_id: str
    cache_salt: str | None
    has_logprobs: bool
    has_routes: bool
    """Whether to ask where a mixture of experts routed the tokens."""

    history: History
    """What is known of the engine; one object for all trajectories."""

    seconds: float = field(default=0.0, init=False)
    """Seconds that the engine has taken so far."""

    _answered: list[int] = field(default_factory=list[int], init=False)
    """The last prompt and its answer: all of its tokens but the last have known routes."""

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        started = time.monotonic()
        try:
            sample = await ask_patiently(lambda: self._ask(prompt), max_attempts=_MAX_ATTEMPTS)
        except AttemptError as exc:
            self.history.note(exc)
            raise
        finally:
            self.seconds += time.monotonic() - started
        self.history.has_answered = True
        return sample

    async def _ask(self, prompt: Sequence[int]) -> Sample:
        request: dict[str, Any] = {
            "prompts": None,
            "prompt_token_ids": [list(prompt)],
            "sampling_params": None if self.params is None else dict(self.params),
            "session_ids": [self.session_id],
            "cache_salt": self.cache_salt,
        }
        start = max(0, len(self._answered) - 1) if list(prompt[: len(self._answered)]) == self._answered else 0
        if self.has_routes:
            request["routed_experts_prompt_starts"] = [start]
        version = _version(self.engine)
        try:
            output = await self.engine.generate(request, model=self.model)
        except Exception as exc:  # the boundary to SkyRL's client: any exception is the engine's failure
            raise _engine_error(exc, has_answered=self.history.has_answered) from exc
        sample = self._read(output, version)
        if not self.has_routes:
            return sample
        tokens = [*prompt, *sample.tokens]
        experts: Any = (output.get("rollout_expert_indices") or [None])[0]
        routes = RoutedExperts(start, experts).checked(tokens=len(tokens))
        self._answered = tokens
        return replace(sample, routed_experts=routes)

    def _read(self, output: Mapping[str, Any], version: int | None) -> Sample:
        try:
            tokens, reason = list(output["response_ids"][0]), output["stop_reasons"][0]
            logprobs = (output.get("response_logprobs") or [None])[0] if self.has_logprobs else None
        except (KeyError, IndexError, TypeError, AttributeError) as exc:
            raise SamplerError(f"SkyRL's inference engine returned no single message: {exc!r:.200}") from exc
        if self.has_logprobs and not isinstance(logprobs, Sequence):
            raise SamplerError(f"SkyRL's inference engine returned no log-probability for each of {len(tokens)} tokens")
        return Sample(tokens, logprobs, reason, version).checked()


def _version(engine: Engine) -> int | None:
    """Return the number of weight updates of the engine, which SkyRL's remote client counts; None if it is unknown.

    If weights change during a message, it has the version of its beginning, since the engine does not report the place.
    """
    return getattr(engine, "weight_version", None)


def _engine_error(error: Exception, *, has_answered: bool) -> HarborGymError:
    """Convert an exception of SkyRL's client; those of its remote client (aiohttp's) have status and headers."""
    what, status = f"SkyRL's inference engine failed: {type(error).__name__}: {error}", getattr(error, "status", None)
    if is_overflow(400 if status is None else status, str(error)):
        return ContextOverflowError(what)
    if status is None:
        return SamplerError(what)
    headers = getattr(error, "headers", None) or {}
    return status_error(what, status, str(error), headers, has_answered=has_answered)


def _task_dir(extras: Mapping[str, Any]) -> Path:
    if not (task_dir := extras.get("task_dir")):
        raise UsageError("a row of the dataset has no task_dir: write it with harbor_gym.adapters.skyrl.write_dataset")
    return Path(task_dir)


def _standard_metrics(columns: Mapping[str, Any], trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return SkyRL's own metrics of a batch, over the rows of verified episodes if there are any."""
    live = [number for number, reason in enumerate(columns["stop_reasons"]) if reason != "error"]
    chosen = live or range(len(columns["stop_reasons"]))
    responses, rewards, masks = (
        [columns[name][number] for number in chosen] for name in ("response_ids", "rewards", "loss_masks")
    )
    times = [item.seconds for item in trajectories]
    return get_rollout_metrics(responses, rewards, None, None, masks, trajectory_completion_times=times)
