"""A running episode that is returned to an earlier turn, in memory: by a replay."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, ForkDivergedError, Sample, TerminalEnvWrapper, run_episode
from harbor_gym.errors import SandboxStartError, UsageError
from harbor_gym.transcripts import read_transcript, write_transcript
from harbor_gym.wrappers import PortalEnv
from tests.helpers.sandboxes.fake_episodes import message
from tests.unit.episode.test_fork import READ, WRITE, Counted, closing, config_of, counted, said, started, token_env

__all__ = ["counted"]
LATER = [("echo later > /srv/a; x=6\n", 1.0)]


async def test_the_episode_goes_on_from_the_turn_as_if_nothing_had_followed(tmp_path: Path) -> None:
    config = config_of(tmp_path, max_turns=6, trials_dir=tmp_path / "trials", solved_when={"/srv/a": "done"})
    env = await started(config, WRITE)
    spent, shown = env.remaining, (await env.snapshot()).observation
    async with closing(env):
        for undone in (1, 2):
            for _ in range(undone):
                await env.step(LATER)
            observation, info = await env.rollback(1)
            assert (observation, info["turn"], info.get("fork_mode")) == (shown, 1, "replay")
            assert env.remaining == spent
            assert (await env.snapshot()).turn == 1
        assert info.get("rollbacks") == ({"turn": 1, "undone": 1}, {"turn": 1, "undone": 2})
        assert len(Counted.running) == 1
        assert len(list((tmp_path / "trials").iterdir())) == 1
        assert (await env.step(READ)).observation.splitlines()[-4:-1] == ["one", "/tmp", "5"]
        await env.step([("echo done > /srv/a\n", 1.0)])
        end = await env.finish()
        assert (end.reward, end.info["turn"]) == (1.0, 3)
    folder = end.info.get("trial_dir")
    assert folder is not None
    assert len(json.loads((folder / "agent/trajectory.json").read_text())["steps"]) == 4, "the instruction, three turns"
    labels = [line.split('"')[3] for line in (folder / "recording.cast").read_text().splitlines() if '"m"' in line]
    assert [label[0] for label in labels] == ["0", "1", "2", "2", "3", "2", "3"], "it says what happened"
    assert not Counted.running


async def test_to_the_task_s_start_and_with_a_snapshot_of_ones_own(tmp_path: Path) -> None:
    env = await started(config_of(tmp_path))
    async with closing(env):
        first = await env.snapshot()
        await env.step(WRITE)
        assert (await env.rollback(first))[1]["turn"] == 0
        assert "No such file" in (await env.step(READ)).observation
        with pytest.raises(UsageError, match="there is no turn 2: it is 0"):
            await env.rollback(2)
        await env.step(WRITE)
        taken = await env.snapshot()
        await env.rollback(0)
        for _ in range(3):
            await env.step(LATER)
        with pytest.raises(UsageError, match="is not of this episode as it stands: its turns are others"):
            await env.rollback(taken)
        await env.exec("true", timeout_sec=5)
        with pytest.raises(UsageError, match="exec was called, which is no turn"):
            await env.rollback(1)
        await env.rollback(first)
        await env.finish()
        with pytest.raises(UsageError, match="rollback can't be called while the environment is done"):
            await env.rollback(first)


async def test_where_it_fails_the_episode_goes_on_where_it_was(tmp_path: Path) -> None:
    env = await started(config_of(tmp_path), [("tick\n", 1.0)], WRITE, LATER)
    async with closing(env):
        with pytest.raises(ForkDivergedError, match="turn 1"):
            await env.rollback(2)
        Counted.most = Counted.started
        with pytest.raises(SandboxStartError, match="no room for another one"):
            await env.rollback(1)
        assert len(Counted.running) == 1
        assert (await env.step(READ)).observation.splitlines()[-4:-1] == ["later", "/tmp", "6"]
        assert (await env.snapshot()).turn == 4


async def test_cancelled_or_closed_meanwhile_it_leaves_nothing(tmp_path: Path) -> None:
    env = await started(config_of(tmp_path), [("wait\n", 1.0)], WRITE)
    async with closing(env):
        Counted.stuck = asyncio.Event()
        returning = asyncio.ensure_future(env.rollback(1))
        await Counted.stuck.wait()
        with pytest.raises(UsageError, match="while the environment is being rolled back"):
            await env.step(READ)
        returning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await returning
        assert len(Counted.running) == 1
        assert "one" in (await env.step(READ)).observation
        Counted.stuck = asyncio.Event()
        returning = asyncio.ensure_future(env.rollback(1))
        await Counted.stuck.wait()
        await env.close()
        returning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await returning
    assert not Counted.running


async def test_no_token_of_a_turn_that_was_taken_back_is_trained(tmp_path: Path) -> None:
    parent = token_env(config_of(tmp_path, solved_when={"/srv/a": "done"}))
    async with closing(parent):
        await parent.reset()
        prompt = (await parent.step(said(message("echo one > a\n")), logprobs=[-1.0])).observation
        kept = await parent.snapshot()
        await parent.step(said(message("echo two > a\n")))
        assert (await parent.rollback(1)).observation == prompt, "token by token"
        await parent.step(said(message("echo three > a\n")))
        step = await parent.rollback(kept)
        assert step.observation == prompt
        assert len(parent.transcript.turns) == 1
        answer = said(message("echo done > a\n", complete=True))
        assert (await parent.step(answer)).reward == 1.0
        assert [turn.sampled_tokens > 0 for turn in parent.transcript.turns] == [True, True]
        assert list(parent.transcript.tokens or ()) == [*prompt, *answer]
        write_transcript(tmp_path / "t.json", parent.transcript, labels={})
        read, _ = read_transcript(tmp_path / "t.json")
        assert read.start_info is not None
        assert read.start_info.get("rollbacks") == [{"turn": 1, "undone": 1}, {"turn": 1, "undone": 1}]
        with pytest.raises(UsageError, match="has no tokens"):
            await parent.rollback(replace(kept, tokens=None))


async def test_a_rollback_beneath_tokens_is_refused(tmp_path: Path) -> None:
    class Undoing(TerminalEnvWrapper):
        async def step(self, action: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
            result = await super().step(action)  # pyright: ignore[reportArgumentType]
            await self.rollback(0)
            return result

    config = config_of(tmp_path)
    env = token_env(config, Undoing(AsyncTerminalGymEnv(config)))
    with pytest.raises(UsageError, match="rolled back beneath its tokens: call"):
        await run_episode(env, lambda _: _sampled())
    assert not Counted.running


async def _sampled() -> Sample:
    return Sample(said(message("echo one > a\n")))


async def test_through_the_portal(tmp_path: Path) -> None:
    env = PortalEnv(AsyncTerminalGymEnv(config_of(tmp_path)))
    async with closing(env):
        await env.reset()
        await env.step(WRITE)
        await env.step(LATER)
        assert (await env.rollback(1))[1]["turn"] == 1
        assert "one" in (await env.step(READ)).observation
