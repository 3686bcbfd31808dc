"""Harbor's inference relay for ``make bench ARGS="gateway --relay"``, in a process of its own.

``python -m tests.benchmarks.gateway.relay_server N`` prints a :class:`RelayOfSessions` as JSON and serves until its
standard input ends.
"""

import asyncio
import dataclasses
import json
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.processes import start_process
from harbor_gym.gateway import Gateway, Session
from harbor_gym.gateway.relay import RelayAddress, relayed
from tests.helpers.gateway.harbor_server import KEY, served
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC


@dataclass(frozen=True, slots=True)
class RelayOfSessions:
    """A relay, with a rollout for each session."""

    url: str
    """Its server's address."""

    keys: list[str]
    """The key of each session's agent."""

    @property
    def urls(self) -> list[str]:
        """Where each session's agent sends its requests."""
        return [f"{self.url}/inference"] * len(self.keys)


@asynccontextmanager
async def relay_of(gateway: Gateway, sessions: Sequence[Session]) -> AsyncGenerator[RelayOfSessions]:
    """Serve a relay that is connected to sessions of a gateway."""
    pipe = asyncio.subprocess.PIPE
    argv = (sys.executable, "-W", "ignore", "-m", "tests.benchmarks.gateway.relay_server", str(len(sessions)))
    process = await start_process(*argv, stdin=pipe, stdout=pipe, cwd=ROOT)
    try:
        assert process.stdout is not None
        relay = RelayOfSessions(**json.loads(await process.stdout.readline()))
        async with AsyncExitStack() as links:
            for number, session in enumerate(sessions):
                address = RelayAddress(relay.url, str(number), {"Authorization": f"Bearer {KEY}"})
                link = await links.enter_async_context(relayed(gateway, session, address))
                await link.wait_connected(PATIENCE_SEC)
            yield relay
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _serve(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder)) as (url, relay):
            keys = [relay.register("local", "job", str(number), str(number)) for number in range(count)]
            sys.stdout.write(f"{json.dumps(dataclasses.asdict(RelayOfSessions(url, keys)))}\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
