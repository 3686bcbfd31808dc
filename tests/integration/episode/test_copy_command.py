"""Each copy of an episode has a mark of its own in its sandbox, and runs ``copy_command`` before its first turn."""

import contextlib
import logging
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import SandboxError, SandboxStartError
from harbor_gym.types import ForkMode
from tests.helpers.copies import config_of, copied, typed
from tests.helpers.tasks import BASE, DONE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

in_each_mode = pytest.mark.parametrize("mode", ["replay", pytest.param("exact", marks=pytest.mark.criu)])
COUNT = 'echo "$HARBOR_GYM_COPY $(id -un) $PWD" >>/tmp/copies'
SHOW = "clear; cat /tmp/copies /run/harbor-gym-copy\n"


def ids_of(info: object) -> list[str]:
    assert isinstance(info, dict)
    return [mark["id"] for mark in info["copies"]]


async def shown(env: AsyncTerminalGymEnv) -> list[str]:
    return [line for line in (await typed(env, SHOW)).splitlines() if line[:1].isdecimal()]


@in_each_mode
async def test_siblings_have_marks_of_their_own_and_a_replay_repeats_earlier_ones(
    task_dir: Path, mode: ForkMode, tmp_path: Path
) -> None:
    config = config_of(task_dir, copy_command=COUNT)
    async with AsyncTerminalGymEnv(config) as parent:
        await parent.reset()
        seen = await parent.step([("cd /tmp; echo $PWD\n", 10.0)])
        first, second = await parent.fork(2, mode=mode)
        async with first, second:
            (observation, info), (_, other) = await first.reset(), await second.reset()
            assert observation == seen.observation
            (mine,), (theirs,) = ids_of(info), ids_of(other)
            assert mine != theirs
            assert info["metrics"]["time/copy_command_sec"] > 0
            assert first.remaining[0] == parent.remaining[0]
            for env, number in ((first, mine), (second, theirs)):
                assert await shown(env) == [f"{number} root /srv", number]
            assert await shown(parent) == []
            (grandchild,) = await first.fork(1, mode="replay")
            async with grandchild:
                marks = (await grandchild.reset())[1].get("copies", ())
                assert [(mark["turn"], mark["command"]) for mark in marks] == [(1, COUNT), (2, COUNT)]
                numbers = [mark["id"] for mark in marks]
                assert numbers[0] == mine
                assert await shown(grandchild) == [*(f"{number} root /srv" for number in numbers), numbers[1]]
                (await grandchild.snapshot()).write(tmp_path / "snapshot.json")
            await first.step([(DONE, 10.0)])
            end = await first.finish()
            assert (end.reward, end.info["metrics"]["stopped_processes"]) == (1.0, 0)
    stored = TerminalEnvConfig.model_validate({"start_from": tmp_path / "snapshot.json"})
    async with AsyncTerminalGymEnv(stored) as env:
        again = ids_of((await env.reset())[1])
        assert again[:2] == numbers
        assert await shown(env) == [*(f"{number} root /srv" for number in again), again[2]]


@in_each_mode
async def test_a_command_that_fails_leaves_no_copy(task_dir: Path, mode: ForkMode, tmp_path: Path) -> None:
    async with AsyncTerminalGymEnv(config_of(task_dir, copy_command="echo broken >&2; exit 3")) as parent:
        await parent.reset()
        with pytest.raises(SandboxStartError, match=r"^copy_command ended with status 3: broken$"):
            await parent.fork(2, mode=mode)
        assert "alive" in await typed(parent, "echo alive\n")
        with contextlib.closing(await parent.snapshot(mode=mode)) as snapshot:
            snapshot.write(tmp_path / "snapshot.json")
    config = TerminalEnvConfig.model_validate({"start_from": tmp_path / "snapshot.json"})
    async with AsyncTerminalGymEnv(config) as env:
        with pytest.raises(SandboxStartError, match=r"^copy_command ended with status 3: broken$"):
            await env.reset()


@pytest.mark.criu
async def test_a_program_that_runs_on_draws_other_numbers(task_dir: Path) -> None:
    program = "import random, signal; signal.signal(10, lambda *_: random.seed(open('/run/harbor-gym-copy').read()))\n"
    config = config_of(task_dir, copy_command="pkill -USR1 -x python3")
    async with copied(config, "python3 -iq\n", program, n=2) as (parent, first, second):
        drawn = {(await typed(env, "random.random()\n")).splitlines()[-2] for env in (parent, first, second)}
    assert len(drawn) == 3


@pytest.mark.criu
async def test_a_policy_can_leave_no_room_for_the_mark(task_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(task_dir, copy_command="true")
    with caplog.at_level(logging.WARNING):
        async with copied(config, "ln -s /dev/full /run/harbor-gym-copy\n") as (_, copy):
            assert "alive" in await typed(copy, "clear; echo alive\n")
    assert "the copy has no mark in /run/harbor-gym-copy" in caplog.text


@pytest.mark.criu
async def test_it_runs_as_the_policys_user_and_what_it_leaves_is_in_the_way_of_an_exact_copy(tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "task", dockerfile=f"FROM {BASE}\nRUN useradd dev\nWORKDIR /srv\n", toml='[agent]\nuser = "dev"\n'
    )
    config = config_of(task, copy_command="id -un >/tmp/who; sleep 1000 >/dev/null 2>&1 &")
    async with copied(config, "true\n") as (_, copy):
        seen = await typed(copy, "clear; cat /tmp/who; pgrep -cx sleep; echo x >/run/harbor-gym-copy\n")
        assert "dev\n1\n" in seen
        assert "Permission denied" in seen
        with pytest.raises(SandboxError, match=r"process \d+ \(sleep\) is not below the terminal's first one"):
            await copy.fork(1, mode="exact")
        end = await copy.finish()
        assert end.info["metrics"]["stopped_processes"] == 0, "what a policy's turn leaves runs on while it is graded"
