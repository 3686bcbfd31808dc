"""The output of ``harbor-gym check``, and where it looks for missing files, in memory."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harbor_gym._runtime.harbor_versions import VERSION
from harbor_gym.checking import CheckPlan, Verdict, check_tasks
from harbor_gym.checking.report import as_object, remarks
from harbor_gym.checking.trials import run_plain_oracle
from harbor_gym.checking.verdict import TaskCheck
from harbor_gym.errors import AgentFailedError
from harbor_gym.sandboxes import environment_config
from harbor_gym.testing import FakeEnvironment
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.tasks import write_steps, write_task


class Hanging(FakeEnvironment):
    """A sandbox that never starts for the task ``slow``."""

    async def start(self, force_build: bool) -> None:
        if self.environment_dir.parent.name == "slow":
            (self.environment_dir.parent / "started").touch()
            await asyncio.Event().wait()
        await super().start(force_build)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_check_that_is_stopped_prints_what_it_has(tmp_path: Path, stop: signal.Signals) -> None:
    for name in ("fast", "slow"):
        write_task(tmp_path / name)
    command = [sys.executable, "-m", "harbor_gym", "check", str(tmp_path / "fast"), str(tmp_path / "slow"), "--json"]
    options = ["--env", f"{__name__}:Hanging", "--concurrency", "1"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        deadline = PATIENCE_SEC * 10
        while not (tmp_path / "slow/started").exists() and process.poll() is None and deadline > 0:
            deadline -= 1
            time.sleep(0.1)
        process.send_signal(stop)
        printed, _ = process.communicate(timeout=PATIENCE_SEC)
    assert process.returncode not in (0, 1)
    assert [item["task"] for item in json.loads(printed)] == ["fast"]


@pytest.mark.parametrize("table", ["environment", "verifier"])
async def test_a_missing_variable_is_an_error_of_the_task(tmp_path: Path, table: str) -> None:
    toml = f'[{table}.env]\nKEY = "${{NO_SUCH_KEY_HERE}}"\n'
    plan = CheckPlan(environment_config("harbor_gym.testing:FakeEnvironment"), tmp_path / "trials")
    (check,) = await check_tasks([write_task(tmp_path / "task", toml=toml)], plan)
    assert (check.verdict, check.refused) == (Verdict.ERROR, False)
    assert "NO_SUCH_KEY_HERE" in (check.reason or "")


@pytest.mark.skipif(VERSION < (0, 26), reason="Harbor has a lint since 0.26")
async def test_harbors_own_rules_are_shown_beside_ours(tmp_path: Path) -> None:
    toml = '[metadata.harbor.lint]\nignore = ["shared-verifier"]\n'
    task = write_task(tmp_path / "task", toml=toml, test_sh="#!/bin/bash\npip install pytest\n")
    with (task / "task.toml").open("a") as file:
        file.write("[environment]\ncpu = 1\n")
    plan = CheckPlan(environment_config("harbor_gym.testing:FakeEnvironment"), tmp_path / "trials")
    (check,) = await check_tasks([task], plan)
    rules = [re.search(r"\[(.*)\]", line) for line in check.lint]
    assert [rule and rule[1] for rule in rules] == ["unknown-config-field", "unpinned-python-dependency"]
    assert check.lint[1].startswith("tests/test.sh:2 ")
    assert f"task: harbor lint: {check.lint[0]}" in remarks(check)
    assert as_object(check)["lint"] == check.lint


@pytest.mark.skipif(VERSION < (0, 26), reason="Harbor has a lint since 0.26")
async def test_a_lint_that_fails_is_a_line_and_no_verdict(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (tmp_path / "dataset.toml").write_text("[metadata.harbor.lint]\nignore = 3\n")
    plan = CheckPlan(environment_config("harbor_gym.testing:FakeEnvironment"), tmp_path / "trials")
    (check,) = await check_tasks([task], plan)
    assert check.lint == ("the task can't be linted: BadParameter, from its files or their permissions",)
    assert check.error is None or "lint" not in check.error


async def test_a_task_for_windows_is_refused(tmp_path: Path) -> None:
    toml = '[environment]\nos = "windows"\n'
    plan = CheckPlan(environment_config("harbor_gym.testing:FakeEnvironment"), tmp_path / "trials")
    task = write_task(tmp_path / "task", toml=toml)
    (task / "tests/test.bat").write_text("exit\n")
    (task / "solution/solve.bat").write_text("exit\n")
    (check,) = await check_tasks([task], plan)
    assert (check.verdict, check.refused) == (Verdict.REFUSED, True)


def test_the_run_that_differs_is_named_with_its_verifiers_words(tmp_path: Path) -> None:
    found = TaskCheck("task", tmp_path, oracle=(1.0, 0.0), nop=(0.0, 0.0), output="of the oracle", nop_output="other")
    assert "oracle, run 2" in (found.reason or "")
    assert found.shown_output == "of the oracle"
    found = TaskCheck("task", tmp_path, oracle=(1.0, 1.0), nop=(1.0, 0.0), output="of the oracle", nop_output="of nop")
    assert "doing nothing, run 1" in (found.reason or "")
    assert found.shown_output == "of nop"


async def test_a_plain_trials_verdict_beside_an_exception_is_no_reward(tmp_path: Path) -> None:
    plan = CheckPlan(environment_config("tests.helpers.sandboxes.timed_fakes:Unrestored"), tmp_path / "trials")
    with pytest.raises(AgentFailedError, match="ConnectionError: the network can't be restored"):
        await run_plain_oracle(write_steps(tmp_path / "task"), plan)
