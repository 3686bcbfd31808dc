"""Many episodes that are closed at once: each has its time to stop, and a daemon that hangs holds up nobody twice."""

import asyncio
import gc
import logging
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar, override

import pytest

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.episode import stops
from harbor_gym.errors import SandboxTimeoutError
from harbor_gym.testing import FakeEnvironment
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.fake_episodes import fake_config


class Queued(FakeEnvironment):
    """Stop in turn, as on a machine that is busy with the stops of others; or not before ``may_stop``."""

    turn: ClassVar[asyncio.Lock]
    may_stop: ClassVar[asyncio.Event]
    stop_sec: ClassVar[float]
    count: ClassVar[Counter[str]]

    @override
    async def stop(self, delete: bool) -> None:
        self.count["stopping"] += 1
        self.count["most"] = max(self.count["most"], self.count["stopping"])
        self.count["given up before"] = self.count["given up"]
        await self.may_stop.wait()
        async with self.turn:
            await asyncio.sleep(self.stop_sec)
        self.count["stopping"] -= 1
        await super().stop(delete)


@pytest.fixture(autouse=True)
def queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "AT_ONCE", 3)
    Queued.turn, Queued.may_stop, Queued.stop_sec, Queued.count = asyncio.Lock(), asyncio.Event(), 0.0, Counter()


async def started(task_dir: Path, count: int, *, stop_timeout_sec: float) -> list[AsyncTerminalGymEnv]:
    config = fake_config(task_dir, sandbox=f"{__name__}:Queued", stop_timeout_sec=stop_timeout_sec)
    envs = [AsyncTerminalGymEnv(config) for _ in range(count)]
    await asyncio.gather(*(env.reset() for env in envs))
    return envs


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_each_of_many_has_its_time_to_stop(tmp_path: Path) -> None:
    """Together they take longer than one may: a limit that counts the wait for the others would be reached by most."""
    Queued.may_stop.set()
    Queued.stop_sec = 0.1
    envs = await started(tmp_path / "task", 24, stop_timeout_sec=1.0)
    async with asyncio.timeout(PATIENCE_SEC):
        await asyncio.gather(*(env.close() for env in envs))
    assert (Queued.count["most"], Queued.count["stopping"]) == (3, 0)


async def test_what_never_stops_is_waited_for_twice_at_most(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All others have their turn when the first ones had theirs in vain. What stops after all is still cleaned up."""
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    envs = await started(tmp_path / "task", 12, stop_timeout_sec=0.5)
    trials = [task for task in asyncio.all_tasks() if task.get_name().startswith("harbor-trial")]

    async def give_up(env: AsyncTerminalGymEnv) -> None:
        with pytest.raises(SandboxTimeoutError):
            await env.close()
        Queued.count["given up"] += 1

    with caplog.at_level(logging.ERROR, logger="asyncio"):
        await asyncio.gather(*map(give_up, envs))
        assert Queued.count["stopping"] == 12
        assert Queued.count["given up before"] <= stops.AT_ONCE  # when the last one had its turn
        Queued.may_stop.set()
        await asyncio.wait(trials)
        await asyncio.sleep(0)
    del trials
    gc.collect()  # an error that nobody retrieved is logged now
    assert not files_below(scratch)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
