"""Every ending has a name: an infrastructure failure raises with the trial's files, and kept folders can be read."""

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason
from harbor_gym.errors import (
    HarborGymError,
    SandboxLostError,
    SandboxStartError,
    VerifierError,
    VerifierOutOfMemoryError,
)
from harbor_gym.sandboxes.supervisor import cgroups
from harbor_gym.types import EpisodeInfo
from tests.helpers.harbor_trials import COMPLETE
from tests.helpers.sandboxes.local import make_env
from tests.helpers.tasks import DONE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

MUTE = "#!/bin/bash\necho the tests could not be installed\n"

SLOW = "#!/bin/bash\necho still at it\nsleep 60\n"


async def solve(env: AsyncTerminalGymEnv, keys: str = DONE) -> None:
    await env.reset()
    await env.step([(keys, 5.0)])
    await env.step(COMPLETE)


async def end(task_dir: Path, *, keys: str = DONE) -> tuple[list[float], EpisodeInfo]:
    """Run an episode to its end, and return the pay of each phase, and its last info."""
    rewards: list[float] = []
    async with make_env(task_dir) as env:
        _, info = await env.reset()
        done = False
        while not done:
            await env.step([(keys, 5.0)])
            _, reward, done, info = await env.step(COMPLETE)
            rewards.append(reward)
    return rewards, info


async def fail(task_dir: Path, *, keys: str = DONE, **settings: Any) -> HarborGymError:
    """Run an episode that fails, and return its error after a journey through pickle."""
    async with make_env(task_dir, **settings) as env:
        with pytest.raises(HarborGymError) as caught:
            await solve(env, keys)
    assert caught.value.is_infrastructure
    travelled: HarborGymError = pickle.loads(pickle.dumps(caught.value))
    assert type(travelled) is type(caught.value)
    assert str(travelled) == str(caught.value)
    assert (travelled.diagnostics, travelled.trial_dir) == (caught.value.diagnostics, caught.value.trial_dir)
    assert travelled.__notes__ == caught.value.__notes__
    return travelled


async def test_a_mute_verifier_is_shown_in_its_own_words(tmp_path: Path) -> None:
    error = await fail(write_task(tmp_path / "mute", test_sh=MUTE))
    assert isinstance(error, VerifierError)
    assert error.diagnostics["verifier_output"] == "the tests could not be installed"
    assert "RewardFileNotFoundError" in error.diagnostics["exception"]
    assert error.trial_dir is None
    assert any("the tests could not be installed" in note for note in error.__notes__)


async def test_a_verifier_that_ran_out_of_time_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "slow", test_sh=SLOW, toml="[verifier]\ntimeout_sec = 4\n")
    error = await fail(task_dir, trials_dir=tmp_path / "trials", ambiguous_failures="infrastructure")
    assert isinstance(error, VerifierError)
    assert "timeout_sec" in str(error)
    assert error.diagnostics["verifier_output"] == "still at it"
    assert error.trial_dir is not None
    assert (error.trial_dir / "result.json").is_file()


async def test_a_sandbox_that_goes_away_while_it_is_graded_is_lost(tmp_path: Path, task_dir: Path) -> None:
    error = await fail(
        task_dir, sandbox="tests.helpers.sandboxes.failing:LostAtGrading", trials_dir=tmp_path / "trials"
    )
    assert isinstance(error, SandboxLostError | VerifierError)
    assert error.trial_dir is not None


async def test_a_later_step_that_can_not_be_set_up_is_no_reward(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "steps", toml='[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n')
    for name in ("one", "two"):
        (task_dir / "steps" / name / "workdir").mkdir(parents=True)
        (task_dir / "steps" / name / "instruction.md").write_text("Go on.\n")
    (task_dir / "steps/two/workdir/setup.sh").write_text("echo no room >&2; exit 3\n")
    error = await fail(task_dir, ambiguous_failures="infrastructure")
    assert isinstance(error, SandboxStartError)
    assert "step 'two'" in str(error)
    assert "no room" in str(error)
    rewards, info = await end(task_dir)
    assert (rewards, info.get("end_reason")) == ([0.5], EndReason.SANDBOX_BROKEN)
    assert "no room" in info.get("breakage", "")
    assert info.get("episode_reward") == 0.5


MEMORY_HOG = """\
#!/bin/bash
x=$(head -c 900M /dev/zero | tr '\\0' x)
echo 1 > /logs/verifier/reward.txt
"""


@pytest.mark.skipif("memory" not in cgroups.places(), reason="no memory control group can be made here")
async def test_memory_that_runs_out_while_grading_is_distinguished_from_other_silence(tmp_path: Path) -> None:
    toml = "[environment]\nmemory_mb = 128\nstorage_mb = 64\n"
    task_dir = write_task(tmp_path / "hungry", toml=toml, test_sh=MEMORY_HOG)
    assert isinstance(await fail(task_dir, ambiguous_failures="infrastructure"), VerifierOutOfMemoryError)
    rewards, info = await end(task_dir)
    assert (rewards, info.get("end_reason")) == ([0.0], EndReason.SANDBOX_BROKEN)
    assert "ran out of memory" in info.get("breakage", "")


@pytest.mark.skipif("memory" not in cgroups.places(), reason="no memory control group can be made here")
async def test_a_policy_that_runs_out_of_memory_is_graded_all_the_same(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "tight", toml="[environment]\nmemory_mb = 128\nstorage_mb = 64\n")
    async with make_env(task_dir) as env:
        await env.reset()
        screen, _, done, _ = await env.step([("python3 -c 'bytearray(900 << 20)'\n", 30.0)])
        assert "Killed" in screen
        assert not done
        _, reward, done, info = await env.step(COMPLETE)
    assert (reward, done, info["metrics"]["oom_kills"]) == (0.0, True, 1)


STARTS = {"ThrottledStart": "quota", "BrokenStart": "created but not started"}


@pytest.mark.parametrize("kind", STARTS)
async def test_a_sandbox_that_does_not_start_is_an_error_of_the_infrastructure(task_dir: Path, kind: str) -> None:
    error = await fail(task_dir, sandbox=f"tests.helpers.sandboxes.failing:{kind}")
    assert isinstance(error, SandboxStartError)
    assert STARTS[kind] in str(error)


async def timed_out(env: AsyncTerminalGymEnv) -> None:
    await env.reset()
    _, _, done, _ = await env.step([("sleep 0.3\n", 5.0)])
    assert done


async def crashed(env: AsyncTerminalGymEnv) -> None:
    await env.reset()
    with pytest.raises(VerifierError):
        await env.step(COMPLETE)


async def cancelled(env: AsyncTerminalGymEnv) -> None:
    await env.reset()
    step = asyncio.create_task(env.step([("sleep 30\n", 60.0)]))
    await asyncio.sleep(0.1)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step


ENDINGS: dict[str, tuple[Any, dict[str, Any], dict[str, str], str | None]] = {
    "completed": (solve, {}, {}, None),
    "timed out": (timed_out, {"time_limit_sec": 0.2}, {}, None),
    "crashed": (crashed, {}, {"test_sh": MUTE}, "RewardFileNotFoundError"),
    "cancelled": (cancelled, {}, {}, "CancelledError"),
}


# "None otherwise": the fixture nothing_left sees temporary folders.
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_trial_leaves_a_readable_folder_where_it_is_to_be_kept(tmp_path: Path, ending: str, kept: bool) -> None:
    run, settings, task, exception = ENDINGS[ending]
    task_dir = write_task(tmp_path / "task", **task)
    trials = tmp_path / "trials"
    async with make_env(task_dir, trials_dir=trials if kept else None, **settings) as env:
        await run(env)
    assert trials.exists() == kept
    if kept:
        check_folder(*trials.iterdir(), exception=exception)


def check_folder(folder: Path, *, exception: str | None) -> None:
    result = json.loads((folder / "result.json").read_text())
    assert result["finished_at"]
    assert (result["exception_info"] or {}).get("exception_type") == exception
    assert (result["verifier_result"] is None) == (exception is not None)
    header, *events = map(json.loads, (folder / "recording.cast").read_text().splitlines())
    assert header["version"] == 2
    assert events
    assert (folder / "trial.log").is_file()
