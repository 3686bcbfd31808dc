"""A ``setup_command`` on Docker: once for many sandboxes, on an image that is the task's in all else."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.errors import SandboxStartError, TaskError, UsageError
from harbor_gym.sandboxes import reaper
from harbor_gym.sandboxes.docker.environment import DockerEnvironment
from harbor_gym.sandboxes.labels import IMAGE_LABEL, OWNER_LABEL, PROJECT_LABEL, RUN_LABEL
from tests.helpers.tasks import BASE, write_task
from tests.integration.docker.test_docker import docker, docker_engine, inspect_main, leftovers, name, started

__all__ = ["docker_engine", "name"]  # fixtures
pytestmark = [pytest.mark.docker, pytest.mark.slow]

DOCKERFILE = f"""\
FROM {BASE}
RUN useradd --create-home somebody
ENV OWN="two words"
WORKDIR /srv/work
USER somebody
"""


@pytest.fixture(autouse=True)
def images_go(name: str) -> Iterator[None]:
    """Remove a test's set-ups."""
    yield
    label = f"label={IMAGE_LABEL}"
    listed = ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", label]
    for line in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split():
        shown = ["docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{IMAGE_LABEL}"}}}}', line]
        if name in subprocess.run(shown, capture_output=True, text=True, check=False).stdout:
            subprocess.run(["docker", "image", "rm", line], capture_output=True, check=False)


def make_task(folder: Path, name: str, dockerfile: str = DOCKERFILE, *, toml: str = "") -> Path:
    """Write a task whose image no other test has."""
    folder.mkdir()
    return write_task(folder / "task", dockerfile=f"{dockerfile}# {name}\n", toml=toml)


async def settings(image: str) -> dict[str, Any]:
    config = json.loads(await docker("image", "inspect", image))[0]["Config"]
    ours = {OWNER_LABEL, RUN_LABEL, PROJECT_LABEL, IMAGE_LABEL}
    labels = {key: text for key, text in (config.pop("Labels") or {}).items() if key not in ours}
    names = ("Entrypoint", "Cmd", "User", "WorkingDir", "Env", "Volumes", "Healthcheck", "ExposedPorts")
    return {"Labels": labels, **{key: config.get(key) or None for key in names}}


async def test_a_failing_dockerfile_is_built_once(tmp_path: Path, name: str) -> None:
    task = make_task(tmp_path / "one", name, f"FROM {BASE}\nRUN cat /proc/sys/kernel/random/uuid; exit 42\n")

    async def failure() -> str:
        with pytest.raises(SandboxStartError, match="does not build") as failed:
            async with started(task, name):
                pass
        return str(failed.value)

    assert await failure() == await failure(), "a second build prints another number"


async def test_many_starts_share_one_set_up_and_the_settings_of_the_image(tmp_path: Path, name: str) -> None:
    command = f"date +%N >>/srv/runs; id -un >/srv/who; pwd >>/srv/who; echo [$GIVEN] >>/srv/who; : {name}"

    async def look(number: int) -> tuple[str | None, str]:
        task = make_task(tmp_path / str(number), name)
        async with started(task, f"{name}-{number}", setup_command=command) as environment:
            assert isinstance(environment, DockerEnvironment)
            assert environment.shares_setup
            seen = await environment.exec(
                "cat /srv/who /srv/runs; id -un; pwd; echo $OWN; [ ! -e /srv/mine ] && echo fresh"
            )
            await environment.exec("touch /srv/mine", user="root")
            return seen.stdout, (await inspect_main(f"{name}-{number}"))["Image"]

    async with started(make_task(tmp_path / "built", name), f"{name}-built"):
        pass  # names here differ, and would be built apart side by side
    async with asyncio.TaskGroup() as group:
        looks = [group.create_task(look(number)) for number in range(3)]
    results = [item.result() for item in looks]
    assert results[1:] == results[:-1]
    text, image = results[0]
    assert text is not None
    before, runs, *after = text.splitlines()[:3], text.splitlines()[3], *text.splitlines()[4:]
    assert (before, after) == (["root", "/srv/work", "[]"], ["somebody", "/srv/work", "two words", "fresh"])
    assert runs.isdecimal()
    shown = json.loads(await docker("image", "inspect", image))[0]
    (tag,) = shown["RepoTags"]
    assert {shown["Config"]["Labels"][key] for key in (OWNER_LABEL, RUN_LABEL, PROJECT_LABEL)} == {""}
    # The built image is its parent, still under the name that Harbor gives it.
    assert await settings(image) == await settings(shown["Parent"])
    assert leftovers(name) == []
    found = [item for item in reaper.find_images() if item.name == tag]
    assert reaper.remove(found) == []
    async with started(make_task(tmp_path / "later", name), f"{name}-later", setup_command=command) as environment:
        again = await environment.exec("cat /srv/runs")
    assert (again.stdout or "").strip() != runs, "it is made again, by a process that knew the image"


@pytest.mark.parametrize(
    "lines",
    ['ENTRYPOINT ["/usr/bin/env", "A=b"]', 'ENTRYPOINT ["env"]\nCMD ["printf", "$HOME \\"quoted\\""]'],
    ids=["entrypoint alone", "entrypoint and command"],
)
async def test_an_entrypoint_and_a_command_are_the_images_own(tmp_path: Path, name: str, lines: str) -> None:
    task = make_task(tmp_path / "one", name, f"FROM {BASE}\n{lines}\n")
    async with started(task, name, setup_command=f": {name}"):
        shown = json.loads(await docker("image", "inspect", (await inspect_main(name))["Image"]))[0]
        assert await settings(shown["Id"]) == await settings(shown["Parent"])
        assert shown["Config"]["Entrypoint"][0].endswith("env")


async def test_a_set_up_that_fails_reports_its_output_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    task = make_task(tmp_path / "one", name)
    with pytest.raises(SandboxStartError, match="setup_command ended with status 3: last words"):
        async with started(task, name, setup_command="echo last words >&2; exit 3"):
            pass
    assert leftovers(name) == []
    with pytest.raises(UsageError, match="setup_command: must not be empty"):
        async with started(make_task(tmp_path / "two", name), name, setup_command=" "):
            pass


async def test_a_workdir_that_the_image_lacks_is_the_tasks_fault_at_each_start(tmp_path: Path, name: str) -> None:
    """Where an image would hold the set-up: ``test_configuration.py``."""
    toml = '[environment]\nworkdir = "/srv/none"\n'
    task = make_task(tmp_path / "one", name, f"{DOCKERFILE}VOLUME /data\n", toml=toml)
    with pytest.raises(TaskError, match="workdir = '/srv/none' is no directory"):
        async with started(task, name, setup_command="touch x"):
            pass
    assert leftovers(name) == []


async def test_a_set_up_that_is_cancelled_leaves_nothing(tmp_path: Path, name: str) -> None:
    async def start() -> None:
        async with started(make_task(tmp_path / "one", name), name, setup_command=f"sleep 1000; : {name}"):
            pass

    starting = asyncio.create_task(start())
    while f"{name}-set-up" not in leftovers(name):
        assert not starting.done()
        await asyncio.sleep(0.1)
    starting.cancel()
    await asyncio.wait((starting,))
    assert starting.cancelled()
    assert leftovers(name) == []


async def test_what_an_image_would_not_hold_is_set_up_at_each_start(tmp_path: Path, name: str) -> None:
    task = make_task(tmp_path / "one", name, f"{DOCKERFILE}VOLUME /data\n")
    async with started(task, name, setup_command="id -un >/data/who") as environment:
        assert isinstance(environment, DockerEnvironment)
        assert not environment.shares_setup
        assert (await environment.exec("cat /data/who")).stdout == "root\n"
