"""The environment in memory: what ends an episode, what it is called, and what does not outlive it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, override

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, prompts
from harbor_gym.actions import parse_action
from harbor_gym.config import TerminalConfig
from harbor_gym.errors import SandboxLostError, TerminalError, UsageError, VerifierError, VerifierOutOfMemoryError
from harbor_gym.terminal import Terminal
from harbor_gym.testing import FakeEnvironment, fake_terminal
from harbor_gym.testing.env_probe import check_done, check_step
from harbor_gym.testing.fake_shell import FakeShell, Output, Program
from harbor_gym.testing.fake_terminal import FakeTerminal
from harbor_gym.types import ActionFormat
from tests.fake_episodes import COMPLETE, add_step, fake_config, message

TRUE = [("true\n", 1.0)]
UNREADABLE = "no message"


_CLOCK = SimpleNamespace(now=0.0, monotonic=lambda: _CLOCK.now)


class Working(FakeEnvironment):
    """A fake in which time passes only while somebody works, and then at once."""

    @override
    def programs(self) -> Mapping[str, Program]:
        async def work(shell: FakeShell, words: list[str], output: Output) -> int:
            _CLOCK.now += float(words[0])
            return 0

        return {"work": work}


class Noting(FakeEnvironment):
    """A fake that notes what becomes of its terminals, and whose verdicts go down from step to step."""

    noted: ClassVar[list[str]] = []

    @override
    async def make_terminal(self, config: TerminalConfig, *, user: str | int | None) -> Terminal:
        return NotingTerminal(self, config, user=user)

    @override
    def grade(self) -> Mapping[str, float]:
        Noting.noted.append("grade")
        return {"reward": 1.0 / Noting.noted.count("grade")}


class NotingTerminal(FakeTerminal):
    """Notes its end with its sandbox."""

    @override
    async def detach(self) -> None:
        Noting.noted.append("detach")

    @override
    async def close(self) -> None:
        Noting.noted.append("close")
        await super().close()


@pytest.fixture
def noting() -> str:
    """Return the sandbox that notes."""
    Noting.noted.clear()
    return f"{__name__}:Noting"


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the fake's terminals go by the clock of those who work; return their sandbox."""
    monkeypatch.setattr(fake_terminal, "time", _CLOCK)
    return f"{__name__}:Working"


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
        _CLOCK.now += 100  # the policy thinks
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
        assert (reward, done, info.get("instruction")) == (1.0, False, "Do step-2.\n")
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


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (COMPLETE, EndReason.STEP_GATE),
        (message("exit\n"), EndReason.SESSION_ENDED),
        (message("work 8\n"), EndReason.TIME_LIMIT),
    ],
)
async def test_a_closed_gate_is_the_reason_only_where_nothing_else_is(
    task: Path, working: str, action: str, expected: EndReason
) -> None:
    make_env(task)
    for number in (1, 2):
        add_step(task, f"step-{number}", "min_reward = 0.5\n")
    with (task / "task.toml").open("a") as file:
        file.write("[agent]\ntimeout_sec = 8.0\n")
    async with make_env(task, sandbox=working, rewards=0.25) as env:
        await env.reset()
        _, reward, done, info = await env.step(action)
    assert (reward, done, info.get("end_reason")) == (0.25, True, expected)
    assert info.get("truncated") is (expected is EndReason.TIME_LIMIT)
    assert info.get("episode_reward") == 0.25


@pytest.mark.parametrize("step_rewards", [True, False])
async def test_steps_are_paid_one_by_one_or_together(task: Path, step_rewards: bool) -> None:
    async with make_env(task, steps=2, rewards=0.5, step_rewards=step_rewards) as env:
        _, info = await env.reset()
        assert info.get("instruction") == "Do step-1.\n"
        observation, reward, done, info = await env.step(COMPLETE)
        assert (reward, done) == (0.5 if step_rewards else 0.0, False)
        assert "Do step-2." in observation
        assert (info["turn"], info.get("rewards"), info.get("task")) == (1, {"reward": 0.5}, None)
        assert {"time/verifier_sec", "time/terminal_open_sec", "time/step_sec"} <= set(info["metrics"])
        _, reward, done, info = await env.step(COMPLETE)
    assert (reward, done, info.get("episode_reward")) == (0.5, True, 0.5)
    assert info.get("end_reason") is EndReason.COMPLETED


@pytest.mark.parametrize("step_rewards", [True, False])
async def test_the_last_step_pays_its_own_or_the_tasks(task: Path, noting: str, step_rewards: bool) -> None:
    async with make_env(task, sandbox=noting, steps=2, step_rewards=step_rewards) as env:
        await env.reset()
        _, first, _, info = check_step(await env.step(COMPLETE))
        assert "episode_reward" not in info
        last = await env.step(COMPLETE)
        assert check_done(last).get("episode_reward") == 0.75, "Harbor's mean of 1 and 1/2"
    assert (first, last[1]) == ((1.0, 0.5) if step_rewards else (0.0, 0.75))


@pytest.mark.parametrize("keep", [True, False])
async def test_a_terminal_is_closed_before_grading_or_let_go(task: Path, noting: str, keep: bool) -> None:
    async with make_env(task, sandbox=noting, keep_agent_processes=keep) as env:
        await env.reset()
        check_done(await env.step(COMPLETE))
        assert Noting.noted == (["detach", "grade", "close"] if keep else ["close", "grade"])


async def test_a_budget_ends_a_middle_step_and_the_episode(task: Path) -> None:
    async with make_env(task, steps=3, max_turns=2, rewards=0.5) as env:
        await env.reset()
        await env.step(COMPLETE)
        _, reward, done, info = await env.step(TRUE)
    assert (reward, done, info.get("end_reason")) == (0.5, True, EndReason.MAX_TURNS)


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
    step = asyncio.create_task(env.step([("sleep 0.1\n", 5.0)]))
    await asyncio.sleep(0.02)
    with pytest.raises(UsageError, match="one call at a time"):
        await env.reset()
    await env.close()
    with pytest.raises(TerminalError, match="closed"):
        await step
    with pytest.raises(UsageError, match="closed"):
        await env.reset()


# -- grading -----------------------------------------------------------------------------------------------------------


async def test_processes_that_survive_the_stop_leave_no_verdict(task: Path) -> None:
    async with make_env(task, processes={"stopped": 3, "unstoppable": 1}) as env:
        await env.reset()
        with pytest.raises(VerifierError, match="could not be stopped"):
            await env.step(COMPLETE)


async def test_stopped_processes_and_memory_kills_are_told(task: Path) -> None:
    async with make_env(task, processes={"stopped": 3, "oom_kills": (4, 2, 0)}) as env:
        await env.reset()
        *_, info = await env.step(COMPLETE)
    assert (info["metrics"]["stopped_processes"], info["metrics"]["oom_kills"]) == (3, 2)


async def test_where_the_sandbox_does_not_tell_there_is_no_count(task: Path) -> None:
    async with make_env(task) as env:
        await env.reset()
        *_, info = await env.step(COMPLETE)
    assert info["metrics"]["stopped_processes"] == 0
    assert "oom_kills" not in info["metrics"]


@pytest.mark.parametrize(("oom_kills", "kind"), [((4, 2, 0), VerifierError), ((4, 2, 1), VerifierOutOfMemoryError)])
async def test_what_the_policy_ran_out_of_is_not_the_verifiers(
    task: Path, oom_kills: tuple[int, int, int], kind: type[VerifierError]
) -> None:
    async with make_env(task, fail={"verifier": 1}, processes={"oom_kills": oom_kills}) as env:
        await env.reset()
        with pytest.raises(VerifierError) as caught:
            await env.step(COMPLETE)
    assert type(caught.value) is kind
    assert ("killed 1 of its processes" in str(caught.value)) is (kind is VerifierOutOfMemoryError)


@pytest.mark.parametrize("keep", [None, True, False])
@pytest.mark.parametrize("says", [True, False])
async def test_processes_are_kept_where_the_task_or_the_run_says_so(task: Path, keep: bool | None, says: bool) -> None:
    make_env(task)
    with (task / "task.toml").open("a") as file:
        file.write(f"[metadata]\nkeep_agent_processes = {str(says).lower()}\n")
    async with make_env(task, keep_agent_processes=keep, processes={"stopped": 3}) as env:
        await env.reset()
        *_, info = await env.step(COMPLETE)
    assert info["metrics"]["stopped_processes"] == (0 if (says if keep is None else keep) else 3)


async def test_the_scalar_is_the_one_that_the_configuration_names(task: Path) -> None:
    async with make_env(task, rewards={"reward": 1.0, "speed": 0.25}, reward_key="speed") as env:
        await env.reset()
        _, reward, _, info = await env.step(COMPLETE)
    assert (reward, info.get("episode_reward")) == (0.25, 0.25)
    assert info.get("rewards") == {"reward": 1.0, "speed": 0.25}


# -- what the policy reads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action_format", [ActionFormat.TERMINUS_JSON, ActionFormat.BASH_TOOL])
async def test_the_policy_reads_of_its_mistakes_in_its_own_format(task: Path, action_format: ActionFormat) -> None:
    unreadable = {
        ActionFormat.TERMINUS_JSON: 'Sure: {"analysis": "", "plan": "", "commands": 7}',
        ActionFormat.BASH_TOOL: 'Sure: {"name": 1}',
    }[action_format]
    parsed = parse_action(unreadable, format=action_format)
    assert parsed.error is not None
    assert parsed.warning is not None
    async with make_env(task, action_format=action_format) as env:
        await env.reset()
        observation, _, _, info = check_step(await env.step(unreadable))
    assert observation == prompts.parse_error(parsed.error, parsed.warning, action_format)
    assert info.get("parse_error") == parsed.error


async def test_the_policy_reads_warnings_and_questions_with_the_screen(task: Path) -> None:
    tolerated = 'Sure: {"name": "bash", "arguments": {"command": "echo seen"}}'
    async with make_env(task, action_format=ActionFormat.BASH_TOOL, confirm_task_complete=True) as env:
        await env.reset()
        observation, *_ = check_step(await env.step([("echo seen\n", 1.0)]))
        told = "- Extra text detected before the tool call"
        assert (await env.step(tolerated))[0] == prompts.with_warning(told, observation)
        assert (await env.step('{"name": "submit"}'))[0] == prompts.confirmation_request("$", ActionFormat.BASH_TOOL)


async def test_the_policy_reads_the_next_step_with_its_screen(task: Path) -> None:
    async with make_env(task, steps=2, capture_screen=True) as env:
        screen, _ = await env.reset()
        observation, _, _, info = check_step(await env.step(message("echo of the first step\n", complete=True)))
        assert env.screen is not None
        assert "first step" not in env.screen.text, "each step has a terminal of its own"
        assert 0 <= info["metrics"]["time/terminal_open_sec"] < 60
    assert observation == prompts.next_step("Do step-2.\n", screen)


# -- what is told and kept ---------------------------------------------------------------------------------------------


async def test_what_a_step_tells(task: Path, tmp_path: Path) -> None:
    async with make_env(task, trials_dir=tmp_path / "trials", capture_screen=True) as env:
        _, info = await env.reset()
        assert (info.get("task"), info.get("sandbox"), info.get("transport")) == ("harbor-gym/tiny", "fake", "fake")
        assert (info["turn"], info.get("image_substitutions"), "setup" in info) == (0, (), False)
        assert {"time/sandbox_start_sec", "time/terminal_open_sec"} <= set(info["metrics"])
        assert "pool/hit" not in info["metrics"]
        observation, *_, info = await env.step([("echo seen\n", 1.0), ("false\n", 1.0)])
        assert "seen" in observation
        assert (info.get("exit_code"), info.get("waits"), info.get("omitted_bytes")) == (1, ("prompt", "prompt"), 0)
        assert (info.get("parse_error"), info.get("confirmation_pending")) == (None, False)
        assert env.screen is not None
        assert "seen" in env.screen.text
        *_, info = await env.step(COMPLETE)
        assert info.get("episode_reward") == 1.0
    kept = info.get("trial_dir")
    assert kept is not None
    assert kept.parent == tmp_path / "trials"
    recorded = (kept / "recording.cast").read_text()
    assert '"echo seen\\nfalse\\n"' in recorded
    assert '"title":"harbor-gym/tiny"' in recorded
    assert env.screen is not None, "the screen outlives the episode"


async def test_nothing_is_kept_unasked(task: Path, tmp_path: Path) -> None:
    size = TerminalConfig(columns=100, rows=30)
    async with make_env(task, recording_path=tmp_path / "own.cast", terminal=size, capture_screen=True) as env:
        await env.reset()
        assert env.screen is not None
        assert (env.screen.columns, env.screen.rows) == (100, 30)
        await env.step([("echo recorded\n", 1.0)])
        *_, info = await env.step(COMPLETE)
        assert info.get("trial_dir") is None
    recorded = (tmp_path / "own.cast").read_text()
    assert "recorded" in recorded
    assert '"width":100,"height":30' in recorded


async def test_an_environment_that_was_never_closed_warns(task: Path) -> None:
    env = make_env(task)
    await env.reset()
    with pytest.warns(ResourceWarning, match="never closed"):
        env.__del__()
    await env.close()
    env.__del__()
