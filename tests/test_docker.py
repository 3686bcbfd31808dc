"""Docker, for real: tasks are graded, sandboxes stop at once, nothing is left behind."""

import asyncio
import json
import subprocess
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths

from harbor_gym.sandboxes import environment_config
from tests.engines import require_engine
from tests.tasks import BASE, write_task
from tests.test_cli import run

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def docker() -> None:
    require_engine("docker")
    script = Path(__file__).parent.parent / ".ci" / "docker_base.sh"
    subprocess.run([script, BASE], check=True)


@pytest.fixture
def name() -> str:
    """Return a name that no other test's containers have."""
    return f"hgtest-{uuid.uuid4().hex[:8]}"


def leftovers(name: str) -> list[str]:
    """Return the names of containers, networks and volumes that a task of this name has left."""
    found: list[str] = []
    for listing in (["ps", "-a"], ["network", "ls"], ["volume", "ls"]):
        done = subprocess.run(
            ["docker", *listing, "--filter", f"name={name}", "--format", "{{.}}"],
            capture_output=True,
            text=True,
            check=True,
        )
        found += done.stdout.splitlines()
    return found


def test_leftovers_would_be_seen(name: str) -> None:
    subprocess.run(["docker", "network", "create", f"{name}_default"], check=True, capture_output=True)
    try:
        assert len(leftovers(name)) == 1
    finally:
        subprocess.run(["docker", "network", "rm", f"{name}_default"], check=True, capture_output=True)


def test_a_good_task_gives_1_to_its_oracle_and_0_to_nothing(tmp_path: Path, name: str) -> None:
    done = run("check", write_task(tmp_path / name), "--env", "docker", "--json")
    assert done.returncode == 0, done
    (row,) = json.loads(done.stdout)
    assert (row["task"], row["oracle"], row["nop"], row["ok"], row["error"]) == (name, 1.0, 0.0, True, None)
    assert leftovers(name) == []


def test_a_table_tells_good_bad_and_broken_apart(tmp_path: Path, name: str) -> None:
    write_task(tmp_path / f"{name}-bad-build", dockerfile=f"FROM {BASE}\nRUN echo no such luck && false\n")
    write_task(tmp_path / f"{name}-good")
    write_task(tmp_path / f"{name}-mute", test_sh="#!/bin/bash\ntrue\n")
    write_task(tmp_path / f"{name}-solved", dockerfile=f"FROM {BASE}\nRUN mkdir -p /srv && echo done >/srv/answer\n")
    done = run("check", tmp_path, "--env", "docker")
    assert done.returncode == 1, done
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [(row[0], row[1], row[2], row[4]) for row in rows] == [
        (f"{name}-bad-build", "-", "-", "error"),
        (f"{name}-good", "1.0", "0.0", "ok"),
        (f"{name}-mute", "-", "-", "error"),
        (f"{name}-solved", "1.0", "1.0", "FAILED"),
    ]
    assert "no such luck" in done.stderr
    assert "reward.txt" in done.stderr
    assert leftovers(name) == []


def test_the_stand_in_for_a_base_image_says_that_it_is_one(name: str) -> None:
    require_engine("local")
    done = run("base", "--docker", f"{name}:latest")
    try:
        assert done.returncode == 0, done
        assert "not the real image" in done.stderr
        label = '{{index .Config.Labels "harbor_gym.substitute"}}'
        inspected = subprocess.run(
            ["docker", "image", "inspect", "--format", label, name], capture_output=True, text=True, check=True
        )
        assert inspected.stdout == "mmdebstrap\n"
    finally:
        subprocess.run(["docker", "image", "rm", name], check=True, capture_output=True)


OWN_COMPOSE = f"""\
services:
  main:
    environment: {{OWN: "1"}}
  beside:
    image: {BASE}
    command: sleep infinity
    init: true
    stop_grace_period: 1s
"""


@asynccontextmanager
async def started(task_dir: Path, name: str) -> AsyncGenerator[BaseEnvironment]:
    paths = TrialPaths(task_dir.parent / "trial")
    paths.mkdir()
    environment = EnvironmentFactory.create_environment_from_config(
        environment_config("docker"),
        environment_dir=task_dir / "environment",
        environment_name=name,
        session_id=name,
        trial_paths=paths,
        task_env_config=Task(task_dir).config.environment,
    )
    try:
        await environment.start(force_build=False)
        yield environment
    finally:
        await environment.stop(delete=True)


@pytest.mark.parametrize("compose", [None, OWN_COMPOSE], ids=["dockerfile", "own compose file"])
async def test_the_overlay_reaches_the_container(tmp_path: Path, name: str, compose: str | None) -> None:
    task = write_task(tmp_path / "task")
    if compose is not None:
        (task / "environment" / "docker-compose.yaml").write_text(compose)
    async with started(task, name) as environment:
        inspected = await asyncio.to_thread(subprocess.check_output, ["docker", "inspect", f"{name}-main-1"])
        (container,) = json.loads(inspected)
        assert container["HostConfig"]["Init"] is True
        assert container["Config"]["StopTimeout"] == 1
        first = await environment.exec("cat /proc/1/comm; echo own=$OWN")
        assert (first.stdout or "").split() == ["docker-init", "own=" if compose is None else "own=1"]
    assert leftovers(name) == []
