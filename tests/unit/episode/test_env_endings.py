"""The environment in memory: an episode's ends, their names, and that nothing outlives them."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, Command, EndReason
from harbor_gym.errors import SandboxLostError, UsageError, VerifierError
from harbor_gym.testing.conformance.env_probe import check_done
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message
from tests.helpers.sandboxes.timed_fakes import CLOCK

TRUE = [("true\n", 1.0)]
UNREADABLE = "no message"


FAKES = "tests.helpers.sandboxes.timed_fakes"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return tmp_path / "task"


def make_env(task: Path, **settings: Any) -> AsyncTerminalGymEnv:
    return AsyncTerminalGymEnv(fake_config(task, **settings))


# -- declared complete -------------------------------------------------------------------------------------------------


async def test_a_pending_confirmation_ends_with_its_episode(task: Path) -> None:
    async with make_env(task, confirm_task_complete=True) as env:
        for _ in range(2):
            await env.reset()
            _, _, done, info = await env.step(COMPLETE)
            assert (done, info.get("confirmation_pending")) == (False, True)


async def test_a_pending_confirmation_ends_with_its_step(task: Path) -> None:
    async with make_env(task, steps=3, confirm_task_complete=True) as env:
        await env.reset()
        for number in range(2):
            await env.step(COMPLETE)
            *_, info = await env.step(COMPLETE)
            assert info.get("instruction") == f"Do step-{number + 2}.\n"
            assert info.get("confirmation_pending") is False


async def test_a_message_that_can_not_be_read_keeps_the_question_open(task: Path) -> None:
    async with make_env(task, confirm_task_complete=True) as env:
        await env.reset()
        observation, *_ = await env.step(COMPLETE)
        assert "confirm" in observation
        *_, info = await env.step(UNREADABLE)
        assert info.get("confirmation_pending") is True
        _, _, done, info = await env.step(COMPLETE)
        assert (done, info.get("confirmation_pending")) == (True, False)


async def test_leaving_the_shell_ends_without_a_question(task: Path) -> None:
    async with make_env(task, confirm_task_complete=True) as env:
        await env.reset()
        _, reward, done, info = await env.step(message("exit\n", complete=True))
    assert (reward, done) == (1.0, True)
    assert info.get("end_reason") is EndReason.SESSION_ENDED
    assert info.get("truncated") is False


async def test_what_was_declared_complete_goes_before_the_shells_end(task: Path) -> None:
    async with make_env(task) as env:
        await env.reset()
        *_, info = await env.step(message("exit\n", complete=True))
    assert info.get("end_reason") is EndReason.COMPLETED


# -- budgets -----------------------------------------------------------------------------------------------------------


async def test_the_last_turn_is_the_one_that_ends(task: Path) -> None:
    async with make_env(task, max_turns=2) as env:
        await env.reset()
        assert env.remaining == (1.0, 1.0)
        _, reward, done, info = await env.step(TRUE)
        assert (reward, done, info["turn"]) == (0.0, False, 1)
        assert env.remaining == (0.5, 1.0)
        _, reward, done, info = await env.step(TRUE)
        assert (reward, done, info["turn"]) == (1.0, True, 2)
        assert (info.get("end_reason"), info.get("truncated")) == (EndReason.MAX_TURNS, True)
        await env.reset()
        assert not (await env.step(TRUE))[2], "each episode has all of its turns"


async def test_a_declaration_goes_before_the_turns_end(task: Path) -> None:
    async with make_env(task, max_turns=1) as env:
        await env.reset()
        *_, info = await env.step(COMPLETE)
    assert (info.get("end_reason"), info.get("truncated")) == (EndReason.COMPLETED, False)


async def test_only_failures_in_a_row_end_the_episode(task: Path) -> None:
    async with make_env(task, max_consecutive_parse_failures=2) as env:
        await env.reset()
        for action in (UNREADABLE, TRUE, UNREADABLE):
            _, _, done, info = await env.step(action)
            assert not done
            assert bool(info.get("parse_error")) is (action is UNREADABLE)
        _, reward, done, info = await env.step(UNREADABLE)
        assert (reward, done) == (1.0, True)
        assert (info.get("end_reason"), info.get("truncated")) == (EndReason.PARSE_FAILURES, False)
        await env.reset()
        assert not (await env.step(UNREADABLE))[2], "the count begins with the episode"


async def test_without_a_limit_failures_go_on(task: Path) -> None:
    async with make_env(task, max_consecutive_parse_failures=None, max_turns=None) as env:
        await env.reset()
        assert not any([(await env.step(UNREADABLE))[2] for _ in range(6)])


async def test_the_terminals_time_is_a_budget(task: Path, working: str) -> None:
    async with make_env(task, sandbox=working, time_limit_sec=8.0) as env:
        await env.reset()
        CLOCK.now += 100  # the policy thinks
        assert not (await env.step([("work 4\n", 1.0), ("work 2\n", 1.0)]))[2]
        assert env.remaining == (1 - 1 / 50, 0.25)
        assert not (await env.step(UNREADABLE))[2]
        _, _, done, info = await env.step([("work 2\n", 1.0)])
        assert done
        assert (info.get("end_reason"), info.get("truncated")) == (EndReason.TIME_LIMIT, True)
        assert (info["metrics"]["time/step_sec"], info["metrics"]["time/terminal_sec"]) == (2.0, 8.0)
        await env.reset()
        assert env.remaining == (1.0, 1.0)
        assert not (await env.step([("work 7\n", 1.0)]))[2], "the time begins with the episode"
        *_, info = await env.step([("work 7\n", 1.0)])
        assert info["metrics"]["time/terminal_sec"] == 14.0
        assert env.remaining[1] == 0.0


async def test_a_time_limit_of_the_task_is_each_steps(task: Path, working: str) -> None:
    make_env(task, steps=2)
    with (task / "task.toml").open("a") as file:
        file.write("[agent]\ntimeout_sec = 8.0\n")
    async with make_env(task, sandbox=working) as env:
        await env.reset()
        _, reward, done, info = await env.step([("work 9\n", 1.0)])
        assert (reward, done, info.get("instruction")) == (0.0, False, "Do step-2.\n")
        assert env.remaining[1] == 1.0
        assert not (await env.step([("work 7\n", 1.0)]))[2], "the second step has all of its time"
        assert env.remaining[1] == 0.125
        _, reward, done, info = await env.step([("work 1\n", 1.0)])
        assert (done, info.get("end_reason")) == (True, EndReason.TIME_LIMIT)
        assert info["metrics"]["time/terminal_sec"] == 17.0


async def test_a_time_limit_of_the_configuration_is_the_episodes(task: Path, working: str) -> None:
    async with make_env(task, sandbox=working, steps=3, time_limit_sec=8.0) as env:
        await env.reset()
        _, _, done, info = await env.step(message("work 6\n", complete=True))
        assert (done, info.get("instruction")) == (False, "Do step-2.\n")
        assert env.remaining[1] == 0.25
        _, _, done, info = await env.step([("work 2\n", 1.0)])
    assert (done, info.get("end_reason")) == (True, EndReason.TIME_LIMIT)


# -- cut by the caller -------------------------------------------------------------------------------------------------


async def test_only_truncations_are_the_callers(task: Path) -> None:
    async with make_env(task) as env:
        with pytest.raises(UsageError, match="reset"):
            await env.truncate(EndReason.MAX_TOKENS)
        await env.reset()
        for reason in EndReason:
            if not reason.is_truncation:
                with pytest.raises(UsageError, match="not a truncation"):
                    await env.truncate(reason)
        observation, reward, done, info = await env.truncate(EndReason.MAX_TOKENS)
        assert (observation, reward, done, info["turn"]) == ("", 1.0, True, 0)
        assert (info.get("end_reason"), info.get("truncated")) == (EndReason.MAX_TOKENS, True)
        with pytest.raises(UsageError, match="over"):
            await env.truncate(EndReason.MAX_TOKENS)
        await env.reset()


async def test_a_cut_ends_the_episode_in_any_step(task: Path) -> None:
    async with make_env(task, steps=3, rewards=0.5) as env:
        await env.reset()
        await env.step(COMPLETE)
        _, reward, done, info = await env.truncate(EndReason.CONTEXT_OVERFLOW)
        assert (reward, done, info["turn"]) == (0.5, True, 1)
        assert info.get("end_reason") is EndReason.CONTEXT_OVERFLOW
        assert info.get("rewards") == {"reward": 0.5}


@pytest.mark.parametrize("cut", [True, False])
async def test_an_episode_takes_one_call_at_a_time(task: Path, cut: bool) -> None:
    async with make_env(task) as env:
        await env.reset()
        first = asyncio.create_task(env.truncate(EndReason.MAX_TOKENS) if cut else env.step(COMPLETE))
        await asyncio.sleep(0)
        for call, name in ((env.step(TRUE), "step"), (env.truncate(EndReason.MAX_TURNS), "truncate")):
            with pytest.raises(UsageError, match=f"{name} can't be called while the environment is in a step; wait"):
                await call
        assert (await first)[2]


async def test_a_cut_without_a_verdict_fails_as_a_step_does(task: Path) -> None:
    async with make_env(task, fail={"verifier": 1}) as env:
        await env.reset()
        with pytest.raises(VerifierError):
            await env.truncate(EndReason.MAX_TURNS)
        with pytest.raises(UsageError, match="failed"):
            await env.step(TRUE)


# -- order of calls ----------------------------------------------------------------------------------------------------


async def test_reset_knows_no_options(task: Path) -> None:
    async with make_env(task) as env:
        with pytest.raises(UsageError, match="color"):
            await env.reset(options={"color": 1})
        await env.reset(options={}, seed=3)


async def test_a_failed_episode_is_named_and_a_reset_starts_again(task: Path) -> None:
    async with make_env(task, fail={"exec": 1}) as env:
        await env.reset()
        with pytest.raises(SandboxLostError):
            await env.step(TRUE)
        with pytest.raises(UsageError, match="failed"):
            await env.step(TRUE)
        await env.reset()


async def test_an_episode_that_is_over_takes_no_step(task: Path) -> None:
    async with make_env(task) as env:
        await env.reset()
        check_done(await env.step(COMPLETE))
        with pytest.raises(UsageError, match="step can't be called while the environment is done; the episode is over"):
            await env.step(TRUE)
        with pytest.raises(UsageError, match="truncate can't be called while the environment is done"):
            await env.truncate(EndReason.MAX_TURNS)


async def test_close_has_the_last_word_over_a_running_step(task: Path) -> None:
    env = make_env(task)
    await env.reset()
    step = asyncio.create_task(env.step([("sleep 60\n", 60.0)]))
    await asyncio.sleep(0.02)
    with pytest.raises(UsageError, match="one call at a time"):
        await env.reset()
    await env.close()
    with pytest.raises(SandboxLostError, match="it was stopped"):
        await step
    with pytest.raises(UsageError, match="closed"):
        await env.reset()


# -- ended by the caller's loop ------------------------------------------------------------------------------------


async def test_a_policy_that_stops_calling_tools_is_verified_and_not_truncated(task: Path) -> None:
    async with make_env(task, rewards=0.5) as env:
        with pytest.raises(UsageError, match="finish can't be called while the environment is not reset"):
            await env.finish()
        await env.reset()
        observation, reward, done, info = await env.finish(EndReason.NO_TOOL_CALL)
        assert (observation, reward, done) == ("", 0.5, True)
        assert (info.get("end_reason"), info.get("truncated")) == (EndReason.NO_TOOL_CALL, False)
        with pytest.raises(UsageError, match="finish can't be called while the environment is done"):
            await env.finish()


@pytest.mark.parametrize("reason", [EndReason.MAX_TURNS, EndReason.INFRASTRUCTURE_ERROR, EndReason.SESSION_ENDED])
async def test_what_is_no_end_of_the_policys_is_refused_and_the_episode_goes_on(task: Path, reason: EndReason) -> None:
    async with make_env(task) as env:
        await env.reset()
        with pytest.raises(UsageError, match="finish takes completed or no_tool_call, got"):
            await env.finish(reason)
        assert not (await env.step(TRUE)).done


async def test_the_next_step_opens_when_a_policy_stops_in_a_middle_one(task: Path) -> None:
    async with make_env(task, steps=2, rewards=0.5) as env:
        await env.reset()
        middle = await env.finish(EndReason.NO_TOOL_CALL)
        assert (middle.reward, middle.done) == (0.0, False)
        assert "Do step-2." in middle.observation
        assert "Do step-2." in middle.info.get("instruction", "")
        last = await env.finish()
        assert (last.done, last.info.get("end_reason")) == (True, EndReason.COMPLETED)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (["ls\n"], "Command 1 of the action: expected a Command or (keystrokes, duration_sec), found 'ls\\n'"),
        ([("ls\n", 1.0), ("ls\n", -0.5)], "Command 2 of the action: its duration is -0.5 seconds"),
        ([Command("ls\n", float("nan"))], "Command 1 of the action: its duration is nan seconds"),
        (None, "an action is text, or a list of (keystrokes, duration_sec); found None"),
        (Command("ls\n"), "an action is text, or a list of"),
    ],
)
async def test_a_mistake_in_an_action_leaves_the_episode_as_it_was(tmp_path: Path, action: Any, words: str) -> None:
    async with AsyncTerminalGymEnv(fake_config(tmp_path / "task")) as env:
        await env.reset()
        with pytest.raises(UsageError, match=re.escape(words)):
            await env.step(action)
        *_, done, info = await env.step([("true\n", 1.0)])
        assert (done, info["turn"]) == (False, 1)
