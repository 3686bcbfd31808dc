"""An environment for skyrl-gym, for users who keep SkyRL's own generator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, override

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.envs.registration import registry

from harbor_gym._runtime.portal import get_portal
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import UsageError
from harbor_gym.formats import prompts
from harbor_gym.slots import EpisodeSlot, SlotOwner

ENV_ID = "harbor"
"""The id in skyrl-gym's registry."""


def register(env_id: str = ENV_ID, **settings: Any) -> None:
    """Register :class:`HarborTextEnv` in skyrl-gym; a registration under the same id is replaced.

    Args:
        env_id: The id, which a dataset names in ``env_class``.
        settings: Fields of :class:`harbor_gym.TerminalEnvConfig` except the task, and ``max_retries``.
    """
    registry.pop(env_id, None)
    skyrl_gym.register(id=env_id, entry_point=f"{__name__}:HarborTextEnv", kwargs={"settings": settings})


class HarborTextEnv(BaseTextEnv):
    """One episode behind skyrl-gym's interface. Blocks; call it from threads.

    skyrl-gym does not support an episode without a verdict. A failed start is retried in a fresh sandbox; a later
    infrastructure failure raises, which ends SkyRL's run, since it must not become a reward of 0.
    :class:`HarborTerminalGenerator` leaves such an episode out instead. An episode that SkyRL's generator truncates by
    length is not verified, and its reward is 0.

    Args:
        env_config: SkyRL's section of the environment; not used.
        extras: The row: ``task_dir``, and SkyRL's ``max_turns``.
        settings: Fields of :class:`harbor_gym.TerminalEnvConfig` except the task, and ``max_retries``.

    Raises:
        UsageError: The row names no task.
    """

    def __init__(
        self, env_config: Any = None, extras: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        row, own = dict(extras or {}), dict(settings or {})
        if not row.get("task_dir"):
            raise UsageError(
                "a row of the dataset has no task_dir: write it with harbor_gym.adapters.skyrl.write_dataset"
            )
        self._max_retries = int(own.pop("max_retries", 1))
        limits = {"max_turns": row["max_turns"]} if row.get("max_turns") else {}
        self._config = TerminalEnvConfig(task_dir=Path(row["task_dir"]), **{**own, **limits})
        self._slot = EpisodeSlot(SlotOwner("the environment is closed: make a new one"))
        self._portal = get_portal()
        self._disown = self._portal.own(self, self._slot.close)
        self._metrics: dict[str, float] = {}

    @override
    def init(self, prompt: Any) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Start the sandbox; return messages with system prompt, instruction and screen. ``prompt`` is not used."""
        screen, info = self._portal.call(self._slot.start, self._config, max_retries=self._max_retries)
        opening = prompts.opening(self._config, info.get("instruction", ""), screen)
        return opening.messages, dict(info)

    @override
    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Act on one message.

        Raises:
            HarborGymError: The infrastructure failed; there is no verdict.
        """
        self.turns += 1
        result = self._portal.call(self._slot.env.step, action)
        self._metrics["turns"] = float(self.turns)
        if result.done:
            self._metrics |= {name: float(value) for name, value in result.info["metrics"].items()}
            self._metrics[f"end/{result.info.get('end_reason', 'completed')}"] = 1.0
        return BaseTextEnvStepOutput(
            observations=[] if result.done else [{"role": "user", "content": result.observation}],
            reward=result.reward,
            done=result.done,
            metadata=dict(result.info["metrics"]),
            postprocessed_action=None,
        )

    @override
    def get_metrics(self) -> dict[str, Any]:
        """Return the finished episode's metrics."""
        return dict(self._metrics)

    @override
    def close(self) -> None:
        """Stop the sandbox. Idempotent."""
        self._portal.call(self._slot.close)
        self._disown()
