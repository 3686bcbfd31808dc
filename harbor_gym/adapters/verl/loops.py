"""verl's agent loops: token-exact episodes in Harbor sandboxes, sampled by verl's own LLM servers."""

import asyncio
import time
from typing import Any, ClassVar, override
from uuid import uuid4
from weakref import WeakKeyDictionary

from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics

from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.adapters.verl.sampler import ServerSampler
from harbor_gym.adapters.verl.settings import LoopSettings
from harbor_gym.codecs import HFCodec
from harbor_gym.config import aliases, require_one_conversation
from harbor_gym.errors import UsageError
from harbor_gym.gateway import SessionLimits
from harbor_gym.types import Rollout

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
"""The limit of concurrent episodes in each worker; verl makes a loop for every row, and starts all rows at once."""


class _HarborLoop(AgentLoopBase):
    """The base of both loops."""

    _default_agent: ClassVar[str | None] = None
    """The agent if none is configured; None means that the loop takes no agent."""

    def __init__(
        self,
        trainer_config: Any,
        server_manager: Any,
        tokenizer: Any,
        processor: Any,
        dataset_cls: Any,
        data_config: Any,
        hf_model_type: str | None = None,
        tools: Any = None,  # verl gives its own tools to every loop
        **settings: Any,
    ) -> None:
        super().__init__(
            trainer_config, server_manager, tokenizer, processor, dataset_cls, data_config, hf_model_type=hf_model_type
        )
        self._tokenizer: Any = tokenizer
        entries: Any = OmegaConf.to_container(OmegaConf.create(settings), resolve=True)
        section = f"the agent loop {entries.pop('name', type(self).__name__)}"
        entries = aliases.moved(entries, aliases.TRAINER)
        env = {"agent": self._default_agent, **(entries.get("env") or {})}
        if self._default_agent is None and env["agent"] is not None:
            raise UsageError(f"{section}: env.agent is for HarborAgentLoop, and this is {type(self).__name__}")
        self.settings = LoopSettings.read({**entries, "env": env}, section)
        require_one_conversation(self.settings.episode, "verl")
        if self.settings.max_answer_tokens > self.rollout_config.response_length:
            raise UsageError(
                f"max_answer_tokens is {self.settings.max_answer_tokens}, more than rollout.response_length, "
                f"{self.rollout_config.response_length}"
            )

    @override
    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Play a row's task.

        Args:
            sampling_params: verl's sampling parameters.
            priority: verl's priority of the row.
            kwargs: The row. ``extra_info["task_dir"]`` names the task; its prompt is not used, since the episode has
                its own.

        Returns:
            The episode as one row: the conversation with the most sampled tokens.

        Raises:
            UsageError: The row names no task, or a setting is invalid.
            TaskError: The task is wrong.
            HarborGymError: The infrastructure lost the episode and each of its retries; there is no reward.
        """
        task_dir = (kwargs.get("extra_info") or {}).get("task_dir")
        if not task_dir:
            raise UsageError("a row's extra_info has no task_dir: write it with harbor_gym.adapters.verl.write_dataset")
        codec = HFCodec(self._tokenizer, **dict(self.apply_chat_template_kwargs))
        sampler = ServerSampler(
            self.server_manager,
            sampling_params,
            request_id=f"det-{int(priority)}" if self.rollout_config.get("full_determinism") else uuid4().hex,
            priority=int(priority),
            stop=codec.stop,
            max_prompt_tokens=self.rollout_config.prompt_length,
            max_response_tokens=self.rollout_config.response_length,
            max_answer_tokens=self.settings.max_answer_tokens,
        )
        slots = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.settings.n_concurrent))
        async with slots:
            started = time.monotonic()
            rollout = await self._interface(sampler, codec).run_one(task_dir)
            seconds = time.monotonic() - started
        if rollout.error is not None:
            raise rollout.error
        return self._output(rollout, sampler, seconds, kwargs.get("global_steps"))

    def _interface(self, sampler: ServerSampler, codec: HFCodec) -> RolloutInterface:
        rollout = self.rollout_config
        turns = rollout.multi_turn.get("max_assistant_turns")
        window = rollout.prompt_length + rollout.response_length
        limits = SessionLimits(
            **({} if turns is None else {"max_turns": turns}),
            max_context_tokens=min(window, rollout.get("max_model_len") or window),
            max_answer_tokens=self.settings.max_answer_tokens,
        )
        return self.settings.interface(sampler, codec, limits)

    def _output(
        self, rollout: Rollout, sampler: ServerSampler, seconds: float, global_steps: int | None
    ) -> AgentLoopOutput:
        # verl refuses an empty row. It gets an untrained token, and keeps its reward.
        main = rollout.main.filled(int(self._tokenizer.eos_token_id))
        failed_attempts = rollout.metrics.get("infra/failed_attempts", 0.0)
        return AgentLoopOutput(
            prompt_ids=main.prompt,
            response_ids=main.completion,
            response_mask=main.mask,
            response_logprobs=main.logprobs if sampler.params.get("logprobs") else None,
            reward_score=rollout.reward,
            num_turns=2 * len(main.calls),
            metrics=AgentLoopMetrics(
                generate_sequences=sampler.seconds,
                tool_calls=max(0.0, seconds - sampler.seconds),
                num_preempted=sampler.preempted,
            ),
            extra_fields={
                # verl requires the same keys in every row of a batch, and averages these.
                "reward_extra_info": {
                    "truncated": float(rollout.end_reason.is_truncation),
                    "failed_attempts": float(failed_attempts),
                },
                "turn_scores": [],
                "tool_rewards": [],
                "min_global_steps": min(sampler.versions, default=global_steps),
                "max_global_steps": max(sampler.versions, default=global_steps),
                "harbor": {
                    "task": rollout.task_name,
                    "trial": rollout.trial_name,
                    "end_reason": rollout.end_reason.value,
                    "rewards": dict(rollout.rewards),
                    "metrics": dict(rollout.metrics),
                    "untrained_segments": max(0, len(rollout.segments) - 1),
                },
            },
        )


class HarborTerminalLoop(_HarborLoop):
    """Plays in this package's own loop: the policy writes in ``env.action_format``. See :class:`LoopSettings`."""


class HarborAgentLoop(_HarborLoop):
    """Plays with any of Harbor's agents, which calls the gateway. See :class:`LoopSettings`."""

    _default_agent = "terminus-2"
