"""The environment's protocol, and wrappers around an environment with their base class."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, override, runtime_checkable

from harbor_gym._runtime.portal import get_portal
from harbor_gym.config import Snapshot, TerminalEnvConfig
from harbor_gym.env import Action
from harbor_gym.errors import UsageError
from harbor_gym.formats.prompts import PromptConfig
from harbor_gym.pool import WarmPool
from harbor_gym.types import EndReason, ForkMode, ResetInfo, StepResult


class TerminalEnv(Protocol):
    """An environment: :class:`harbor_gym.AsyncTerminalGymEnv`, a wrapper around it, or a client of a remote one.

    Each method returns and raises as the method of the same name in :class:`harbor_gym.AsyncTerminalGymEnv`.
    """

    @property
    def config(self) -> PromptConfig:
        """The settings that the prompts need; complete after ``reset``."""
        ...

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, ResetInfo]:
        """Start an episode."""
        ...

    async def step(self, action: Action) -> StepResult:
        """Take one action."""
        ...

    async def truncate(self, reason: EndReason) -> StepResult:
        """End the episode because of a limit that only the caller sees."""
        ...

    async def finish(self, reason: EndReason = EndReason.COMPLETED) -> StepResult:
        """End the policy's work because the caller's loop has ended."""
        ...

    async def close(self) -> None:
        """Stop the sandbox."""
        ...


@runtime_checkable
class Forkable(Protocol):
    """An environment whose running episode can be copied."""

    async def snapshot(self, *, mode: ForkMode = "replay") -> Snapshot:
        """Return the episode so far."""
        ...

    async def fork(self, n: int, *, mode: ForkMode = "auto") -> Sequence[TerminalEnv]:
        """Copy the running episode."""
        ...

    async def rollback(self, to: int | Snapshot) -> tuple[str, ResetInfo]:
        """Return the running episode to an earlier turn."""
        ...


def require_forkable(env: TerminalEnv) -> Forkable:
    """Return ``env``, typed as forkable.

    Raises:
        UsageError: Its episode can't be copied.
    """
    if not isinstance(env, Forkable):
        raise UsageError(f"{type(env).__name__} can't copy a running episode")
    return env


class MakeEnv(Protocol):
    """Makes the environment of one episode: a subclass of ``AsyncTerminalGymEnv``, or a function that adds wrappers."""

    def __call__(self, config: TerminalEnvConfig, *, pool: WarmPool | None = None) -> TerminalEnv:
        """Return a new environment of this configuration, which takes its sandboxes from ``pool`` if one is given."""
        ...


class TerminalEnvWrapper:
    """Pass every call on to another environment. Subclasses override the methods to change.

    Args:
        env: The environment. This object owns it from now on.

    ``async with`` closes it at the end of the block.

    Example::

        from harbor_gym import (
            Action,
            AsyncTerminalGymEnv,
            StepResult,
            TerminalEnvConfig,
            TerminalEnvWrapper,
            WarmPool,
        )


        class StepCost(TerminalEnvWrapper):
            async def step(self, action: Action) -> StepResult:
                result = await super().step(action)
                return result._replace(reward=result.reward - 0.01)


        def make_env(config: TerminalEnvConfig, *, pool: WarmPool | None = None) -> StepCost:
            return StepCost(AsyncTerminalGymEnv(config, pool=pool))
    """

    def __init__(self, env: TerminalEnv) -> None:
        self.env = env

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.env!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def config(self) -> PromptConfig:
        """The configuration of the wrapped environment."""
        return self.env.config

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, ResetInfo]:
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

    async def snapshot(self, *, mode: ForkMode = "replay") -> Snapshot:
        """As :meth:`harbor_gym.AsyncTerminalGymEnv.snapshot`, of the wrapped environment's actions and observations."""
        return await require_forkable(self.env).snapshot(mode=mode)

    async def fork(self, n: int, *, mode: ForkMode = "auto") -> list[Self]:
        """As :meth:`harbor_gym.AsyncTerminalGymEnv.fork`; each copy has its own deep copy of this object's state."""
        states = [copy.deepcopy({k: v for k, v in vars(self).items() if k != "env"}) for _ in range(n)]
        return [self._around(*pair) for pair in zip(await self._fork(n, mode), states, strict=True)]

    async def _fork(self, n: int, mode: ForkMode) -> Sequence[TerminalEnv]:
        return await require_forkable(self.env).fork(n, mode=mode)

    async def rollback(self, to: int | Snapshot) -> tuple[str, ResetInfo]:
        """As :meth:`harbor_gym.AsyncTerminalGymEnv.rollback`; this object's own state stays as it is."""
        return await require_forkable(self.env).rollback(to)

    def _around(self, env: TerminalEnv, state: Mapping[str, Any]) -> Self:
        other = copy.copy(self)
        vars(other).update(state, env=env)
        return other

    async def close(self) -> None:
        """As :meth:`harbor_gym.AsyncTerminalGymEnv.close`."""
        await self.env.close()


class PortalEnv(TerminalEnvWrapper):
    """Run another environment on the event loop of the process's portal, for callers on any loop.

    Its sandboxes may come from a pool of the portal (:func:`harbor_gym.pool.portal_pool`), which outlives the caller's
    loop. Cancelling a call cancels it on the portal as well, and returns after its clean-up.
    """

    @override
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, ResetInfo]:
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
    async def snapshot(self, *, mode: ForkMode = "replay") -> Snapshot:
        return await get_portal().run(require_forkable(self.env).snapshot, mode=mode)

    @override
    async def _fork(self, n: int, mode: ForkMode) -> Sequence[TerminalEnv]:
        return await get_portal().run(require_forkable(self.env).fork, n, mode=mode)

    @override
    async def rollback(self, to: int | Snapshot) -> tuple[str, ResetInfo]:
        return await get_portal().run(require_forkable(self.env).rollback, to)

    @override
    async def close(self) -> None:
        await get_portal().run(self.env.close)
