"""Exact copies by each door: gymnasium, tokens and wrappers, a rollout, a pool; and an ordinary user."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

import gymnasium
import pytest

import harbor_gym
from harbor_gym import AsyncTerminalGymEnv, Sample, TerminalEnvWrapper, TokenTerminalEnv, run_episode
from harbor_gym.pool import WarmPool
from harbor_gym.types import StepResult
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.copies import config_of, typed
from tests.helpers.rootless import run_rootless
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message

gymnasium.register_envs(harbor_gym)

pytestmark = [
    pytest.mark.local,
    pytest.mark.criu,
    pytest.mark.usefixtures("nothing_left"),
]

ONCE = "x=$RANDOM$RANDOM; echo $x >/srv/x\n"
"""No replay repeats it."""
SAME = '[ "$x" = "$(cat /srv/x)" ] && echo done >/srv/answer\n'


def test_gymnasiums_environment_is_copied_with_its_processes(task_dir: Path) -> None:
    options = {"forkable": True}
    env: Any = gymnasium.make("HarborTerminal-v0", task_dir=task_dir, sandbox="local", sandbox_options=options)
    env.reset(seed=3)
    env.step(ONCE)
    copies = env.unwrapped.fork(2, mode="exact")
    for each in copies:
        _, info = each.reset()
        assert (info["turn"], info["fork_mode"]) == (1, "exact")
    seen = {each.step("clear; echo $x $(cat /srv/x)\n")[0] for each in (*copies, env)}
    assert len(seen) == 1
    for each in (env, *copies):
        each.close()


class Counting(TerminalEnvWrapper):
    """Counts the steps of its episode."""

    steps = 0

    @override
    async def step(self, action: Any) -> StepResult:
        self.steps += 1
        return await super().step(action)


async def test_a_wrapped_episode_in_tokens_is_copied_and_rolled_out(task_dir: Path) -> None:
    inner = Counting(AsyncTerminalGymEnv(config_of(task_dir)))
    parent = TokenTerminalEnv(inner, CharacterCodec(), max_tokens=1000)
    await parent.reset()
    prompt = (await parent.step([*map(ord, message(ONCE)), END])).observation
    (copy,) = await parent.fork(1, mode="exact")

    async def sample(given: Sequence[int]) -> Sample:
        assert list(given)[: len(prompt)] == prompt
        text = message(SAME) if len(given) == len(prompt) else COMPLETE
        return Sample([*map(ord, text), END])

    rollout = await run_episode(copy, sample)
    assert rollout.reward == 1.0
    assert (rollout.transcript.start_info or {}).get("fork_mode") == "exact"
    assert (inner.steps, copy.env.steps) == (1, 3)  # pyright: ignore[reportAttributeAccessIssue]  # Counting's
    assert not (await parent.step([*map(ord, message("true\n")), END])).done
    await parent.close()


async def test_an_episode_of_a_pool_is_copied_and_the_pool_keeps_its_stock(task_dir: Path) -> None:
    config = config_of(task_dir)
    async with WarmPool(config, size=1) as pool, AsyncTerminalGymEnv(config, pool=pool) as parent:
        await parent.reset()
        await typed(parent, ONCE)
        for copy in await parent.fork(2, mode="exact"):
            async with copy:
                assert (await copy.reset())[1].get("fork_mode") == "exact"
                await typed(copy, SAME)
                assert (await copy.finish()).reward == 1.0
        async with AsyncTerminalGymEnv(config, pool=pool) as other:
            await other.reset()
            assert "fresh" in await typed(other, "clear; echo fresh $x\n")


_AS_USER = r"""
import asyncio
from pathlib import Path
from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError
from tests.helpers.copies import config_of, typed
from tests.helpers.tasks import write_task

async def main():
    async with AsyncTerminalGymEnv(config_of(write_task(Path.home() / "task"))) as env:
        await env.reset()
        await typed(env, "x=5\n")
        try:
            await env.fork(1, mode="exact")
        except HarborGymError as exc:
            print(f"{type(exc).__name__}: {exc}")
        (copy,) = await env.fork(1)
        async with copy:
            print((await copy.reset())[1].get("fork_mode"), "\n6\n" in await typed(copy, "echo $((x+1))\n"))

asyncio.run(main())
"""


async def test_an_ordinary_user_gets_a_refusal_by_name_and_replays() -> None:
    done = await run_rootless("-c", _AS_USER)
    assert done.stdout.splitlines() == [
        "SandboxError: processes of an ordinary user's sandboxes are not copied: run as root",
        "replay True",
    ], done.stderr
