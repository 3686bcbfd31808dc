"""Fakes whose provider refuses the first starts."""

from typing import ClassVar, override

from harbor_gym.errors import SandboxThrottledError
from harbor_gym.testing import FakeEnvironment


class Throttled(FakeEnvironment):
    """Refuse ``refusals`` starts, with our own error."""

    refusals: ClassVar[int] = 0
    asked_sec: ClassVar[float | None] = 7.5

    @override
    async def start(self, force_build: bool) -> None:
        """Start, or be refused."""
        if type(self).refusals > 0:
            type(self).refusals -= 1
            raise SandboxThrottledError("too many starts", type(self).asked_sec)
        await super().start(force_build)
