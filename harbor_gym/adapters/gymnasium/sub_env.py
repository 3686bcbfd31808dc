"""Successive episodes in Gymnasium's terms, asynchronous: the base of single and vector environments."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harbor_gym.adapters.gymnasium.interface import Interface
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.terminal import Screen
from harbor_gym.types import ForkMode

if TYPE_CHECKING:
    from harbor_gym.episode.side_command import SideResult

type Transition = tuple[Any, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""


class SubEnv:
    """Holds the terminal environment of the current task, and converts its results."""

    def __init__(self, interface: Interface, env: AsyncTerminalGymEnv | None = None) -> None:
        self._interface = interface
        self._env = env or AsyncTerminalGymEnv(interface.config)

    @property
    def screen(self) -> Screen | None:
        """The screen after the last call; None if the interface does not capture it."""
        return self._env.screen

    async def reset(self, task_dir: Path, *, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Start an episode of one of the interface's tasks. Raises as ``AsyncTerminalGymEnv.reset``."""
        if task_dir != self._env.config.task_dir:
            await self._env.close()
            self._env = AsyncTerminalGymEnv(self._interface.config.model_copy(update={"task_dir": task_dir}))
        text, info = await self._env.reset()
        reported = {} if seed is None else {"seed": seed}
        return self._observe(text, info), {**_present(info), **reported}

    async def step(self, action: Any) -> Transition:
        """Take a step. Raises as ``AsyncTerminalGymEnv.step``."""
        text, reward, done, info = await self._env.step(self._interface.to_action(action))
        truncated = done and bool(info.get("truncated"))
        return self._observe(text, info), float(reward), done and not truncated, truncated, _present(info)

    async def exec(self, command: str, *, timeout_sec: float, service: str | None) -> "SideResult":
        """Run a command beside the terminal. Raises as ``AsyncTerminalGymEnv.exec``."""
        return await self._env.exec(command, timeout_sec=timeout_sec, service=service)

    async def fork(self, n: int, *, mode: ForkMode) -> "list[SubEnv]":
        """Copy the running episode. Raises as ``AsyncTerminalGymEnv.fork``."""
        return [SubEnv(self._interface, env) for env in await self._env.fork(n, mode=mode)]

    async def close(self) -> None:
        """Stop the sandbox. Idempotent."""
        await self._env.close()

    def _observe(self, text: str, info: Mapping[str, Any]) -> Any:
        return self._interface.to_observation(text, info, self._env.screen, self._env.remaining)


def _present(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``info`` without None: vector environments collect the numbers of a key in an array without None."""
    return {key: value for key, value in info.items() if value is not None}
