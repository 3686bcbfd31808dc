"""How often an episode goes into its sandbox. Each trip costs milliseconds of processor time, and more on Docker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, override

import pytest
from harbor.environments.base import ExecResult

from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.benchmarks.episode import SCRIPT
from tests.helpers.harbor_trials import run_episode
from tests.helpers.tasks import write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


class CountingSandbox(LocalEnvironment):
    """A local sandbox that notes every trip into it."""

    trips: ClassVar[list[str]] = []

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        self.trips.append(f"exec {_name(command)}")
        return await super().exec(command, *args, **kwargs)

    @override
    async def exec_pipes(self, command: str, **kwargs: Any) -> Any:
        self.trips.append(f"channel {_name(command)}")
        return await super().exec_pipes(command, **kwargs)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        self.trips.append(f"upload {target_dir}")
        await super().upload_dir(source_dir, target_dir)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        self.trips.append(f"download {source_dir}")
        await super().download_dir(source_dir, target_dir)


_MARKS = {
    "open": ": terminal/step serve",
}
SANDBOX = f"{__name__}:{CountingSandbox.__name__}"
KEEPS_A_VERDICT = "#!/bin/bash\n[ -e /logs/verifier/reward.txt ] || echo 0 > /logs/verifier/reward.txt\n"


def _name(command: str) -> str:
    return "+".join(name for name, mark in _MARKS.items() if mark in command) or " ".join(command.split()[:3])


@pytest.fixture(autouse=True)
def trips() -> Iterator[list[str]]:
    """The calls of the test's sandboxes, in order."""
    CountingSandbox.trips.clear()
    yield CountingSandbox.trips
    CountingSandbox.trips.clear()


async def test_an_episode_takes_few_trips_however_many_steps_it_has(task_dir: Path, trips: list[str]) -> None:
    script = "".join(keys for keys, _ in SCRIPT) + "echo done > /srv/answer"
    ((reward, _, _),), _ = await run_episode(task_dir, [script], sandbox=SANDBOX)
    assert reward == 1.0
    assert trips == [
        "channel open",
        # Harbor's own calls between the agent's phase and the verifier's.
        "download /logs/agent",
        "upload /logs/agent",
        "download /logs/artifacts",
        "upload /tests",
        "exec (/tests/test.sh) > /logs/verifier/test-stdout.txt",
        "download /logs/verifier",
    ]


@pytest.mark.parametrize("is_link", [False, True])
async def test_only_a_test_script_that_came_as_a_link_is_made_executable_by_a_program_of_the_sandbox(
    tmp_path: Path, trips: list[str], is_link: bool
) -> None:
    task_dir = write_task(tmp_path / "task")
    script = task_dir / "tests" / "test.sh"
    if is_link:
        script.rename(script.with_name("real.sh"))
        script.symlink_to("real.sh")
    script.chmod(0o640)
    ((reward, _, _),), _ = await run_episode(task_dir, ["echo done > /srv/answer"], sandbox=SANDBOX)
    assert reward == 1.0
    assert ("exec chmod +x /tests/test.sh" in trips) is is_link


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("env -u TMUX setsid sleep 1000 >/dev/null 2>&1 & sleep 0.3", id="a_process_runs_on"),
        pytest.param("echo 1 > /logs/verifier/reward.txt", id="a_planted_verdict"),
        pytest.param("mkdir /tests", id="a_place_for_the_tests"),
        pytest.param("ln -s /srv /tests", id="a_link_for_the_tests"),
        pytest.param("mv /logs/verifier /srv; ln -s /srv/verifier /logs", id="a_link_for_the_verdict"),
        pytest.param("mv /logs /srv; ln -s /srv/logs /", id="a_link_on_the_way"),
        pytest.param("rm -r /logs/verifier", id="no_place_for_the_verdict"),
        pytest.param("chown 1000 /logs/verifier", id="somebody_elses_place_for_the_verdict"),
    ],
)
async def test_a_sandbox_that_was_not_left_clean_takes_no_more(tmp_path: Path, trips: list[str], script: str) -> None:
    task_dir = write_task(tmp_path / "task", test_sh=KEEPS_A_VERDICT)
    for keys in ("true", script):
        ((reward, _, _),), _ = await run_episode(task_dir, [keys], sandbox=SANDBOX)
        assert reward == 0.0
    clean = trips[: len(trips) // 2]
    assert trips == clean * 2


async def test_what_lies_in_the_log_folders_is_copied_all_the_same(
    tmp_path: Path, task_dir: Path, trips: list[str]
) -> None:
    script = "echo kept > /logs/artifacts/.out; mkdir /logs/agent/notes; echo mine > /logs/agent/notes/one"
    ((_, _, info),), _ = await run_episode(task_dir, [script], sandbox=SANDBOX, trials_dir=tmp_path / "trials")
    trial_dir = info.get("trial_dir")
    assert trial_dir is not None
    assert (trial_dir / "artifacts/logs/artifacts/.out").read_text() == "kept\n"
    assert (trial_dir / "agent/notes/one").read_text() == "mine\n"
    assert {"download /logs/agent", "upload /logs/agent", "download /logs/artifacts"} < set(trips)


async def test_empty_log_folders_are_recorded_as_harbor_records_them(tmp_path: Path, task_dir: Path) -> None:
    ((_, _, info),), _ = await run_episode(task_dir, ["true"], sandbox=SANDBOX, trials_dir=tmp_path / "trials")
    trial_dir = info.get("trial_dir")
    assert trial_dir is not None
    (entry,) = json.loads((trial_dir / "artifacts/manifest.json").read_text())
    assert (entry["source"], entry["type"], entry["status"]) == ("/logs/artifacts", "directory", "ok")
    assert list((trial_dir / "artifacts/logs/artifacts").iterdir()) == []


async def test_a_removed_log_folder_is_made_again_and_empty(tmp_path: Path, task_dir: Path) -> None:
    script = "rm -rf /logs/artifacts /logs/agent; ln -s /etc /logs/agent"
    ((_, _, info),), _ = await run_episode(task_dir, [script], sandbox=SANDBOX, trials_dir=tmp_path / "trials")
    trial_dir = info.get("trial_dir")
    assert trial_dir is not None
    (entry,) = json.loads((trial_dir / "artifacts/manifest.json").read_text())
    assert entry["status"] == "ok"
    assert list((trial_dir / "artifacts/logs/artifacts").iterdir()) == []


async def test_a_verdict_that_the_tasks_own_collector_was_made_to_forge_is_removed(tmp_path: Path) -> None:
    """The task's own collector runs a program of the policy's, which forges a verdict and leaves an artifact."""
    toml = '[verifier]\ncollect = [{ command = "sh /srv/collector" }]\n'
    task_dir = write_task(tmp_path / "collected", toml=toml, test_sh=KEEPS_A_VERDICT)
    script = "echo 'echo 1 > /logs/verifier/reward.txt; echo late > /logs/artifacts/late' > /srv/collector"
    ((reward, _, info),), _ = await run_episode(task_dir, [script], sandbox=SANDBOX, trials_dir=tmp_path / "trials")
    trial_dir = info.get("trial_dir")
    assert trial_dir is not None
    assert reward == 0.0
    assert (trial_dir / "artifacts/logs/artifacts/late").read_text() == "late\n"


async def test_an_artifact_from_the_tests_directory_is_collected(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "reported", root_toml='artifacts = ["/tests/report.txt"]\n')
    script = "mkdir -p /tests; echo mine > /tests/report.txt"
    ((_, _, info),), _ = await run_episode(task_dir, [script], sandbox=SANDBOX, trials_dir=tmp_path / "trials")
    trial_dir = info.get("trial_dir")
    assert trial_dir is not None
    assert (trial_dir / "artifacts/tests/report.txt").read_text() == "mine\n"
