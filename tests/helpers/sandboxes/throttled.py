"""A provider that refuses starts, and a pool's lease that its sandbox does not outlive."""

import contextlib
from collections.abc import AsyncGenerator
from typing import ClassVar, override

from harbor_gym.errors import SandboxThrottledError
from harbor_gym.pool import Lease, WarmPool
from harbor_gym.testing import FakeEnvironment


class TooManyRequestsError(Exception):
    """An error of a provider's client library, asked too often."""

    status_code = 429

    def __init__(self, retry_after: float) -> None:
        super().__init__("sandbox quota exceeded")
        self.retry_after = retry_after


@contextlib.asynccontextmanager
async def leased(pool: WarmPool) -> AsyncGenerator[Lease]:
    """Lease a sandbox of the pool; close it in the end."""
    lease = await pool.lease()
    try:
        yield lease
    finally:
        await lease.prepared.close()


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
