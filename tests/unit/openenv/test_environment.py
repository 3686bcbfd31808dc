"""The environment by itself, in memory: observations, failures, time-outs, tasks; and the suite behind it."""

import asyncio
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("openenv") is None:
    pytest.skip('pip install "harbor-gym[openenv]"', allow_module_level=True)

from pydantic import ValidationError

from harbor_gym import TerminalEnvConfig
from harbor_gym.adapters import openenv
from harbor_gym.adapters.openenv.episodes import served_episodes
from harbor_gym.adapters.openenv.suite import TaskSuite
from harbor_gym.errors import TaskError, UsageError
from harbor_gym.slots import SlotOwner
from harbor_gym.types import EndReason
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, add_step, message

pytestmark = pytest.mark.usefixtures("nothing_left")

SOLVED = {"solved_when": {"/srv/answer": "done"}}

type Maker = Callable[..., openenv.HarborTerminalEnvironment]


def solve() -> "openenv.TerminalAction":
    return openenv.TerminalAction(message=message("echo done > /srv/answer\n"))


def finish() -> "openenv.TerminalAction":
    return openenv.TerminalAction(message=COMPLETE)


def suite_of(env: Any) -> TaskSuite:
    return env._suite


@pytest.fixture
def make(suite: Path) -> Maker:
    """Make an environment of the suite in fake sandboxes; keyword arguments of the fake are ``options``."""

    def make(
        options: dict[str, Any] | None = None,
        *,
        episodes: SlotOwner | None = None,
        timeout_sec: float = 60.0,
        max_retries: int = 0,
        pool_size: int | None = None,
        **settings: Any,
    ) -> "openenv.HarborTerminalEnvironment":
        own: dict[str, Any] = {"confirm_task_complete": False, **settings}
        config = TerminalEnvConfig(task_dir=suite, sandbox=FAKE, sandbox_options=options or SOLVED, **own)
        how = openenv.ServerConfig(
            env=config, tasks=(str(suite),), call_timeout_sec=timeout_sec, max_retries=max_retries, pool_size=pool_size
        )
        return openenv.HarborTerminalEnvironment(TaskSuite.resolve(suite, test_tasks=["gamma"]), how, episodes)

    return make


def test_an_episode(make: Maker) -> None:
    env = make()
    try:
        for _ in range(2):
            first = env.reset(index=1)
            assert (first.instruction, first.text, first.done, first.reward) == ("Do beta.\n", "$", False, None)
            assert (env.state.task, env.state.split, env.state.index, env.state.step_count) == ("beta", "train", 1, 0)
            second = env.step(solve())
            assert (second.reward, second.done, second.turn, second.exit_code) == (0.0, False, 1, 0)
            assert "echo done" in second.text
            last = env.step(finish())
            assert (last.reward, last.done, last.end_reason) == (1.0, True, EndReason.COMPLETED)
            assert (last.rewards, last.episode_reward, last.truncated) == ({"reward": 1.0}, 1.0, False)
            assert not last.is_lost
            assert env.state.step_count == 2
            with pytest.raises(UsageError, match="call reset"):
                env.step(finish())
    finally:
        env.close()


@pytest.mark.parametrize(
    ("end", "reason", "truncated"),
    [("completed", "completed", False), ("no_tool_call", "no_tool_call", False), ("max_tokens", "max_tokens", True)],
)
def test_the_callers_loop_ends_an_episode(make: Maker, end: Any, reason: str, truncated: bool) -> None:
    env = make()
    env.reset(index=0)
    env.step(openenv.TerminalAction.model_validate({"commands": [{"keystrokes": "echo done > /srv/answer\n"}]}))
    last = env.step(openenv.TerminalAction(end=end))
    assert (last.done, last.reward, last.end_reason, last.truncated) == (True, 1.0, EndReason(reason), truncated)
    env.close()


def test_a_lost_episode_is_done_without_a_reward(make: Maker) -> None:
    """Of every kind: ``tests/contract``."""
    from openenv.core.env_server.serialization import serialize_observation

    env = make({**SOLVED, "fail": {"start": 1}})
    last = env.reset(index=0)
    assert (last.done, last.reward, last.end_reason) == (True, None, EndReason.INFRASTRUCTURE_ERROR)
    assert (last.is_lost, last.failure_kind) == (True, "sandbox_start")
    assert last.error
    wire = json.loads(json.dumps(serialize_observation(last)))
    assert (wire["reward"], wire["done"], wire["observation"]["failure_kind"]) == (None, True, last.failure_kind)
    with pytest.raises(UsageError, match="reset"):
        env.step(finish())
    env.close()


def test_a_failed_start_is_retried(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    from harbor_gym.env import AsyncTerminalGymEnv
    from harbor_gym.errors import SandboxStartError

    reset, starts = AsyncTerminalGymEnv.reset, list[int]()

    async def fail_first(self: AsyncTerminalGymEnv, **settings: Any) -> Any:
        starts.append(len(starts))
        if len(starts) == 1:
            raise SandboxStartError("not this time")
        return await reset(self, **settings)

    monkeypatch.setattr(AsyncTerminalGymEnv, "reset", fail_first)
    env = make(max_retries=1)
    assert not env.reset(index=0).done
    assert len(starts) == 2
    env.close()


def test_a_start_that_takes_too_long_is_lost_and_leaves_nothing(make: Maker) -> None:
    env = make({**SOLVED, "delay_sec": 30.0}, timeout_sec=0.3)
    observation = env.reset(index=0)
    assert (observation.done, observation.reward, observation.failure_kind) == (True, None, "sandbox_timeout")
    assert "call_timeout_sec" in (observation.error or "")


def test_a_task_of_several_steps_pays_the_episodes_reward(make: Maker, suite: Path) -> None:
    env = make()
    for name in ("one", "two"):
        add_step(suite / "alpha", name)
    assert env.reset(index=0).instruction == "Do one.\n"
    env.step(solve())
    between = env.step(finish())
    assert (between.done, between.reward, between.instruction) == (False, 0.0, "Do two.\n")
    last = env.step(finish())
    assert (last.done, last.reward, last.episode_reward) == (True, 1.0, 1.0)
    assert (last.rewards, last.step_rewards) == ({"reward": 1.0}, ({"reward": 1.0},) * 2)
    env.close()


async def test_inside_a_running_loop(make: Maker) -> None:
    env = make()
    assert not (await env.reset_async(index=0)).done
    assert (await env.step_async(solve())).reward == 0.0
    env.close()
    with pytest.raises(UsageError, match="before reset"):
        await env.step_async(finish())


async def test_a_cancelled_reset_leaves_nothing(make: Maker) -> None:
    env = make({**SOLVED, "delay_sec": 30.0})
    running = asyncio.ensure_future(env.reset_async(index=0))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_servers_end_closes_every_session(make: Maker) -> None:
    from harbor_gym._runtime.portal import get_portal

    episodes = served_episodes()
    first, second = make(episodes=episodes), make(episodes=episodes, pool_size=1)
    await first.reset_async(index=0)
    await second.reset_async(index=0)
    await get_portal().run(episodes.close)
    for env in (first, second):
        with pytest.raises(UsageError, match="no running episode"):
            await env.step_async(solve())
        with pytest.raises(UsageError, match="closed"):
            await env.reset_async(index=0)
    with pytest.raises(UsageError, match="closed"):
        await make(episodes=episodes).reset_async(index=0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"indx": 1}, "got indx"),
        ({"index": 2}, "from 0 to 1"),
        ({"index": -1}, "from 0 to 1"),
        ({"index": "1"}, "must be an integer"),
        ({"index": True}, "must be an integer"),
        ({"seed": 1.5}, "must be an integer"),
        ({"split": "eval"}, "there are train, test"),
        ({"task": "delta"}, "no task of train and test is called 'delta'"),
        ({"task": "alpha", "split": "test"}, "no task of test"),
        ({"task": "alpha", "index": 0}, "one of index and task"),
    ],
)
def test_wrong_arguments_of_a_reset_are_refused(make: Maker, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make().reset(**arguments)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"message": "x", "end": "completed"},
        {"commands": [], "message": "x"},
        {"end": "infrastructure_error"},
        {"end": "session_ended"},
        {"commands": [{"keystrokes": "x", "duration_sec": float("nan")}]},
        {"commands": [{"keystrokes": "x"}] * 101},
        {"other": 1},
    ],
)
def test_wrong_actions_are_refused_in_json(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        openenv.TerminalAction.model_validate(fields)
    refused.value.json()
    assert all("error" not in item.get("ctx", {}) for item in refused.value.errors())


def test_tasks_are_chosen_by_seed_by_name_and_at_random(make: Maker) -> None:
    suite = suite_of(make())
    assert [suite.choose(seed=seed).task.name for seed in range(4)] == ["alpha", "beta", "alpha", "beta"]
    gamma = suite.choose(task="gamma")
    assert (gamma.split, gamma.index) == ("test", 0)
    assert {suite.choose().task.name for _ in range(100)} == {"alpha", "beta"}
    assert suite.choose("test").task.name == "gamma"


def test_tasks_are_listed_as_openenv_asks(make: Maker) -> None:
    env = make()
    assert env.list_splits() == [{"name": "train", "type": "train"}, {"name": "test", "type": "test"}]
    assert (env.num_tasks("train"), env.num_tasks("test")) == (2, 1)
    listed = env.list_tasks("train")
    assert [task["id"] for task in listed] == ["alpha", "beta"]
    assert listed[1]["instruction"] == "Do beta.\n"
    assert listed[1]["digest"].startswith("sha256:")
    assert env.get_task("train", 1) == listed[1]
    assert env.get_task_range("train", 1) == listed[1:]
    assert env.get_task_range("train", None, -1) == listed[:1]
    assert env.get_metadata().name == "harbor_terminal"


def test_a_suite_without_tasks_is_refused(suite: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        TaskSuite.resolve([])
    with pytest.raises(UsageError):
        TaskSuite.resolve(tmp_path / "nowhere")
    (suite / "beta/instruction.md").unlink()
    with pytest.raises(TaskError, match="beta"):
        TaskSuite.resolve(suite)


def test_every_field_of_the_info_that_is_observed_has_its_name() -> None:
    from harbor_gym.adapters.openenv.environment import INFO_FIELDS

    expected = "instruction turn parse_error exit_code waits omitted_bytes confirmation_pending end_reason breakage "
    expected += "truncated rewards step_rewards episode_reward metrics"
    assert set(expected.split()) == INFO_FIELDS
    assert set(openenv.TerminalObservation.model_fields) >= INFO_FIELDS
