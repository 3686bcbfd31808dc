"""Wrappers around an environment for training, and their base class."""

from collections.abc import Mapping
from typing import Any, Protocol, override

from harbor_gym._runtime.portal import get_portal
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import Action
from harbor_gym.formats.prompts import PromptConfig
from harbor_gym.pool import WarmPool
from harbor_gym.types import EndReason, EpisodeInfo, StepResult


class TerminalEnv(Protocol):
    """An environment: :class:`harbor_gym.AsyncTerminalGymEnv`, one around it, or its like on another machine.

    Every method raises and returns what the method of that name does there.
    """

    @property
    def config(self) -> PromptConfig:
        """What is known of its configuration, after ``reset`` at the latest."""
        ...

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, EpisodeInfo]:
        """Start an episode."""
        ...

    async def step(self, action: Action) -> StepResult:
        """Take one action."""
        ...

    async def truncate(self, reason: EndReason) -> StepResult:
        """End the episode because of a limit that only the caller sees."""
        ...

    async def finish(self, reason: EndReason = EndReason.COMPLETED) -> StepResult:
        """End the policy's work because the caller's loop saw it end."""
        ...

    async def close(self) -> None:
        """Release everything."""
        ...


class MakeEnv(Protocol):
    """Makes the environment of one episode: a subclass of ``AsyncTerminalGymEnv``, or a function with wrappers."""

    def __call__(self, config: TerminalEnvConfig, *, pool: WarmPool | None = None) -> TerminalEnv:
        """Return a new environment of this configuration, which takes its sandboxes from ``pool`` if one is given."""
        ...


class TerminalEnvWrapper:
    """Pass every call on to another environment; override what shall be different.

    Args:
        env: The environment. This object owns it from now on.

    Example::

        class StepCost(TerminalEnvWrapper):
            async def step(self, action):
                result = await super().step(action)
                return result._replace(reward=result.reward - 0.01)


        def make_env(config, *, pool=None):
            return StepCost(AsyncTerminalGymEnv(config, pool=pool))
    """

    def __init__(self, env: TerminalEnv) -> None:
        self.env = env

    @property
    def config(self) -> PromptConfig:
        """The configuration of the wrapped environment."""
        return self.env.config

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, EpisodeInfo]:
        """As :meth:`harbor_gym.AsyncTerminalGymEnv.reset`."""
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Action) -> StepResult:
        """As :meth:`harbor_gym.AsyncTerminalGymEnv.step`."""
        return await self.env.step(action)

    async def truncate(self, reason: EndReason) -> StepResult:
        """As :meth:`harbor_gym.AsyncTerminalGymEnv.truncate`."""
        return await self.env.truncate(reason)

    async def finish(self, reason: EndReason = EndReason.COMPLETED) -> StepResult:
        """As :meth:`harbor_gym.AsyncTerminalGymEnv.finish`."""
        return await self.env.finish(reason)

    async def close(self) -> None:
        """As :meth:`harbor_gym.AsyncTerminalGymEnv.close`."""
        await self.env.close()


class PortalEnv(TerminalEnvWrapper):
    """Run another environment on the process's portal, whichever event loop calls.

    Its sandboxes may come from a pool of the portal (:func:`harbor_gym.pool.portal_pool`), which outlives the caller's
    loop. A cancelled call is cancelled there, too, and has cleaned up when it raises.
    """

    @override
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, EpisodeInfo]:
        return await get_portal().run(self.env.reset, seed=seed, options=options)

    @override
    async def step(self, action: Action) -> StepResult:
        return await get_portal().run(self.env.step, action)

    @override
    async def truncate(self, reason: EndReason) -> StepResult:
        return await get_portal().run(self.env.truncate, reason)

    @override
    async def finish(self, reason: EndReason = EndReason.COMPLETED) -> StepResult:
        return await get_portal().run(self.env.finish, reason)

    @override
    async def close(self) -> None:
        await get_portal().run(self.env.close)
