"""A trial around a fake sandbox: its grading, the believed rewards, and the names and files of a failure."""

import os
from pathlib import Path
from typing import Any, ClassVar, override

import pytest
from harbor.environments.base import ExecResult

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.config import TerminalConfig
from harbor_gym.episode.diagnostics import read_diagnostics
from harbor_gym.episode.task import load_task, phase_timeout_sec, phase_users
from harbor_gym.errors import SandboxStartError, TaskError, UsageError, VerifierError
from harbor_gym.testing import FakeEnvironment
from tests.helpers.sandboxes.fake_episodes import COMPLETE, add_step, fake_config, message


class Users(FakeEnvironment):
    """A fake that notes the user of the tests."""

    graded_by: ClassVar[list[Any]] = []

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        if "/tests/test.sh" in command and not command.startswith("chmod"):
            Users.graded_by.append(self._resolve_user(user))
        return await super().exec(command, cwd=cwd, env=env, timeout_sec=timeout_sec, user=user)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return tmp_path / "task"


def make_env(task: Path, **settings: Any) -> AsyncTerminalGymEnv:
    return AsyncTerminalGymEnv(fake_config(task, **settings))


def add(task: Path, toml: str) -> None:
    with (task / "task.toml").open("a") as file:
        file.write(toml)


# -- users -------------------------------------------------------------------------------------------------------------


async def test_a_steps_own_users_and_time_go_before_the_tasks(task: Path) -> None:
    fake_config(task)
    add(task, '[agent]\nuser = "dev"\ntimeout_sec = 9.0\n[verifier]\nuser = "grader"\n')
    add_step(task, "inherits")
    add_step(task, "own", '[steps.agent]\nuser = "ops"\ntimeout_sec = 3.0\n[steps.verifier]\nuser = "root"\n')
    loaded = await load_task(task)
    inherits, own = list(loaded.config.steps or ())
    assert phase_users(loaded) == phase_users(loaded, inherits) == ("dev", "grader")
    assert phase_users(loaded, own) == ("ops", "root")
    assert [phase_timeout_sec(loaded, step) for step in (None, inherits, own)] == [9.0, 9.0, 3.0]
    Users.graded_by.clear()
    async with make_env(task, sandbox=f"{__name__}:Users") as env:
        await env.reset()
        observation, *_ = await env.step([("whoami\n", 1.0)])
        assert "dev" in observation
        await env.step(COMPLETE)
        observation, *_ = await env.step([("whoami\n", 1.0)])
        assert "ops" in observation
        await env.step(COMPLETE)
    assert Users.graded_by == ["grader", "root"]


# -- believed rewards --------------------------------------------------------------------------------------------------


async def test_a_verdict_that_the_policy_wrote_is_gone_before_the_verifiers(task: Path) -> None:
    async with make_env(task, fail={"verifier": 1}) as env:
        await env.reset()
        await env.step(message("echo 1 > /logs/verifier/reward.txt\n", "mkdir /tests\n", "echo 0 > /tests/mine\n"))
        with pytest.raises(VerifierError, match="reward"):
            await env.step(COMPLETE)


async def test_each_step_is_graded_by_its_own_verdict(task: Path) -> None:
    async with make_env(task, steps=3, fail={"verifier": 2}) as env:
        await env.reset()
        first = await env.step(COMPLETE)
        assert (first.done, first.info.get("step_rewards")) == (False, ({"reward": 1.0},))
        with pytest.raises(VerifierError):
            await env.step(COMPLETE)


# -- names of failures -------------------------------------------------------------------------------------------------


async def test_a_sandbox_that_does_not_start_is_named_with_its_words(task: Path) -> None:
    async with make_env(task, fail={"start": 1}) as env:
        with pytest.raises(SandboxStartError, match="configured not to start") as caught:
            await env.reset()
    assert caught.value.is_infrastructure
    assert "exception" in caught.value.diagnostics


@pytest.mark.parametrize(
    ("settings", "words"), [({"typo": 1}, "no setting typo"), ({"disable": True}, "no setting disable")]
)
async def test_a_verifiers_setting_that_is_none_is_refused(task: Path, settings: dict[str, Any], words: str) -> None:
    async with make_env(task, verifier=settings) as env:
        with pytest.raises(UsageError, match=words):
            await env.reset()


@pytest.mark.parametrize(
    ("toml", "words"),
    [('[environment]\nos = "windows"\n', "Unix shell"), ("[agent]\ntimeout_sec = 'soon'\n", r"agent\.timeout_sec")],
)
async def test_what_no_terminal_can_do_is_refused_before_anything_starts(task: Path, toml: str, words: str) -> None:
    fake_config(task)
    add(task, toml)
    (task / "tests/test.bat").touch()
    async with make_env(task) as env:
        with pytest.raises(TaskError, match=words):
            await env.reset()


@pytest.mark.parametrize("kept", [True, False])
async def test_a_failure_brings_its_diagnostics_and_the_folder_where_that_is_kept(
    task: Path, tmp_path: Path, kept: bool
) -> None:
    trials = tmp_path / "trials" if kept else None
    async with make_env(task, fail={"verifier": 1}, trials_dir=trials) as env:
        await env.reset()
        with pytest.raises(VerifierError) as caught:
            await env.step(COMPLETE)
    assert "RewardFileNotFoundError" in caught.value.diagnostics["exception"]
    folder = caught.value.trial_dir
    assert (folder is not None) is kept
    assert folder is None or (folder / "result.json").is_file()


# -- diagnostics -------------------------------------------------------------------------------------------------------


async def test_a_fakes_command_that_waits_for_nothing_ends_however_late_the_machine_is(task: Path) -> None:
    async with make_env(task, terminal=TerminalConfig(min_wait_sec=0.0)) as env:
        await env.reset()
        late = "[still running after 0.0 s]\n$ sleep 60"
        for keys, shown in (("pwd\n", "$ pwd\n/srv\n$"), ("sleep 60\n", late)):
            assert (await env.step([(keys, 0.0)])).observation == shown


@pytest.fixture
def trial_dir(tmp_path: Path) -> Path:
    (tmp_path / "trial/verifier").mkdir(parents=True)
    (tmp_path / "secret").write_text("hunter2")
    return tmp_path / "trial"


def test_diagnostics_are_not_read_through_a_planted_link(trial_dir: Path) -> None:
    for name in ("verifier/test-stdout.txt", "exception.txt", "trial.log"):
        (trial_dir / name).symlink_to(trial_dir.parent / "secret")
    assert read_diagnostics(trial_dir) == {}


def test_diagnostics_are_read_of_plain_files_only(trial_dir: Path) -> None:
    os.mkfifo(trial_dir / "verifier/test-stdout.txt")
    (trial_dir / "exception.txt").mkdir()
    (trial_dir / "trial.log").write_text(" \n")
    assert read_diagnostics(trial_dir) == {}
    assert read_diagnostics(trial_dir / "absent") == {}


def test_diagnostics_are_the_newest_steps_and_its_end(trial_dir: Path) -> None:
    for age, name in enumerate(("two", "one")):
        path = trial_dir / "steps" / name / "verifier/test-stdout.txt"
        path.parent.mkdir(parents=True)
        path.write_text(f"of {name}\n")
        os.utime(path, (2000 - age, 2000 - age))
    (trial_dir / "exception.txt").write_bytes(b"x" * 4000)
    (trial_dir / "trial.log").write_bytes(b"a" * 10 + b"\xff" + b"y" * 3999)
    assert read_diagnostics(trial_dir) == {
        "verifier_output": "of two",
        "exception": "x" * 4000,
        "trial_log": "[… 10 bytes before]\n\ufffd" + "y" * 3999,
    }
