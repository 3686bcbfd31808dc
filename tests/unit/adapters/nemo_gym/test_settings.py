"""Aliases, overrides, and where tasks are found."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harbor_gym.adapters.nemo_gym.datasets import Datasets
from harbor_gym.adapters.nemo_gym.settings import DatasetSettings, RequestOverrides, RolloutSettings, plan_episode
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import TaskSourceError, UsageError
from tests.helpers.tasks import write_task


def settings(**given: Any) -> RolloutSettings:
    datasets = given.pop("harbor_datasets", {"a": {"local_dataset_path": "tasks"}})
    return RolloutSettings(harbor_datasets=datasets, **given)


def plan(given: RolloutSettings, instance_id: str = "a::task", **overrides: Any) -> Any:
    return plan_episode(given, instance_id, Path("/task"), RequestOverrides(**overrides), root=Path("/root-of-it"))


def test_the_request_goes_before_the_alias_and_that_before_the_server() -> None:
    dataset = {"local_dataset_path": "x", "workdir": "/app", "env": {"time_limit_sec": 20, "max_turns": 7}}
    given = settings(
        harbor_datasets={"a": dataset, "b": {"local_dataset_path": "y"}},
        env={
            "sandbox": "tests.x:Y",
            "sandbox_options": {"one": 1, "workdir": "/"},
            "max_turns": 9,
            "time_limit_sec": 30,
            "trials_dir": "kept",
        },
    )
    own = plan(given)
    assert own.config.sandbox_options == {"one": 1, "workdir": "/app"}
    assert (own.config.max_turns, own.config.time_limit_sec, own.config.step_rewards) == (7, 20, False)
    assert own.config.trials_dir == Path("/root-of-it/kept/a")
    other = plan(given, "b::task")
    assert other.config.sandbox_options == {"one": 1, "workdir": "/"}
    assert (other.config.max_turns, other.config.time_limit_sec) == (9, 30)
    row = plan(
        given,
        max_retries=0,
        env={
            "max_turns": 3,
            "time_limit_sec": 5,
            "sandbox_options": {"one": 2},
            "action_format": "keystrokes",
        },
    )
    assert row.config.sandbox_options == {"one": 2, "workdir": "/app"}
    assert (row.config.max_turns, row.config.time_limit_sec, row.max_retries) == (3, 5, 0)
    assert row.config.action_format == "keystrokes"


def test_an_agents_own_options_are_apart_from_the_limit_of_turns() -> None:
    given = settings(env={"agent": "terminus-2", "agent_options": {"interleaved_thinking": True, "max_turns": 20}})
    planned = plan(given, env={"agent_options": {"max_turns": 5}}).config
    assert planned.max_turns == 50
    assert (planned.agent, planned.agent_options) == ("terminus-2", {"interleaved_thinking": True, "max_turns": 5})
    assert isinstance(plan(settings()).config, TerminalEnvConfig)
    assert plan(settings()).config.max_turns == 50


def test_what_can_not_be_used_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError, match=r"a::task: .*no_such"):
        plan(settings(env={"no_such": 1}))
    with pytest.raises(UsageError, match=r"a::task: env .*terminal: for our own loop, and the agent terminus-2 plays"):
        plan(settings(env={"agent": "terminus-2"}), env={"terminal": {"rows": 20}})
    server = {"harbor_server": "http://127.0.0.1:1"}
    with pytest.raises(UsageError, match="for the episodes of one of Harbor's agents"):
        plan(settings(env=server))
    planned = plan(settings(env={"agent": "terminus-2", **server}))
    assert planned.config.harbor_server == server["harbor_server"]
    assert plan(settings(env={"agent": "terminus-2"}), env={"reward_key": "x"}).config.reward_key == "x"
    with pytest.raises(ValidationError, match="max_turn"):
        RequestOverrides.model_validate({"max_turn": 1})
    with pytest.raises(ValidationError, match="got none"):
        DatasetSettings()
    with pytest.raises(ValidationError, match="got local_dataset_path and git"):
        DatasetSettings(local_dataset_path=Path("x"), git="https://example.org/r#tasks")
    with pytest.raises(ValidationError, match="belongs to dataset_name"):
        DatasetSettings(local_dataset_path=Path("x"), dataset_version="1")


async def test_local_tasks_are_found_by_name_and_nothing_outside(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one")
    write_task(tmp_path / "outside")
    found = Datasets(
        {
            "many": DatasetSettings(local_dataset_path=Path("tasks")),
            "single": DatasetSettings(local_dataset_path=tmp_path / "outside"),
        },
        root=tmp_path,
    )
    assert await found.find("many::one") == tmp_path / "tasks/one"
    assert await found.find("single::outside") == tmp_path / "outside"
    write_task(tmp_path / "tasks/later")
    assert await found.find("many::later") == tmp_path / "tasks/later"
    for wrong in ("many::two", "many::../outside", "many::", "many", "none::one", "many::./one", "single::one"):
        with pytest.raises(UsageError):
            await found.find(wrong)


async def test_a_git_repository_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    write_task(repository / "tasks/one")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "tasks")):
        process = await asyncio.create_subprocess_exec("git", *command, cwd=repository)
        assert await process.wait() == 0
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    dataset = {"remote": DatasetSettings(git=f"file://{repository}#tasks")}
    found = Datasets(dataset, root=tmp_path)
    first = await found.find("remote::one")
    repository.rename(tmp_path / "gone")
    assert await found.find("remote::one") == first
    assert (first / "task.toml").is_file()
    with pytest.raises(UsageError, match="no task 'two'"):
        await found.find("remote::two")
    with pytest.raises(TaskSourceError):
        await Datasets(dataset, root=tmp_path).find("remote::one")
