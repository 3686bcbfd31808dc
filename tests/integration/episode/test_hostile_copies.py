"""The red team in copies: an attack decides nothing in a copy either, and nothing of it leads from one to another."""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import SandboxError
from harbor_gym.types import ForkMode
from tests.helpers.harbor_trials import COMPLETE
from tests.helpers.tasks import FORGER, write_task
from tests.integration.episode.test_honest_grading import DISGUISES, LEAVINGS
from tests.integration.episode.test_pristine_view import DONE, PLANTS, SLOW, SRV

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

MODES = ["replay", pytest.param("exact", marks=pytest.mark.criu)]
IN_A_VIEW: Mapping[str, Any] = {"verify_paths": SRV}
LEFT_LYING = SLOW + "[ ! -e /tests/.hidden ] || echo 1 > /logs/verifier/reward.txt\n"
"""A verifier with the time to be forged, which trusts any file."""

ATTACKS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{f"plants {name}": (attack, IN_A_VIEW) for name, attack in PLANTS.items()},
    **{f"leaves {name}": (LEAVINGS[name], {}) for name in ("a link to a directory of its own", "a test.sh of its own")},
    "is one that forks ahead of its killer": (DISGUISES["one that forks ahead of its killer"].format(FORGER), {}),
}


@contextlib.asynccontextmanager
async def copied(
    tmp_path: Path, mode: ForkMode, n: int, *lines: str, **settings: Any
) -> AsyncGenerator[list[AsyncTerminalGymEnv]]:
    """Yield an episode that has typed these lines, and behind it n copies."""
    task = write_task(tmp_path / "task", test_sh=LEFT_LYING)
    if mode == "exact":
        settings = {"sandbox_options": {"forkable": True}, **settings}
    config = TerminalEnvConfig(task_dir=task, sandbox="local", confirm_task_complete=False, **settings)
    async with contextlib.AsyncExitStack() as stack:
        parent = await stack.enter_async_context(AsyncTerminalGymEnv(config))
        await parent.reset()
        for line in lines:
            await typed(parent, line)
        copies = [await stack.enter_async_context(copy) for copy in await parent.fork(n, mode=mode)]
        yield [parent, *copies]


async def typed(env: AsyncTerminalGymEnv, line: str) -> None:
    assert not (await env.step([(f"{line}\n", 30.0)])).done


async def graded(env: AsyncTerminalGymEnv) -> float:
    result = await env.step(COMPLETE)
    assert result.done
    return result.reward


def _each(mode: ForkMode, *attacks: str) -> list[Any]:
    marks = [pytest.mark.criu] if mode == "exact" else []
    return [pytest.param(attack, mode, marks=marks) for attack in attacks]


SHELL = "plants the shell"


@pytest.mark.parametrize(
    ("attack", "mode"),
    [*_each("replay", *ATTACKS), *_each("exact", *(name for name in ATTACKS if name != SHELL))],
)
async def test_an_attack_that_was_copied_decides_no_verdict(tmp_path: Path, attack: str, mode: ForkMode) -> None:
    line, settings = ATTACKS[attack]
    async with copied(tmp_path, mode, 2, line, **settings) as (parent, undone, done):
        await typed(done, DONE)
        assert [await graded(env) for env in (parent, undone, done)] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("mode", MODES)
async def test_a_forgery_that_pays_in_the_episode_pays_in_its_copy(tmp_path: Path, mode: ForkMode) -> None:
    """The last test would prove nothing if a copy had no forgeries."""
    lines = PLANTS["a program" if mode == "exact" else "the shell"], PLANTS["temporary files"]
    async with copied(tmp_path, mode, 1, *lines, verify_paths="off") as envs:
        assert [await graded(env) for env in envs] == [1.0, 1.0]


@pytest.mark.criu
async def test_a_shell_whose_program_was_replaced_is_not_copied(tmp_path: Path) -> None:
    line, settings = ATTACKS[SHELL]
    with pytest.raises(SandboxError, match="/usr/bin/bash was removed or replaced while a process has it open"):
        async with copied(tmp_path, "exact", 1, line, **settings):
            pass


FORGES = DISGUISES["a daemon"].format(FORGER)
PAYS = {**{name: PLANTS[name] for name in ("the shell", "a program", "temporary files")}, "a daemon": FORGES}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attacker", ["the episode", "a copy"])
async def test_a_forgery_behind_the_fork_pays_its_own_episode_alone(
    tmp_path: Path, attacker: str, mode: ForkMode
) -> None:
    """Graded as Harbor does, where each of these pays: it would pay another that it reached."""
    settings: dict[str, Any] = {"verify_paths": "off"}
    async with copied(tmp_path, mode, 2, "cd /tmp", **settings) as (parent, first, second):
        forger, *others = (parent, first, second) if attacker == "the episode" else (first, parent, second)
        for line in PAYS.values():
            await typed(forger, line)
        assert [await graded(env) for env in (*others, forger)] == [0.0, 0.0, 1.0], "it forges while the others end"


@pytest.mark.parametrize("forgery", PAYS)
async def test_each_of_those_forgeries_pays_but_the_daemons(tmp_path: Path, forgery: str) -> None:
    async with copied(tmp_path, "replay", 1, "cd /tmp", verify_paths="off") as (_, copy):
        await typed(copy, PAYS[forgery])
        assert await graded(copy) == (0.0 if forgery == "a daemon" else 1.0)
