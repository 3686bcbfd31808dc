"""The channel into Harbor's own Docker environment, by its private names: red when a new Harbor changes them."""

import asyncio
import subprocess
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.docker.docker import DockerEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from harbor_gym.config import TerminalConfig
from harbor_gym.sandboxes import environment_config
from harbor_gym.terminal import open_terminal
from harbor_gym.terminal.transports.attach import docker_engine, docker_labels, enter_argv
from harbor_gym.types import Command
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.terminal_environments import BASE_IMAGE, DOCKERFILE, start_local

pytestmark = [pytest.mark.docker, pytest.mark.slow]

_OWN_PROMPTS = DOCKERFILE + "RUN rm -f /root/.bashrc /home/agent/.bashrc\n"


@pytest.fixture(scope="module")
def base_image() -> None:
    require_engine("docker")
    subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE_IMAGE], check=True)


@pytest.fixture
async def environment(tmp_path: Path, base_image: None, nothing_left: None) -> AsyncGenerator[BaseEnvironment]:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "Dockerfile").write_text(_OWN_PROMPTS)
    paths = TrialPaths(tmp_path / "trial")
    paths.mkdir()
    # A name that Compose does not take as it is.
    created = EnvironmentFactory.create_environment_from_config(
        environment_config("docker"),
        environment_dir=tmp_path / "environment",
        environment_name="terminal",
        session_id=f"HGTest.{uuid.uuid4().hex[:8]}__X",
        trial_paths=paths,
        task_env_config=EnvironmentConfig(env={"GREETING": "hello there"}),
    )
    try:
        await created.start(force_build=False)
        yield created
    finally:
        await created.stop(delete=True)


@pytest.mark.local
async def test_harbors_docker_environment_is_entered_and_has_a_session_like_any_other(
    environment: BaseEnvironment, tmp_path: Path
) -> None:
    await _is_entered(environment)
    await _is_the_same_by_both_transports(environment)
    await _has_the_prompt_of_a_local_sandbox(environment, tmp_path)


async def _is_entered(environment: BaseEnvironment) -> None:
    assert isinstance(environment, DockerEnvironment)
    assert docker_engine(environment) == ["docker"]
    assert sorted(docker_labels(environment)) == ["project", "service"]
    argv = await enter_argv(environment, "id -un; hostname", user="agent")
    assert argv is not None
    entered = (await asyncio.to_thread(subprocess.check_output, argv, text=True)).split()
    hostname = await environment.exec("hostname")
    assert entered == ["agent", (hostname.stdout or "").strip()]


async def _is_the_same_by_both_transports(environment: BaseEnvironment) -> None:
    texts: list[list[str]] = []
    # Without a file vi shows a greeting that changes with the time of day.
    for transport in ("portable", "auto"):
        terminal = await open_terminal(environment, TerminalConfig.model_validate({"transport": transport}))
        turns = [await terminal.run([])]
        turns += [
            await terminal.run([Command(keys, 30.0)])
            for keys in ("whoami; echo $GREETING\n", "vi /etc/issue\n", ":q\n")
        ]
        texts.append([turn.text for turn in turns])
        await terminal.close()
    assert turns[-1].transport == "persistent"
    assert texts[0] == texts[1]
    assert texts[0][:2] == [
        "root@sandbox:/srv#",
        "root@sandbox:/srv# whoami; echo $GREETING\nroot\nhello there\nroot@sandbox:/srv#",
    ]


async def _has_the_prompt_of_a_local_sandbox(environment: BaseEnvironment, tmp_path: Path) -> None:
    require_engine("local")
    local = await start_local(tmp_path / "local", dockerfile=_OWN_PROMPTS)
    texts: list[str] = []
    for sandbox in (environment, local):
        terminal = await open_terminal(sandbox, TerminalConfig())
        texts.append((await terminal.run([Command("cd /var/log\n", 30.0)])).text)
        await terminal.close()
    await local.stop(delete=True)
    assert texts == ["root@sandbox:/srv# cd /var/log\nroot@sandbox:/var/log#"] * 2
