"""Docker, for real: tasks are graded, sandboxes stop at once, nothing is left behind."""

import asyncio
import json
import shlex
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths

from harbor_gym import AsyncTerminalGymEnv, EndReason, TerminalEnvConfig
from harbor_gym._runtime.owners import owner_label
from harbor_gym.errors import SandboxError, SandboxStartError, SandboxTimeoutError, TaskError
from harbor_gym.sandboxes import environment_config
from harbor_gym.sandboxes.docker.network import SHARED_NETWORK
from harbor_gym.sandboxes.images.docker_images import MADE_LABEL
from harbor_gym.sandboxes.labels import IMAGE_LABEL, OWNER_LABEL
from tests.helpers.bases import provide
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT
from tests.helpers.tasks import BASE, DONE, UNDONE, write_task
from tests.unit.house.test_cli import run

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def docker_engine() -> None:
    require_engine("docker")
    script = ROOT / ".ci" / "docker_base.sh"
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


def test_good_bad_and_broken_tasks_are_distinguished(tmp_path: Path, name: str) -> None:
    write_task(tmp_path / f"{name}-bad-build", dockerfile=f"FROM {BASE}\nRUN echo no such luck && false\n")
    write_task(tmp_path / f"{name}-good")
    write_task(tmp_path / f"{name}-mute", test_sh="#!/bin/bash\ntrue\n")
    done = run("check", tmp_path, "--env", "docker", "--repeat", "1", "--no-forge", "--json")
    assert done.returncode == 1, done
    rows = json.loads(done.stdout)
    assert [(row["task"], row["oracle"], row["nop"], row["verdict"]) for row in rows] == [
        (f"{name}-bad-build", [], [], "error"),
        (f"{name}-good", [1.0], [0.0], "ok"),
        (f"{name}-mute", [], [], "error"),
    ]
    assert "no such luck" in rows[0]["error"]
    assert "reward.txt" in rows[2]["error"]
    assert leftovers(name) == []


def test_a_base_that_docker_receives_has_a_label_and_an_image_of_its_own_stays() -> None:
    require_engine("local")
    image = "debian:bookworm-harbor-gym-test"
    made = asyncio.run(provide(image, docker=True))
    try:
        assert made.endswith("which is not the real image")
        inspect = [
            "docker",
            "image",
            "inspect",
            "--format",
            '{{index .Config.Labels "' + MADE_LABEL + '"}} {{.Id}}',
            image,
        ]
        inspected = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout
        assert inspected.startswith("mmdebstrap ")
        assert asyncio.run(provide(image, docker=True)) == f"{image}: Docker has it"
        assert subprocess.run(inspect, capture_output=True, text=True, check=True).stdout == inspected
    finally:
        subprocess.run(["docker", "image", "rm", image], check=True, capture_output=True)


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


def make_sandbox(
    task_dir: Path, name: str, *, users: Sequence[Mapping[str, Any]] = (), **options: Any
) -> BaseEnvironment:
    """Make a sandbox as a trial makes the one for a task's verifier: with no overlay of the configuration's."""
    paths = TrialPaths(task_dir.parent / "trial")
    paths.mkdir()
    logs = {"type": "bind", "source": str(paths.verifier_dir.resolve()), "target": "/logs/verifier"}
    return EnvironmentFactory.create_environment_from_config(
        environment_config("docker").model_copy(update={"extra_docker_compose": []}),
        environment_dir=task_dir / "environment",
        environment_name=name,
        session_id=name,
        trial_paths=paths,
        task_env_config=Task(task_dir).config.environment.model_copy(update={"memory_mb": 700, "cpus": 1}),
        mounts=[logs, *users],
        persistent_env={"GIVEN": "two\nlines"},
        **options,
    )


@asynccontextmanager
async def started(task_dir: Path, name: str, **options: Any) -> AsyncGenerator[BaseEnvironment]:
    environment = make_sandbox(task_dir, name, **options)
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


async def test_a_tasks_gpus_are_asked_of_docker(tmp_path: Path, name: str) -> None:
    """Without a GPU here Docker makes the container, and refuses to start it."""
    sandbox = make_sandbox(write_task(tmp_path / name, toml="[environment]\ngpus = 2\n"), name)
    try:
        try:
            await sandbox.start(force_build=False)
        except RuntimeError as exc:
            assert 'could not select device driver "nvidia" with capabilities: [[gpu]]' in str(exc)  # noqa: PT017
        (request,) = (await inspect_main(name))["HostConfig"]["DeviceRequests"]
    finally:
        await sandbox.stop(delete=True)
    assert (request["Driver"], request["Count"], request["Capabilities"]) == ("nvidia", 2, [["gpu"]])
    assert leftovers(name) == []


@pytest.mark.parametrize("compose", [None, OWN_COMPOSE], ids=["dockerfile", "own compose file"])
async def test_the_overlay_and_what_task_and_user_declare_reach_the_container(
    tmp_path: Path, name: str, compose: str | None
) -> None:
    task = write_task(tmp_path / "task")
    if compose is not None:
        (task / "environment" / "docker-compose.yaml").write_text(compose)
    (shared := tmp_path / "shared").mkdir()
    (shared / "data").write_text("given\n")
    users: list[dict[str, Any]] = [
        {"type": "bind", "source": str(shared), "target": "/data", "read_only": True},
        {"type": "bind", "source": str(shared), "target": "/logs/mine"},  # in place of a log folder
    ]
    async with started(task, name, users=users) as environment:
        container = await inspect_main(name)
        assert (container["HostConfig"]["Memory"], container["HostConfig"]["NanoCpus"]) == (700 << 20, 10**9)
        assert container["Config"]["Cmd"][-1] == "sleep infinity"
        assert "GIVEN=two\nlines" in container["Config"]["Env"]
        assert container["HostConfig"]["Init"] is True
        assert container["Config"]["StopTimeout"] == 1
        assert container["Config"]["Labels"][OWNER_LABEL] == owner_label()
        own = SHARED_NETWORK.name() if compose is None else f"{name}_default"
        assert list(container["NetworkSettings"]["Networks"]) == [own]
        mine = f"label={OWNER_LABEL}={owner_label()}"
        networks = (await docker("network", "ls", "--filter", mine, "--format", "{{.Name}}")).split()
        assert set(networks) | {SHARED_NETWORK.name()} == {own, SHARED_NETWORK.name()}
        assert len((await docker("ps", "--quiet", "--filter", mine)).split()) == (1 if compose is None else 2)
        first = await environment.exec("cat /proc/1/comm; echo own=$OWN")
        assert (first.stdout or "").split() == ["docker-init", "own=" if compose is None else "own=1"]
        told = await environment.exec(
            "exec 2>&1; cat /data/data && ! touch /data/x && echo back >/logs/mine/back", user="root"
        )
        assert (told.return_code, told.stdout) == (0, "given\ntouch: cannot touch '/data/x': Read-only file system\n")
        await nothing_of_this_machine_is_read(environment, tmp_path)
    assert (shared / "back").read_text() == "back\n"
    assert leftovers(name) == []
    left = (await docker("network", "ls", "--filter", mine, "--format", "{{.Name}}")).split()
    assert set(left) <= {SHARED_NETWORK.name()}, "more than what goes with the process"


async def nothing_of_this_machine_is_read(environment: BaseEnvironment, scratch: Path) -> None:
    """Plant links where a trial reads: in a log folder, and in one that is downloaded."""
    (scratch / "secret").write_text("hunter2")
    bait = f"ln -s {scratch}/secret reward.txt && mknod disk b 8 0 && echo 1 >x"
    assert (await environment.exec(bait, cwd="/logs/verifier", user="root")).return_code == 0
    logs = environment.trial_paths.verifier_dir
    assert not environment.capabilities.mounted
    assert list(logs.iterdir()) == []
    await environment.download_dir("/logs/verifier", logs)
    assert [path.name for path in logs.iterdir()] == ["x"]
    with pytest.raises(SandboxError, match="Could not find"):
        await environment.download_file("/logs/verifier/reward.txt", scratch / "read")
    assert (await environment.exec("echo other >/root/real && ln -s /root/real /root/link")).return_code == 0
    await environment.download_file("/root/link", scratch / "followed")
    assert (scratch / "followed").read_text() == "other\n"


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


NETWORK_USER = """
import asyncio, multiprocessing, subprocess, sys
from harbor_gym.sandboxes.docker.network import SHARED_NETWORK
def use():
    asyncio.run(SHARED_NETWORK.make())
    subprocess.run(["docker", "network", "inspect", "--format", "{{.Name}}", SHARED_NETWORK.name()], check=True)
if sys.argv[1] == "worker":
    worker = multiprocessing.get_context("fork").Process(target=use)
    worker.start()
    worker.join()
else:
    use()
    if sys.argv[1] == "error":
        raise SystemExit("on purpose")
"""


@pytest.mark.parametrize("way", ["return", "error", "worker"])
def test_the_shared_network_goes_when_its_process_ends(way: str) -> None:
    done = subprocess.run([sys.executable, "-c", NETWORK_USER, way], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("harbor-gym-"), done
    shown = ["docker", "network", "inspect", done.stdout.strip()]
    assert subprocess.run(shown, capture_output=True, check=False).returncode == 1


async def test_what_others_removed_between_two_starts_is_made_again(tmp_path: Path, name: str) -> None:
    task = write_task(tmp_path / "task", dockerfile=f"FROM {BASE}\nRUN echo {name} >/name\n")
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        task = task.rename(tmp_path / str(number) / "task")
        async with started(task, f"{name}-{number}") as environment:
            assert (await environment.exec("cat /name")).stdout == f"{name}\n"
            image = (await inspect_main(f"{name}-{number}"))["Config"]["Image"]
        await docker("network", "rm", SHARED_NETWORK.name())
        await docker("image", "rm", image)
    assert leftovers(name) == []


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


async def test_what_a_container_makes_of_its_files_stays_bounded(tmp_path: Path, name: str) -> None:
    """The real client's archives: no program of the container packs them, and none is read in this process."""
    make = (
        "mkdir -p /srv/out/deep /srv/out/cache; cd /srv/out; echo x > file; echo x > cache/big; ln file deep/hard\n"
        "ln -s ../file deep/link; ln -s ../../../etc out; mkfifo pipe; truncate -s 3M holes; mkdir new; touch new/a\n"
        "touch new/\"$(printf 'odd\\nname\\377')\" new/\"$(printf 'l%.0s' $(seq 200))\"\n"
        "mkdir /srv/wide; truncate -s 1T /srv/wide/sparse\n"
        "ln -s / /srv/root; ln -s root /srv/again; ln -s out /srv/beside\n"
        "mkdir /srv/many; cd /srv/many; seq 20000 | xargs touch\n"
        "for p in tar gzip find rm mkdir cat; do ln -sf /bin/false $(command -v $p); done"
    )
    none = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
    options = {"network_policy": none, "phase_network_policies": [none]}
    async with started(write_task(tmp_path / "task"), name, **options) as environment:
        assert (await inspect_main(name))["HostConfig"]["NetworkMode"] == "none"
        assert (await environment.exec(make, user="root")).return_code == 0
        await environment.download_dir("/srv/out", tmp_path / "out")
        found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
        odd = {"new/odd\nname\udcff", f"new/{'l' * 200}"}
        files = {"cache/big", "file", "deep/hard", "deep/link", "holes", "new/a"}
        assert found == {"cache", "deep", "new", *files, *odd}
        assert (tmp_path / "out" / "deep" / "hard").read_text() == "x\n"
        assert (tmp_path / "out" / "holes").stat().st_size == 3 << 20
        await environment.download_dir_with_exclusions(
            source_dir="/srv/out", target_dir=tmp_path / "some", exclude=["cache", "new/*"]
        )
        assert not (tmp_path / "some" / "cache").exists()
        assert sorted(path.name for path in (tmp_path / "some").iterdir()) == ["deep", "file", "holes", "new"]
        await environment.download_dir_filtered(source_dir="/srv/out", target_dir=tmp_path / "few", include=["*big"])
        assert [str(path.relative_to(tmp_path / "few")) for path in (tmp_path / "few").rglob("big")] == ["cache/big"]
        await environment.download_dir("/srv/many", tmp_path / "many")
        assert len(list((tmp_path / "many").iterdir())) == 20_000
        for link in ("root", "again", "root/srv"):
            with pytest.raises(SandboxError, match="a link leads to a directory that contains the link"):
                await environment.download_dir(f"/srv/{link}", tmp_path / link)
            assert not (tmp_path / link / "etc").exists()
        await environment.download_dir("/srv/beside", tmp_path / "beside")
        assert (tmp_path / "beside" / "file").read_text() == "x\n"
        with pytest.raises(SandboxError, match=r"'sparse', 1099511627776 bytes, .*larger than"):
            await environment.download_dir("/srv/wide", tmp_path / "wide")
        with pytest.raises(SandboxError, match=r"1099511627776 bytes, .*larger than"):
            await environment.download_file("/srv/wide/sparse", tmp_path / "sparse")
        assert not (tmp_path / "sparse").exists()
        with (tmp_path / "large").open("wb") as large:
            large.truncate(1 << 40)
        for upload in (environment.upload_file(tmp_path / "large", "/x"), environment.upload_dir(tmp_path, "/y")):
            with pytest.raises(SandboxError, match=r"'large', 1099511627776 bytes, .*larger than"):
                await upload


async def test_a_prebuilt_image_that_is_not_available_names_the_dockerfile_which_an_option_builds(
    tmp_path: Path, name: str
) -> None:
    toml = '[environment]\ndocker_image = "registry.invalid/nothing:1"\n'
    task = write_task(tmp_path / "task", toml=toml, dockerfile=f"FROM {BASE}\nRUN echo {name} >/name\n")
    with pytest.raises(SandboxStartError, match=r"nothing:1' is not available.*environment/Dockerfile can be built"):
        async with started(task, name):
            pass
    (tmp_path / "trial").rename(tmp_path / "refused")
    async with started(task, name, build_dockerfile=True):
        assert (await inspect_main(name))["Config"]["Image"].startswith("hb__")
    assert leftovers(name) == []


async def test_an_unhealthy_image_is_the_tasks_fault(tmp_path: Path, name: str) -> None:
    lines = 'SHELL ["/bin/bash", "-c"]\nHEALTHCHECK --interval=100ms --retries=2 CMD echo no licence; exit 7\n'
    task = write_task(tmp_path / "task", dockerfile=f"FROM {BASE}\n{lines}")
    shown = r"unhealthy: its HEALTHCHECK \['/bin/bash', '-c', .*failed \d+ times in a row.*status 7: no licence"
    with pytest.raises(TaskError, match=shown):
        async with started(task, name):
            pass
    assert leftovers(name) == []


NOISE = "trap 'echo noise at the end; echo and there >&2' EXIT; echo 7 noise; echo 7 noise >&2; echo 0"


@pytest.mark.parametrize("reward", [1.0, 0.0])
async def test_an_image_whose_shell_prints_before_each_command_is_played_and_graded(
    reward: float, tmp_path: Path
) -> None:
    """BASH_ENV names a file that every bash reads first: no answer of a probe may be taken whole."""
    noisy = f"RUN useradd dev && echo {shlex.quote(NOISE)} >/etc/noise\nENV BASH_ENV=/etc/noise\n"
    dockerfile = f"FROM {BASE}\n{noisy}WORKDIR /srv\n"
    toml = '[agent]\nuser = "root"\n[verifier]\nuser = "dev"\n'
    task = write_task(tmp_path / "task", dockerfile=dockerfile, toml=toml)
    config = TerminalEnvConfig(task_dir=task, sandbox="docker", confirm_task_complete=False)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await env.step([(DONE if reward else UNDONE, 5.0)])
        end = await env.finish()
    assert (end.reward, end.info.get("end_reason"), end.info.get("breakage")) == (reward, EndReason.COMPLETED, None)
