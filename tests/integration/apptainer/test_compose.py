"""Services of a Compose file on SIF images: they are as on the local sandbox, and what is their own."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment

from harbor_gym.sandboxes.apptainer import environment
from harbor_gym.sandboxes.apptainer.environment import ApptainerEnvironment
from harbor_gym.sandboxes.apptainer.sif.store import provide_sif
from harbor_gym.sandboxes.images.build import ImageSource
from harbor_gym.sandboxes.images.recipe import PLATFORM
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.compose_projects.failing import FAILING
from tests.helpers.sandboxes.local import make, output, running
from tests.integration.apptainer.test_apptainer_sandbox import GROW
from tests.integration.local import test_compose_as_docker as first
from tests.integration.local import test_more_compose_as_docker as further
from tests.integration.local.test_compose_as_docker import BASE, PUBLIC, write

pytestmark = [pytest.mark.apptainer, pytest.mark.compose, pytest.mark.usefixtures("nothing_left")]

OF_THE_TRIAL = "main is read-only"
"""Comes up, and fails when the trial uploads the tests."""

COMPOSE = first.COMPOSE.replace("CONTAINER", "own-name").replace("PLATFORM", PLATFORM["TARGETPLATFORM"])


def composed(directory: Path, compose: str, **options: Any) -> ApptainerEnvironment:
    """Return a sandbox of a Compose file, not started yet."""
    return make(ApptainerEnvironment, write(directory, compose), None, network="task", **options)


async def seen(sandbox: BaseEnvironment, directory: Path, *, is_first: bool) -> dict[str, Any]:
    """Return what the cases of one of the two projects show of a sandbox."""
    async with running(sandbox):
        return await (first.seen(sandbox, directory) if is_first else further.seen(sandbox, directory))


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "further"])
async def test_services_are_as_on_local(is_first: bool, tmp_path: Path) -> None:
    compose, files = (COMPOSE, first.FILES) if is_first else (further.COMPOSE, further.FILES)
    options: dict[str, Any] = {"network_policy": PUBLIC, "config": {} if is_first else {"env": further.GIVEN}}
    found: dict[str, dict[str, Any]] = {}
    for kind in (LocalEnvironment, ApptainerEnvironment):
        directory = write(tmp_path / kind.type(), compose, files)
        sandbox = make(kind, directory, None, network="task", **options)
        found[kind.type()] = await seen(sandbox, directory, is_first=is_first)
    assert found["apptainer"] == found["local"]


@pytest.mark.slow
async def test_a_project_that_does_not_come_up(tmp_path: Path) -> None:
    for number, (name, project) in enumerate(FAILING.items()):
        if name == OF_THE_TRIAL:
            continue
        sandbox = composed(tmp_path / str(number), project.compose.replace("BASE", BASE), network_policy=PUBLIC)
        with pytest.raises(Exception, match=f"(?s){project.local}") as caught:
            await sandbox.start(force_build=False)
        assert not isinstance(caught.value, TimeoutError), name
        await sandbox.stop(delete=True)


IMAGE = f'FROM {BASE}\nENV SAYS=image\nWORKDIR /srv\nCMD ["sh", "-c", "echo $SAYS >/said; exec sleep 1000"]\n'


async def test_sif_files_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/Dockerfile").write_text(IMAGE)
    stored = await provide_sif(ImageSource(tmp_path / "image"), tmp_path / "sif", build_timeout_sec=200)
    compose = "services: {side: {image: side.sif, environment: {SAYS: service}}}\n"
    sandbox = composed(tmp_path / "task", compose, config={"docker_image": "main.sif"})
    for name in ("main.sif", "side.sif"):
        shutil.copy(stored.image.path, tmp_path / "task/environment" / name)
    async with running(sandbox):
        assert await output(sandbox, "pwd; echo $SAYS; test -e /said || echo idle") == "/srv\nimage\nidle"
        done = await sandbox.service_exec("cat /said; pwd", service="side")
        assert done.stdout == "service\n/srv\n"


SET_UP = """\
services:
  main: {command: ["sh", "-c", "cp /set-up /found; exec sleep 1000"], depends_on: [side]}
  side: {image: debian:bookworm-slim, command: sleep 1000}
"""


async def test_a_set_up_is_mains_and_comes_before_its_command(tmp_path: Path) -> None:
    async with running(composed(tmp_path, SET_UP, setup_command="echo set up >/set-up")) as sandbox:
        assert await output(sandbox, "cat /found") == "set up"
        done = await sandbox.service_exec("ls /set-up", service="side")
        assert done.return_code == 2


@pytest.mark.parametrize("is_watched", [False, True], ids=["control group", "watched"])
async def test_the_memory_of_a_service_has_its_limit(
    is_watched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_watched:
        monkeypatch.setattr(environment, "_has_group", lambda: False)
    compose = "services: {side: {image: debian:bookworm-slim, command: sleep 1000, mem_limit: 200m}}\n"
    async with running(composed(tmp_path, compose)) as sandbox:
        done = await sandbox.service_exec(f"{GROW}; echo status $?", service="side", timeout_sec=60)
        assert done.stdout == "status 137\n"
        assert await output(sandbox, GROW) == "held"


async def test_a_volume_shows_each_service_the_same_owners(tmp_path: Path) -> None:
    compose = """\
services:
  main: {volumes: ["shared:/shared"]}
  side: {image: debian:bookworm-slim, command: sleep 1000, user: "1234:4321", volumes: ["shared:/shared"]}
volumes: {shared: }
"""
    async with running(composed(tmp_path, compose)) as sandbox:
        await output(sandbox, "install -d -o 1234 -g 4321 /shared/own && touch /shared/roots", user="root")
        await sandbox.service_exec("touch /shared/own/made; touch /shared/refused", service="side")
        assert await output(sandbox, "cd /shared && stat -c '%n %u:%g' own/made * && cat /proc/self/uid_map") == (
            "own/made 1234:4321\nown 1234:4321\nroots 0:0\n         0          0 1879048192"
        )


async def test_images_are_pulled_anew_once_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="harbor_gym.sandboxes.images.build")
    service = f'{{build: {{context: conf, dockerfile_inline: "FROM {BASE}"}}, command: sleep 1000}}'
    compose = f"services:\n  one: {service}\n  two: {service}\n"
    for force_pull in (False, True):
        caplog.clear()
        async with running(composed(tmp_path / str(force_pull), compose, force_pull=force_pull)) as sandbox:
            assert (await sandbox.service_exec("echo up", service="two")).stdout == "up\n"
    assert sum("built the image" in record.message for record in caplog.records) == 2
