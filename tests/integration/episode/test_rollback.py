"""A running episode that is returned to an earlier turn with its processes."""

import contextlib
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.errors import SandboxStartError
from harbor_gym.types import EpisodeInfo
from tests.helpers.copies import config_of, typed
from tests.helpers.tasks import DONE

pytestmark = [pytest.mark.local, pytest.mark.criu, pytest.mark.usefixtures("nothing_left")]


async def test_processes_files_and_budgets_are_those_of_the_turn(task_dir: Path, tmp_path: Path) -> None:
    config = config_of(task_dir, copy_command="echo $HARBOR_GYM_COPY >>/srv/copies", recording_path=tmp_path / "r.cast")
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await typed(env, "x=41; echo $$ >/srv/shell; sleep 1000 &\n")
        seen = await env.step([("python3 -iq\n", 10.0)])
        spent = env.remaining
        info = EpisodeInfo(turn=0, metrics={})
        with contextlib.closing(await env.snapshot(mode="exact")) as taken:
            for number in range(2):
                await typed(env, f"y = {number}; open('/srv/made', 'w').write('made')\n")
                await typed(env, "exit()\n")
                await typed(env, "kill %1; x=7; rm /srv/shell\n")
                observation, info = await env.rollback(taken)
                assert (observation, info["turn"], info.get("fork_mode")) == (seen.observation, 2, "exact")
                assert env.remaining == spent
            assert [mark["turn"] for mark in info.get("copies", ())] == [2]
            assert len(info.get("rollbacks", ())) == 2
        assert "NameError" in await typed(env, "y\n")
        await typed(env, "exit()\n")
        same = "$([ $$ = $(cat /srv/shell) ] && echo same)"
        ask = f"clear; echo $x {same} $(jobs | grep -c Running) $(ls /srv/made | wc -l)\n"
        assert "41 same 1 0\n" in await typed(env, ask)
        assert (await typed(env, "clear; wc -l </srv/copies\n")).splitlines()[-2] == "1", "the first try is gone"
        (copy,) = await env.fork(1, mode="exact")
        async with copy:
            assert "41 same 1 0\n" in await typed(copy, ask)
        await typed(env, DONE)
        assert (await env.finish()).reward == 1.0
    labels = [line.split('"')[3] for line in (tmp_path / "r.cast").read_text().splitlines() if '"m"' in line]
    assert [label.partition(":")[0] for label in labels] == [*"012345345345678"][: len(labels)]


async def test_a_copy_command_that_fails_leaves_the_episode_where_it_was(task_dir: Path) -> None:
    config = config_of(task_dir, copy_command="[ ! -e /srv/broken ]")
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await typed(env, "touch /srv/broken\n")
        with contextlib.closing(await env.snapshot(mode="exact")) as taken:
            await typed(env, "x=5\n")
            with pytest.raises(SandboxStartError, match="copy_command ended with status 1"):
                await env.rollback(taken)
        assert "5\n" in await typed(env, "clear; echo $x\n")
