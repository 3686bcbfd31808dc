"""A trial's loggers go with it: a training run of a hundred thousand episodes has no room for them."""

import asyncio
import inspect
import logging
import tempfile
import threading
from pathlib import Path

import pytest
from harbor.models.trial.config import AgentConfig, TaskConfig
from harbor.publisher.packager import Packager

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym._runtime.loggers import forget_loggers
from harbor_gym.adapters.harbor.interface import RolloutInterface
from harbor_gym.episode import _harbor_patches
from harbor_gym.errors import HarborGymError, SandboxStartError
from harbor_gym.gateway.proxy import ProxyCodec, ProxySampler
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, fake_config


def registered() -> int:
    """Return how many loggers the process keeps, in the registry and below its placeholders."""
    known = logging.Logger.manager.loggerDict
    below = [len(item.loggerMap) for item in known.values() if isinstance(item, logging.PlaceHolder)]
    return len(known) + sum(below)


def open_logs() -> list[str]:
    """Return the trials' logs that this process has open."""
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [str(link) for link in links if link.name == "trial.log"]


async def play(task_dir: Path) -> None:
    async with AsyncTerminalGymEnv(fake_config(task_dir)) as env:
        await env.reset()
        await env.step(COMPLETE)


async def test_episodes_leave_no_loggers(tmp_path: Path) -> None:
    await play(tmp_path / "task")
    before = registered()
    for _ in range(3):
        await play(tmp_path / "task")
    assert registered() == before


async def test_an_environment_that_is_closed_in_the_middle_leaves_none(tmp_path: Path) -> None:
    await play(tmp_path / "task")
    before, others = registered(), open_logs()
    env = AsyncTerminalGymEnv(fake_config(tmp_path / "task"))
    await env.reset()
    assert registered() > before
    assert open_logs() != others
    await env.close()
    assert registered() == before
    assert open_logs() == others


async def test_an_environment_that_is_closed_while_its_task_is_read_leaves_nothing(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial is made after the end, in a folder that was removed."""
    reading, goes_on = threading.Event(), threading.Event()
    compute = inspect.unwrap(Packager.compute_content_hash)

    def slow(task_dir: Path) -> tuple[str, list[Path]]:
        reading.set()
        assert goes_on.wait(PATIENCE_SEC)
        return compute(task_dir)

    monkeypatch.setattr(_harbor_patches, "_compute_content_hash", slow)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before, others = registered(), open_logs()
    env = AsyncTerminalGymEnv(fake_config(tmp_path / "task"))
    reset = asyncio.create_task(env.reset())
    assert await asyncio.to_thread(reading.wait, PATIENCE_SEC)
    await env.close()
    goes_on.set()
    with pytest.raises(HarborGymError, match="closed"):
        await reset
    assert (registered(), open_logs()) == (before, others)
    assert not any(scratch.iterdir())  # noqa: ASYNC240


async def test_a_trial_that_never_ran_leaves_none(tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task", fail={"start": 1})
    before = len(open_logs())
    for _ in range(3):
        with pytest.raises(SandboxStartError):
            await AsyncTerminalGymEnv(config).reset()
    assert len(open_logs()) == before


async def test_rollouts_of_an_agent_leave_none(tmp_path: Path) -> None:
    from harbor_gym.samplers import ChatEndpoint

    config = fake_config(tmp_path / "task")
    agent = AgentConfig(
        import_path="tests.helpers.gateway.format_agent:FormatAgent", kwargs={"base_url": "{gateway_url}"}
    )
    async with ChatEndpoint("http://127.0.0.1:9", "m", max_tokens=1, max_attempts=1) as nowhere:
        interface = RolloutInterface(sampler=ProxySampler(nowhere), codec=ProxyCodec(), agent=agent, sandbox=FAKE)
        await interface.run([TaskConfig(path=config.task_dir)])
        before = registered()
        lost = await interface.run([TaskConfig(path=config.task_dir)] * 3)
    assert [rollout.reward for rollout in lost] == [None] * 3
    assert registered() == before


@pytest.mark.parametrize("name", ["alone", "some.where.deep"])
def test_a_forgotten_logger_still_logs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    before = registered()
    top = logging.getLogger(f"test_trial_loggers.{name}")
    child = top.getChild("a.b")
    neighbour = logging.getLogger(f"{top.name}s")
    forget_loggers(top)
    child.warning("still heard")
    assert caplog.messages == ["still heard"]
    assert logging.getLogger(neighbour.name) is neighbour
    forget_loggers(neighbour)
    placeholders = [name for name in logging.Logger.manager.loggerDict if name.startswith("test_trial_loggers")]
    assert registered() == before + len(placeholders)
    for placeholder in placeholders:
        del logging.Logger.manager.loggerDict[placeholder]
