"""Docker, for real: tasks are graded, sandboxes stop at once, nothing is left behind."""

import asyncio
import json
import subprocess
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths

from harbor_gym.errors import SandboxTimeoutError
from harbor_gym.owners import owner_label
from harbor_gym.sandboxes import environment_config
from harbor_gym.sandboxes.docker_engine import IMAGE_LABEL, OWNER_LABEL, SHARED_NETWORK
from tests.engines import require_engine
from tests.tasks import BASE, write_task
from tests.test_cli import run

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def docker_engine() -> None:
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
            [
                "docker",
                *listing,
                "--filter",
                f"name={name}",
                "--format",
                "{{.Name" + ("s}}" if "ps" in listing else "}}"),
            ],
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
async def started(task_dir: Path, name: str, **policies: Any) -> AsyncGenerator[BaseEnvironment]:
    """Start a sandbox as a trial starts the one for a task's verifier: with no overlay of the configuration's."""
    paths = TrialPaths(task_dir.parent / "trial")
    paths.mkdir()
    environment = EnvironmentFactory.create_environment_from_config(
        environment_config("docker").model_copy(update={"extra_docker_compose": []}),
        environment_dir=task_dir / "environment",
        environment_name=name,
        session_id=name,
        trial_paths=paths,
        task_env_config=Task(task_dir).config.environment,
        **policies,
    )
    try:
        await environment.start(force_build=False)
        yield environment
    finally:
        await environment.stop(delete=True)


async def docker(*words: str) -> str:
    return await asyncio.to_thread(subprocess.check_output, ["docker", *words], text=True)


async def inspect_main(name: str) -> dict[str, Any]:
    (found,) = json.loads(await docker("inspect", f"{name}-main-1"))
    return found


@pytest.mark.parametrize("compose", [None, OWN_COMPOSE], ids=["dockerfile", "own compose file"])
async def test_the_overlay_reaches_the_container(tmp_path: Path, name: str, compose: str | None) -> None:
    task = write_task(tmp_path / "task")
    if compose is not None:
        (task / "environment" / "docker-compose.yaml").write_text(compose)
    async with started(task, name) as environment:
        container = await inspect_main(name)
        assert container["HostConfig"]["Init"] is True
        assert container["Config"]["StopTimeout"] == 1
        assert container["Config"]["Labels"][OWNER_LABEL] == owner_label()
        own = SHARED_NETWORK.name() if compose is None else f"{name}_default"
        assert list(container["NetworkSettings"]["Networks"]) == [own]
        mine = f"label={OWNER_LABEL}={owner_label()}"
        assert (await docker("network", "ls", "--filter", mine, "--format", "{{.Name}}")).split() == [own]
        assert len((await docker("ps", "--quiet", "--filter", mine)).split()) == (1 if compose is None else 2)
        first = await environment.exec("cat /proc/1/comm; echo own=$OWN")
        assert (first.stdout or "").split() == ["docker-init", "own=" if compose is None else "own=1"]
    assert leftovers(name) == []
    assert await docker("network", "ls", "--quiet", "--filter", mine) == ""


async def test_sandboxes_share_a_network_in_which_they_do_not_meet_and_an_image(tmp_path: Path, name: str) -> None:
    task = write_task(tmp_path / "task", dockerfile=f"FROM {BASE}\nRUN echo {name} >/name\n")
    (tmp_path / "other").mkdir()
    other = task.rename(tmp_path / "other" / "task")
    async with started(other, f"{name}-1"):
        first = await inspect_main(f"{name}-1")
        task = write_task(tmp_path / "task", dockerfile=f"FROM {BASE}\nRUN echo {name} >/name\n")
        async with started(task, f"{name}-2"):
            second = await inspect_main(f"{name}-2")
        (network,) = json.loads(await docker("network", "inspect", SHARED_NETWORK.name()))
    assert first["Image"] == second["Image"]
    assert list(first["NetworkSettings"]["Networks"]) == list(second["NetworkSettings"]["Networks"])
    assert network["Options"] == {"com.docker.network.bridge.enable_icc": "false"}
    assert leftovers(name) == []
    kept = await docker("images", "--quiet", "--filter", f"label={IMAGE_LABEL}={name}-1")
    assert kept.strip() in first["Image"]
    await docker("image", "rm", first["Config"]["Image"])


async def test_a_network_is_taken_away_and_given_back(tmp_path: Path, name: str) -> None:
    public, none = (NetworkPolicy(network_mode=mode) for mode in (NetworkMode.PUBLIC, NetworkMode.NO_NETWORK))
    links = "ls /sys/class/net | grep -cv lo"
    async with started(
        write_task(tmp_path / "task"), name, network_policy=none, phase_network_policies=[public]
    ) as environment:
        seen = [(await environment.exec(links)).stdout]
        for policy in (public, none):
            await environment.set_network_policy(policy)
            seen.append((await environment.exec(links)).stdout)
    assert [(text or "").strip() for text in seen] == ["0", "1", "0"]


async def test_a_task_without_network_has_none(tmp_path: Path, name: str) -> None:
    none = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
    async with started(write_task(tmp_path / "task"), name, network_policy=none, phase_network_policies=[none]):
        assert (await inspect_main(name))["HostConfig"]["NetworkMode"] == "none"


async def test_what_can_not_be_removed_is_named(tmp_path: Path, name: str) -> None:
    task = write_task(tmp_path / "task")
    (task / "environment" / "docker-compose.yaml").write_text(OWN_COMPOSE)
    with (
        pytest.warns(ResourceWarning, match="could not be removed"),
        pytest.raises(SandboxTimeoutError, match=r"network [0-9a-f]+: .*harbor-gym reap"),
    ):
        async with started(task, name):
            # A guest that is not the project's own keeps the network in use.
            await docker(
                "run",
                "--detach",
                "--init",
                "--network",
                f"{name}_default",
                "--name",
                f"{name}-guest",
                BASE,
                "sleep",
                "99",
            )
    assert leftovers(name) == [f"{name}-guest", f"{name}_default"]
    await docker("rm", "--force", f"{name}-guest")
    await docker("network", "rm", f"{name}_default")
