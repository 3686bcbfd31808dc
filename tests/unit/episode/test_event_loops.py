"""An episode lives on one event loop, and a call from another one is refused in words."""

import asyncio
import concurrent.futures
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, UsageError
from tests.helpers.sandboxes.fake_episodes import fake_config

TRUE = [("true\n", 1.0)]


@pytest.fixture
def env(tmp_path: Path) -> AsyncTerminalGymEnv:
    return AsyncTerminalGymEnv(fake_config(tmp_path / "task"))


@pytest.mark.usefixtures("nothing_left")
def test_a_second_asyncio_run_is_refused_and_a_third_may_start_anew(env: AsyncTerminalGymEnv) -> None:
    asyncio.run(env.reset())
    for call in (lambda: env.step(TRUE), lambda: env.truncate(EndReason.MAX_TURNS), env.finish):
        with pytest.raises(UsageError, match=r"which was closed, and the episode with it\. Each asyncio.run makes"):
            asyncio.run(call())

    async def play() -> Any:
        await env.reset()
        step = await env.step(TRUE)
        await env.close()
        return step.info["turn"]

    assert asyncio.run(play()) == 1


@pytest.mark.usefixtures("nothing_left")
def test_what_a_first_asyncio_run_left_can_be_closed_in_a_second(env: AsyncTerminalGymEnv) -> None:
    asyncio.run(env.reset())
    asyncio.run(env.close())


@pytest.mark.usefixtures("nothing_left")
async def test_a_loop_that_still_runs_keeps_its_episode(env: AsyncTerminalGymEnv) -> None:
    await env.reset()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for call in (lambda: env.step(TRUE), env.close, env.reset):
            made = pool.submit(lambda call=call: asyncio.run(call()))  # pyright: ignore[reportUnknownLambdaType]
            with pytest.raises(UsageError, match=r"was called on another event loop than reset\."):
                await asyncio.wrap_future(made)
    assert (await env.step(TRUE)).info["turn"] == 1
    await env.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_verifiers:Judge", "can't be imported: No module named 'my_verifiers'"),
        ("harbor_gym.testing:FakeVerifyer", "can't be imported: module 'harbor_gym.testing' has no attribute"),
        ("judge", "is not written as module.path:name"),
    ],
)
async def test_a_misspelt_verifier_is_a_mistake_at_reset(tmp_path: Path, name: str, words: str) -> None:
    env = AsyncTerminalGymEnv(fake_config(tmp_path / "task", verifier={"import_path": name}))
    with pytest.raises(UsageError, match=words):
        await env.reset()
    await env.close()
