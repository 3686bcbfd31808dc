"""The environment in memory: the pay of a step and an episode, and the texts for the policy and its trainer."""

from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason
from harbor_gym.config import TerminalConfig
from harbor_gym.errors import AgentFailedError, VerifierError, VerifierOutOfMemoryError
from harbor_gym.formats import parse_action, prompts
from harbor_gym.testing.conformance.env_probe import check_done, check_step
from harbor_gym.types import ActionFormat, EpisodeInfo
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, add_step, fake_config, message
from tests.helpers.sandboxes.timed_fakes import Noting

TRUE = [("true\n", 1.0)]
UNREADABLE = "no message"


FAKES = "tests.helpers.sandboxes.timed_fakes"


@pytest.fixture
def noting() -> str:
    """Return the sandbox that notes."""
    Noting.noted.clear()
    return f"{FAKES}:Noting"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return tmp_path / "task"


def make_env(task: Path, **settings: Any) -> AsyncTerminalGymEnv:
    return AsyncTerminalGymEnv(fake_config(task, **settings))


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
        assert (reward, done) == (0.25 if step_rewards else 0.0, False), "a half of Harbor's mean"
        assert "Do step-2." in observation
        assert (info["turn"], info.get("rewards"), info.get("task")) == (1, None, None)
        assert info.get("step_rewards") == ({"reward": 0.5},)
        assert {"time/verifier_sec", "time/terminal_open_sec", "time/step_sec"} <= set(info["metrics"])
        _, reward, done, info = await env.step(COMPLETE)
    assert (reward, done, info.get("episode_reward")) == (0.25 if step_rewards else 0.5, True, 0.5)
    assert (info.get("rewards"), info.get("step_rewards")) == ({"reward": 0.5}, ({"reward": 0.5},) * 2)
    assert info.get("end_reason") is EndReason.COMPLETED


@pytest.mark.parametrize("step_rewards", [True, False])
async def test_the_last_step_pays_its_own_or_the_tasks(task: Path, noting: str, step_rewards: bool) -> None:
    async with make_env(task, sandbox=noting, steps=2, step_rewards=step_rewards) as env:
        await env.reset()
        _, first, _, info = check_step(await env.step(COMPLETE))
        assert "episode_reward" not in info
        last = await env.step(COMPLETE)
        assert check_done(last).get("episode_reward") == 0.75, "Harbor's mean of 1 and 1/2"
        assert last[3].get("rewards") == {"reward": 0.75}
        assert last[3].get("step_rewards") == ({"reward": 1.0}, {"reward": 0.5})
    assert (first, last[1]) == ((0.5, 0.25) if step_rewards else (0.0, 0.75))


@pytest.mark.parametrize("keep", [True, False])
async def test_a_terminal_is_closed_before_grading_or_let_go(task: Path, noting: str, keep: bool) -> None:
    async with make_env(task, sandbox=noting, keep_agent_processes=keep) as env:
        await env.reset()
        check_done(await env.step(COMPLETE))
        # The processes of a terminal end with the policy's others, which the stop counts, or with the sandbox.
        assert Noting.noted == ["detach", "grade", "detach"]


async def test_a_budget_ends_a_middle_step_and_the_episode(task: Path) -> None:
    async with make_env(task, steps=3, max_turns=2, rewards=0.5) as env:
        await env.reset()
        await env.step(COMPLETE)
        _, reward, done, info = await env.step(TRUE)
    assert (reward, done, info.get("end_reason")) == (0.5, True, EndReason.MAX_TURNS)


# -- grading -----------------------------------------------------------------------------------------------------------


async def test_processes_that_survive_the_stop_earn_nothing(task: Path) -> None:
    async with make_env(task, keep_agent_processes=False, processes={"stopped": 3, "unstoppable": 1}) as env:
        await env.reset()
        _, reward, done, info = await env.step(COMPLETE)
    assert (reward, done, info.get("end_reason")) == (0.0, True, EndReason.SANDBOX_BROKEN)


async def test_stopped_processes_and_memory_kills_are_reported(task: Path) -> None:
    async with make_env(task, keep_agent_processes=False, processes={"stopped": 3, "oom_kills": (4, 2, 0)}) as env:
        await env.reset()
        *_, info = await env.step(COMPLETE)
    assert (info["metrics"]["stopped_processes"], info["metrics"]["oom_kills"]) == (3, 2)


async def test_where_the_sandbox_reports_none_there_is_no_count(task: Path) -> None:
    async with make_env(task) as env:
        await env.reset()
        *_, info = await env.step(COMPLETE)
    assert info["metrics"]["stopped_processes"] == 0
    assert "oom_kills" not in info["metrics"]


@pytest.mark.parametrize(("oom_kills", "kind"), [((4, 2, 0), VerifierError), ((4, 2, 1), VerifierOutOfMemoryError)])
async def test_what_the_policy_ran_out_of_is_not_the_verifiers(
    task: Path, oom_kills: tuple[int, int, int], kind: type[VerifierError]
) -> None:
    processes = {"keep_agent_processes": False, "processes": {"oom_kills": oom_kills}}
    settings: dict[str, Any] = {"fail": {"verifier": 1}, **processes}
    async with make_env(task, ambiguous_failures="infrastructure", **settings) as env:
        await env.reset()
        with pytest.raises(VerifierError) as caught:
            await env.step(COMPLETE)
    assert type(caught.value) is kind
    assert ("killed 1 of its processes" in str(caught.value)) is (kind is VerifierOutOfMemoryError)


@pytest.mark.parametrize("keep", [None, True, False])
@pytest.mark.parametrize("is_kept", [True, False])
async def test_processes_are_kept_where_the_task_or_the_run_asks_for_it(
    task: Path, keep: bool | None, is_kept: bool
) -> None:
    make_env(task)
    with (task / "task.toml").open("a") as file:
        file.write(f"[metadata]\nkeep_agent_processes = {str(is_kept).lower()}\n")
    async with make_env(task, keep_agent_processes=keep, processes={"stopped": 3}) as env:
        await env.reset()
        *_, info = await env.step(COMPLETE)
    assert info["metrics"]["stopped_processes"] == (0 if (is_kept if keep is None else keep) else 3)


async def test_the_scalar_is_the_one_that_the_configuration_names(task: Path) -> None:
    async with make_env(task, rewards={"reward": 1.0, "speed": 0.25}, reward_key="speed") as env:
        await env.reset()
        _, reward, _, info = await env.step(COMPLETE)
    assert (reward, info.get("episode_reward")) == (0.25, 0.25)
    assert info.get("rewards") == {"reward": 1.0, "speed": 0.25}


# -- the policy's texts ------------------------------------------------------------------------------------------------


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
        warning = "- Extra text detected before the tool call"
        assert (await env.step(tolerated))[0] == prompts.with_warning(warning, observation)
        assert (await env.step('{"name": "submit"}'))[0] == prompts.confirmation_request("$", ActionFormat.BASH_TOOL)


async def test_the_policy_reads_the_next_step_with_its_screen(task: Path) -> None:
    async with make_env(task, steps=2, capture_screen=True) as env:
        screen, _ = await env.reset()
        observation, _, _, info = check_step(await env.step(message("echo of the first step\n", complete=True)))
        assert env.screen is not None
        assert "first step" not in env.screen.text, "each step has a terminal of its own"
        assert 0 <= info["metrics"]["time/terminal_open_sec"] < 60
    assert observation == prompts.next_step("Do step-2.\n", screen)


# -- reports and kept files --------------------------------------------------------------------------------------------


async def test_what_a_step_reports(task: Path, tmp_path: Path) -> None:
    async with make_env(task, trials_dir=tmp_path / "trials", capture_screen=True) as env:
        _, info = await env.reset()
        assert (info.get("task"), info.get("sandbox"), info.get("transport")) == ("harbor-gym/tiny", FAKE, "fake")
        assert (info["turn"], "setup" in info) == (0, False)
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


# -- nothing for those who run into a limit --------------------------------------------------------------------------


async def paid_in_steps(task: Path, *actions: Any, **settings: Any) -> tuple[list[float], EpisodeInfo]:
    """Play the actions, then have the episode cut; return the pay of each transition, and the last info."""
    async with AsyncTerminalGymEnv(fake_config(task, steps=3, **settings)) as env:
        await env.reset()
        results = [await env.step(action) for action in actions]
        if not results or not results[-1].done:
            results.append(await env.truncate(EndReason.CONTEXT_OVERFLOW))
        return [result.reward for result in results], results[-1].info


@pytest.mark.parametrize("step_rewards", [True, False])
async def test_a_multi_step_episode_cut_in_the_middle_sums_to_nothing(task: Path, step_rewards: bool) -> None:
    both = {"rewards": 1.0, "step_rewards": step_rewards}
    paid, info = await paid_in_steps(task, COMPLETE, **both)
    assert (sum(paid), info.get("episode_reward")) == (1.0, 1.0), "as Harbor reports it"
    paid, info = await paid_in_steps(task, COMPLETE, **both, zero_reward_on_limit=True)
    assert (sum(paid), info.get("episode_reward"), info.get("rewards")) == (0.0, 0.0, {"reward": 1.0})
    assert info["metrics"]["zero_reward_on_limit"] == 1.0


async def test_a_budgets_end_is_a_limit_wherever_it_is_noticed(task: Path) -> None:
    paid, info = await paid_in_steps(
        task, COMPLETE, message("true\n"), rewards=1.5, max_turns=2, zero_reward_on_limit=True, step_rewards=True
    )
    assert (paid, info.get("end_reason")) == ([0.5, -0.5], EndReason.MAX_TURNS)


async def test_who_ends_in_time_is_paid_and_losses_stay(task: Path) -> None:
    paid, info = await paid_in_steps(task, COMPLETE, COMPLETE, COMPLETE, rewards=0.5, zero_reward_on_limit=True)
    assert (paid, info.get("episode_reward")) == ([0.0, 0.0, 0.5], 0.5)
    assert "zero_reward_on_limit" not in info["metrics"]
    paid, info = await paid_in_steps(task, COMPLETE, rewards=-0.5, zero_reward_on_limit=True)
    assert (paid, info.get("episode_reward")) == ([0.0, -0.5], -0.5)


async def test_each_episode_is_reckoned_by_itself(task: Path) -> None:
    settings: dict[str, Any] = {"rewards": 1.0, "zero_reward_on_limit": True, "step_rewards": True}
    async with AsyncTerminalGymEnv(fake_config(task, steps=2, **settings)) as env:
        for _ in range(2):
            await env.reset()
            await env.step(COMPLETE)
            assert (await env.truncate(EndReason.MAX_TOKENS)).reward == -0.5


async def test_a_verdict_beside_an_exception_of_the_phase_is_no_reward(task: Path) -> None:
    async with make_env(task, sandbox=f"{FAKES}:Unrestored", steps=1) as env:
        await env.reset()
        with pytest.raises(AgentFailedError, match="ConnectionError: the network can't be restored"):
            await env.step(COMPLETE)


@pytest.mark.parametrize("step_rewards", [True, False])
async def test_with_the_final_strategy_only_the_last_step_pays(task: Path, step_rewards: bool) -> None:
    fake_config(task, steps=3)
    toml = task / "task.toml"
    toml.write_text(f'multi_step_reward_strategy = "final"\n{toml.read_text()}')
    paid, info = await paid_in_steps(task, COMPLETE, COMPLETE, COMPLETE, rewards=1.0, step_rewards=step_rewards)
    assert (paid, info.get("episode_reward")) == ([0.0, 0.0, 1.0], 1.0)
