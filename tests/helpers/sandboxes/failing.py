"""Local sandboxes that fail in one way each. ``TerminalEnvConfig.sandbox`` takes them by import path."""

import asyncio
from typing import Any, ClassVar, override

from harbor.models.task.config import NetworkPolicy

from harbor_gym.errors import SandboxError, SandboxTimeoutError
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.sandboxes.throttled import TooManyRequestsError


class ThrottledStart(LocalEnvironment):
    """Refuse to start, as a provider with a rate limit does."""

    @override
    async def start(self, force_build: bool) -> None:
        raise TooManyRequestsError(7.0)


class WedgedStart(LocalEnvironment):
    """Never come up, and never report it."""

    @override
    async def start(self, force_build: bool) -> None:
        await super().start(force_build)
        await asyncio.Event().wait()


class BrokenStart(LocalEnvironment):
    """Fail when everything was acquired already."""

    @override
    async def start(self, force_build: bool) -> None:
        await super().start(force_build)
        raise RuntimeError("created but not started")


class DeafStop(LocalEnvironment):
    """Take longer to stop than anyone waits: until ``released`` is set."""

    released: ClassVar[asyncio.Event]

    @override
    async def stop(self, delete: bool) -> None:
        await self.released.wait()
        await super().stop(delete)


class LostAtGrading(LocalEnvironment):
    """Go away when the tests are to be copied in."""

    @override
    async def upload_dir(self, source_dir: Any, target_dir: str) -> None:
        if target_dir == "/tests":
            await self.stop(delete=True)
        await super().upload_dir(source_dir, target_dir)


class Unremovable(LocalEnvironment):
    """Go away, and report that something could not be removed in time."""

    @override
    async def stop(self, delete: bool) -> None:
        await super().stop(delete)
        raise SandboxTimeoutError("a container is still there")


class StuckNetwork(LocalEnvironment):
    """Switch the network once, and never back."""

    switches = 0

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        self.switches += 1
        if self.switches > 1:
            raise SandboxError("the network does not answer")
        await super()._apply_network_policy(network_policy)
