"""The shipped tasks are worth the same under ``harbor run``, ``reset``/``step`` and ``harbor-gym check``."""

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from harbor.models.task.task import Task

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.types import EpisodeInfo
from tests.helpers.engines import require_engine
from tests.helpers.environments import python_without
from tests.helpers.paths import ROOT

# Every shipped task three times over: on a machine that does other work beside, more than the usual limit.
pytestmark = [pytest.mark.slow]

TASKS = ROOT / "tasks"
NAMES = sorted(path.parent.name for path in TASKS.glob("*/task.toml"))
AT_ONCE = 3
PLAYED = {"local": NAMES, "docker": ["ledger_separate_verifier", "log_rotation_steps"]}
"""Sandbox → the tasks played through ``reset`` and ``step``; on Docker those with more than one sandbox or step."""

DONE = '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'

type Rewards = Mapping[str, float]

HARBORS_NAME = {
    "local": "harbor_gym.sandboxes.local.environment:LocalEnvironment",
    "docker": "docker",
}
"""Sandbox → its name on Harbor's own command line."""


_HARBOR = "from harbor.cli.main import app; app()"
_ABOVE_SANDBOXES = ("gymnasium", "libtmux", "tinker", "tinker-cookbook")
"""Packages that a sandbox can do without."""


def bare_python(folder: Path) -> Path:
    """Make an environment for Harbor's own command, without what only the rest of this package needs."""
    python = python_without(folder, *_ABOVE_SANDBOXES)
    code = "from importlib.util import find_spec as f; print([bool(f(name)) for name in ('harbor_gym', 'gymnasium')])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[True, False]\n"
    return python


def harbor_run(engine: str, jobs_dir: Path, python: Path) -> dict[str, Rewards]:
    """Return each task's rewards for its oracle, as Harbor's own command has them."""
    command = [python, "-c", _HARBOR, "run", "-p", TASKS, "-a", "oracle", "-e", HARBORS_NAME[engine]]
    done = subprocess.run(
        [*command, "-o", jobs_dir, "-n", str(AT_ONCE), "-y", "-q"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(path.read_text()) for path in jobs_dir.glob("*/*/result.json")]
    return {Path(result["task_id"]["path"]).name: result["verifier_result"]["rewards"] for result in results}


async def play_solutions(engine: str) -> dict[str, Rewards]:
    """Return each task's rewards after its solution was run through ``reset`` and ``step``."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def play(name: str) -> Rewards:
        async with slots:
            return await play_solution(TASKS / name, engine)

    async with asyncio.TaskGroup() as group:
        plays = {name: group.create_task(play(name)) for name in PLAYED[engine]}
    return {name: play.result() for name, play in plays.items()}


async def play_solution(task_dir: Path, engine: str) -> Rewards:
    """Type the solution of each step into the terminal; return the episode's rewards, combined as Harbor combines."""
    steps = [f"steps/{step.name}" for step in Task(task_dir).config.steps or []] or ["."]
    config = TerminalEnvConfig(task_dir=task_dir, sandbox=engine, confirm_task_complete=False)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        is_over, info = False, EpisodeInfo(turn=0, metrics={})
        for step in steps:
            assert not is_over
            solution = base64.b64encode((task_dir / step / "solution" / "solve.sh").read_bytes()).decode()
            await env.step([(f"base64 -d <<< {solution} > /tmp/solve.sh && bash /tmp/solve.sh\n", 30.0)])
            _, reward, is_over, info = await env.step(
                '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'
            )
            assert is_over or reward == 0.0
        assert is_over
        return info.get("rewards", {}) if len(steps) == 1 else {"reward": info.get("episode_reward", -1.0)}


def checked(engine: str) -> dict[str, float]:
    """Return each task's reward for its oracle, as our own command has it; everything else must be right too."""
    command = [sys.executable, "-m", "harbor_gym", "check", TASKS, "--env", engine, "--repeat", "1"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    rows = json.loads(done.stdout)
    assert done.returncode == 0, [row["reason"] for row in rows]
    forged = {row["task"]: (row["pristine"] or row)["forged"] for row in rows}
    assert forged == dict.fromkeys(NAMES, 0.0)
    assert [row["nop"] for row in rows] == [[0.0]] * len(rows)
    return {row["task"]: row["oracle"][0] for row in rows}


@pytest.mark.parametrize(
    "engine", [pytest.param("local", marks=pytest.mark.local), pytest.param("docker", marks=pytest.mark.docker)]
)
async def test_every_task_is_worth_the_same_everywhere(engine: str, tmp_path: Path) -> None:
    require_engine(engine)
    python = await asyncio.to_thread(bare_python, tmp_path / "environment")
    harbors = await asyncio.to_thread(harbor_run, engine, tmp_path / "jobs", python)
    scalars = {name: rewards["reward"] for name, rewards in harbors.items()}
    assert scalars == dict.fromkeys(NAMES, 1.0)
    for name, rewards in (await play_solutions(engine)).items():
        is_multi_step = (TASKS / name / "steps").is_dir()
        assert rewards == ({"reward": scalars[name]} if is_multi_step else harbors[name]), name
    if engine == "local":
        assert await asyncio.to_thread(checked, engine) == scalars
