"""``harbor-gym sif build --push`` to a real registry that asks for a password, and sandboxes from its images."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.errors import MissingDependencyError, SandboxStartError
from harbor_gym.sandboxes.apptainer.options import default_image_dir
from tests.helpers.patience import PATIENCE_SEC, wait_until
from tests.helpers.recipe_runs import run_here
from tests.helpers.registries.image_registry import CREDENTIALS, PASSWORD, USER, ImageRegistry, image_registry
from tests.helpers.sandboxes.apptainer import make_sandbox
from tests.helpers.sandboxes.local import output, running
from tests.helpers.tasks import BASE, DONE, write_task

pytestmark = [pytest.mark.apptainer, pytest.mark.registry, pytest.mark.usefixtures("nothing_left")]

BUILDERS = ("buildah", "mmdebstrap", "docker")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageRegistry]:
    """A registry with a password that Apptainer does not have, at first."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    with image_registry(tmp_path / "registry", needs_password=True) as registry:
        yield registry


def unique_task(path: Path, *, base: str = BASE, text: str = "COPY Dockerfile /srv/\n") -> Path:
    """Write a task whose image nobody has made before."""
    return write_task(path, dockerfile=f"FROM {base}\nENV WHERE={uuid.uuid4()}\nWORKDIR /srv\n{text}")


def without_builders(folder: Path) -> str:
    """Return a PATH with all the programs of this one's but those that build images."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if program.name not in BUILDERS and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return str(folder)


def manifest(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "manifest.json").read_text())["images"]


async def test_what_one_machine_pushes_another_runs_without_a_builder(
    registry: ImageRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, built = tmp_path / "tasks", tmp_path / "built"
    unique_task(tasks / "first")
    unique_task(tasks / "second", base="scratch")
    place = f"oras://{registry.address}/{USER}"
    done = await asyncio.to_thread(run_here, "sif", "build", tasks, "--output", built, "--push", place, **CREDENTIALS)
    assert done.returncode == 0, done.stderr
    entries = manifest(built)
    tags = {f"{place}/harbor-gym:{tag}" for tag in registry.tags(f"{USER}/harbor-gym")}
    assert {entry["pushed"] for entry in entries.values()} == tags
    assert len(tags) == 2

    puts = registry.requests("PUT")
    assert puts
    again = await asyncio.to_thread(run_here, "sif", "build", tasks, "--output", built, "--push", place, **CREDENTIALS)
    assert (again.returncode, again.stdout.count(" there ")) == (0, 2)
    assert registry.requests("PUT") == puts

    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", without_builders(tmp_path / "bin"))
    task_dir = tasks / "first"
    config = TerminalEnvConfig(
        task_dir=task_dir, sandbox="apptainer", sandbox_options={"registry": place}, confirm_task_complete=False
    )
    async with AsyncTerminalGymEnv(config) as env:
        with pytest.raises(MissingDependencyError, match=r"UNAUTHORIZED(?s:.*)nothing here can build it"):
            await env.reset()
    for variable, value in CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await env.step([(DONE, 30.0)])
        _, reward, *_ = await env.step('{"analysis": "", "plan": "", "commands": [], "task_complete": true}')
        assert reward == 1
    assert [path.name for path in default_image_dir().glob("*.sif")] == [entries["first"]["file"]]
    assert f"/v2/{USER}/harbor-gym/blobs/sha256:{entries['first']['sha256']}" in registry.requests("GET")


def test_a_refused_password_fails_the_push_and_keeps_the_file(registry: ImageRegistry, tmp_path: Path) -> None:
    task, built = unique_task(tmp_path / "task", base="scratch"), tmp_path / "built"
    arguments = ("sif", "build", task, "--output", built, "--push", f"oras://{registry.address}/{USER}")
    wrong = {**CREDENTIALS, "APPTAINER_DOCKER_PASSWORD": "no-such-word"}
    for variables in ({}, wrong):
        done = run_here(*arguments, **variables)
        assert done.returncode == 1
        assert "can't be pushed" in done.stderr
        assert "401" in done.stderr
        assert "no-such-word" not in done.stdout + done.stderr
        assert manifest(built)["task"]["pushed"] is None
        assert registry.tags(f"{USER}/harbor-gym") == set()
    done = run_here(*arguments, **CREDENTIALS)
    assert (done.returncode, done.stderr.count("can't be pushed")) == (0, 0)
    assert " there " in done.stdout
    assert len(registry.tags(f"{USER}/harbor-gym")) == 1


@pytest.fixture
def build(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of ``sif build`` that a test kills."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "harbor_gym", "sif", "build", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **CREDENTIALS}
    )


def processes_with(words: str) -> list[str]:
    done = subprocess.run(["pgrep", "-f", "-a", words], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_a_run_that_is_killed_while_it_uploads_goes_on_there(
    registry: ImageRegistry, tmp_path: Path, build: list[subprocess.Popen[str]]
) -> None:
    tasks, built, place = tmp_path / "tasks", tmp_path / "built", f"oras://{registry.address}/{USER}"
    for name in ("first", "second"):
        unique_task(tasks / name, base="scratch")
    arguments = (tasks, "--output", built, "--push", place, "--concurrency", "1")
    assert run_here("sif", "build", tasks / "first", *arguments[1:], **CREDENTIALS).returncode == 0
    made = manifest(built)["first"]
    with registry.stalled():
        build.append(start(*arguments))
        # Before that the child of unshare may not have bound itself to its parent yet.
        wait_until(lambda: processes_with(f"^[^ ]*apptainer push .*{place}"))
        build[0].send_signal(signal.SIGKILL)
        build[0].wait()
        wait_until(lambda: not processes_with(f"apptainer push .*{place}"))
    assert manifest(built)["second"]["pushed"] is None
    assert len(registry.tags(f"{USER}/harbor-gym")) == 1

    done = run_here("sif", "build", *arguments, "--json", **CREDENTIALS)
    assert done.returncode == 0, done.stderr
    assert [(item["task"], item["is_new"]) for item in json.loads(done.stdout)] == [("first", False), ("second", False)]
    entries = manifest(built)
    assert entries["first"] == made
    assert entries["second"]["pushed"]
    assert len(registry.tags(f"{USER}/harbor-gym")) == 2
    assert sorted(path.name for path in built.glob(".*")) == []


def test_a_run_that_is_killed_while_it_builds_goes_on_there(tmp_path: Path, build: list[subprocess.Popen[str]]) -> None:
    tasks, built = tmp_path / "tasks", tmp_path / "built"
    unique_task(tasks / "first", base="scratch")
    unique_task(tasks / "second", text="RUN sleep 1\n")
    arguments = (tasks, "--output", built, "--concurrency", "1")
    build.append(start(*arguments))
    stdout = build[0].stdout
    assert stdout is not None
    while not (line := stdout.readline()).startswith("first  built"):
        assert line  # of its progress
    build[0].send_signal(signal.SIGKILL)
    assert "second  built" not in stdout.read()
    file = built / manifest(built)["first"]["file"]
    made = file.stat().st_mtime_ns

    done = run_here("sif", "build", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert [(item["task"], item["is_new"]) for item in json.loads(done.stdout)] == [("first", False), ("second", True)]
    assert file.stat().st_mtime_ns == made
    assert sorted(path.name for path in built.glob(".*")) == []


def test_two_runs_at_once_share_a_manifest(tmp_path: Path, build: list[subprocess.Popen[str]]) -> None:
    built = tmp_path / "built"
    for half in ("left", "right"):
        for number in range(4):
            text = f"COPY Dockerfile /\nENV NUMBER={number}\n"
            write_task(tmp_path / half / f"{half}-{number}", dockerfile=f"FROM scratch\n{text}")
        build.append(start(tmp_path / half, "--output", built))
    for process in build:
        printed, _ = process.communicate(timeout=2 * PATIENCE_SEC)
        assert process.returncode == 0, printed
    assert set(manifest(built)) == {f"{half}-{number}" for half in ("left", "right") for number in range(4)}


def smallest_root(folder: Path) -> Path:
    """Copy this machine's sh with its libraries: a root file system with nothing else."""
    shell = Path("/bin/sh").resolve()
    printed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    for name in ("/bin/sh", *re.findall(r"(/\S+) \(0x", printed)):
        target = folder / name.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, target)
    for name in ("etc", "srv", "tmp"):
        (folder / name).mkdir()
    return folder


def push_layers(registry: ImageRegistry, storage: Path, root: Path, tag: str) -> str:
    """Store an image in layers, as a builder of Docker images does; return its name in the registry."""

    def buildah(*words: str) -> str:
        places = ["--root", str(storage), "--runroot", str(storage / "run"), "--storage-driver", "vfs"]
        return subprocess.run(["buildah", *places, *words], capture_output=True, text=True, check=True).stdout.strip()

    container = buildah("from", "scratch")
    buildah("add", container, str(root), "/")
    buildah("config", "--env", f"WHERE={tag}", "--workingdir", "/srv", container)
    name = f"docker://{registry.address}/{USER}/layers:latest"
    buildah("commit", "--tls-verify=false", "--creds", f"{USER}:{PASSWORD}", container, name)
    shutil.rmtree(storage)
    return name


async def test_a_task_names_its_image_in_a_registry(
    registry: ImageRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = smallest_root(tmp_path / "root")
    name = push_layers(registry, tmp_path / "storage", root, "one")
    config = {"docker_image": name}
    options: dict[str, Any] = {"dockerfile": None, "config": config, "image_cache_dir": tmp_path / "sif"}
    with pytest.raises(SandboxStartError, match=r"layers:latest can't be pulled: (?s:.*)(401|denied|required)"):
        await make_sandbox(tmp_path / "refused", **options).start(force_build=False)
    for variable, value in CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    async with running(make_sandbox(tmp_path / "first", **options)) as sandbox:
        assert await output(sandbox, "echo $WHERE; pwd") == "one\n/srv"
    push_layers(registry, tmp_path / "storage", root, "two")
    async with running(make_sandbox(tmp_path / "kept", **options)) as sandbox:
        assert await output(sandbox, "echo $WHERE") == "one"
    async with running(make_sandbox(tmp_path / "anew", **options, force_pull=True)) as sandbox:
        assert await output(sandbox, "echo $WHERE") == "two"

    # A copy in the cluster's own registry goes first, by the same key; and a SIF file there has a name, too.
    task = write_task(tmp_path / "task", toml=f'[environment]\ndocker_image = "{name}"\n')
    (task / "environment/Dockerfile").unlink()
    own = f"oras://{registry.address}/copies"
    done = await asyncio.to_thread(run_here, "sif", "build", task, "--output", tmp_path / "sif", "--push", own)
    assert done.returncode == 0, done.stderr
    reference = manifest(tmp_path / "sif")["task"]["pushed"]
    layers = len(registry.requests("GET"))
    elsewhere: dict[str, Any] = {**options, "image_cache_dir": tmp_path / "elsewhere"}
    async with running(make_sandbox(tmp_path / "copy", **elsewhere, registry=own)) as sandbox:
        assert await output(sandbox, "echo $WHERE") == "two"
    assert all(path.startswith("/v2/copies/") for path in registry.requests("GET")[layers:] if path != "/v2/")
    named: dict[str, Any] = {**elsewhere, "config": {"docker_image": reference}}
    async with running(make_sandbox(tmp_path / "named", **named)) as sandbox:
        assert await output(sandbox, "echo $WHERE; pwd") == "two\n/srv"
