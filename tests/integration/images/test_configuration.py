"""An image's configuration, and the task's own declarations of it: alike on each kind of sandbox."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import TaskError
from harbor_gym.sandboxes.apptainer.sif.store import provide_sif
from harbor_gym.sandboxes.images.build import ImageSource
from tests.helpers.sandboxes import apptainer, local
from tests.helpers.sandboxes.local import output, running
from tests.helpers.tasks import BASE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

KINDS = [
    pytest.param("local", marks=pytest.mark.local),
    pytest.param("apptainer", marks=pytest.mark.apptainer),
    pytest.param("sif", marks=pytest.mark.apptainer),
]
"""A SIF file of one's own has neither layers nor a record in the cache: all is in it."""

WITH_DOCKER = [*KINDS, pytest.param("docker", marks=pytest.mark.docker)]
_MAKERS: dict[str, Callable[..., BaseEnvironment]] = {"local": local.make_sandbox, "apptainer": apptainer.make_sandbox}


async def write_sif(context: Path, store: Path) -> str:
    """Make a SIF file of a Dockerfile beside it, which goes; return its name. ``store`` keeps it for the next."""
    stored = await provide_sif(ImageSource(context), store, build_timeout_sec=200)
    shutil.copy(stored.image.path, context / "image.sif")
    (context / "Dockerfile").unlink()
    return "image.sif"


async def make_sandbox(kind: str, directory: Path, lines: str) -> BaseEnvironment:
    dockerfile = f"FROM {BASE}\n{lines}"
    if kind in _MAKERS:
        return _MAKERS[kind](directory, dockerfile=dockerfile)
    context = directory / "environment"
    context.mkdir()
    (context / "Dockerfile").write_text(dockerfile)
    return apptainer.make_sandbox(
        directory, dockerfile=None, config={"docker_image": await write_sif(context, directory / "sif")}
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_the_healthcheck_is_awaited_as_the_images_user(kind: str, tmp_path: Path) -> None:
    lines = (
        'SHELL ["/bin/bash", "-c"]\nUSER nobody\nWORKDIR /tmp\nHEALTHCHECK --interval=100ms --retries=50 '
        "CMD id -un >who; pwd >where; date >>tries; [[ $(wc -l <tries) > 2 ]]\n"
    )
    async with running(await make_sandbox(kind, tmp_path, lines)) as sandbox:
        assert await output(sandbox, "cat who where; wc -l <tries") == "nobody\n/tmp\n3"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unhealthy_image_is_the_tasks_fault(kind: str, tmp_path: Path) -> None:
    lines = "HEALTHCHECK --interval=100ms --retries=2 CMD echo no licence; exit 7\n"
    sandbox = await make_sandbox(kind, tmp_path, lines)
    with pytest.raises(TaskError, match=r"unhealthy.*failed 2 times.*status 7: no licence"):
        await sandbox.start(force_build=False)


@pytest.mark.parametrize("kind", KINDS)
async def test_workdirs_volumes_and_user_are_as_docker_makes_them(kind: str, tmp_path: Path) -> None:
    lines = "VOLUME /volume /other\nRUN mkdir /volume && echo x >/volume/x\nUSER nobody\nWORKDIR /a/b\n"
    async with running(await make_sandbox(kind, tmp_path, lines)) as sandbox:
        shown = "id -un; pwd; stat -c %U . .. /other; cat /volume/x"
        assert await output(sandbox, shown) == "nobody\n/a/b\nnobody\nnobody\nroot\nx"


@pytest.mark.parametrize("kind", WITH_DOCKER)
async def test_a_workdir_or_a_user_that_the_image_lacks_is_the_tasks_fault(kind: str, tmp_path: Path) -> None:
    cases: tuple[tuple[str, str, str | None, str], ...] = (
        ("", '[environment]\nworkdir = "/srv/none"\n', None, r"workdir = '/srv/none' is no directory"),
        ("", '[environment]\nworkdir = "/srv/none"\n', "touch x", r"workdir = '/srv/none' is no directory"),
        ("", '[agent]\nuser = "nobody-such"\n', None, r"user = 'nobody-such' has no account"),
        ("USER nobody-such\n", "", None, r"USER nobody-such has no account in the task's image"),
    )
    if kind == "sif":
        cases = cases[1:]  # Harbor copies the environment's directory to the workdir of a prebuilt image, and makes it
    for number, (lines, toml, command, expected) in enumerate(cases):
        task = write_task(tmp_path / str(number), dockerfile=f"FROM {BASE}\n{lines}", toml=toml)
        if kind == "sif":
            name = await write_sif(task / "environment", tmp_path / "sif")
            config = (task / "task.toml").read_text()
            table = f'[environment]\ndocker_image = "{name}"\n'
            is_there = "[environment]\n" in config
            (task / "task.toml").write_text(config.replace("[environment]\n", table) if is_there else config + table)
        sandbox = "apptainer" if kind == "sif" else kind
        settings: dict[str, Any] = {"task_dir": task, "sandbox": sandbox, "setup_command": command}
        with pytest.raises(TaskError, match=expected):
            async with AsyncTerminalGymEnv(TerminalEnvConfig(**settings)) as env:
                await env.reset()
