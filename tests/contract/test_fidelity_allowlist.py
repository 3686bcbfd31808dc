"""Network allowlists on Docker: each phase reaches the hosts that it declares, in an episode and in Harbor's own trial.

Harbor's sidecar decides it: the sandbox runs in its network. Its proxy comes from a registry; tests/egress_sidecar
has routes instead, behind Harbor's own entry point.
"""

import asyncio
import shutil
import subprocess
import uuid
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from harbor.environments.docker import EGRESS_CONTROL_SIDECAR_CONTEXT_PATH
from harbor.environments.docker.docker import DockerEnvironment

from harbor_gym.errors import HarborGymError
from tests.helpers.harbor_trials import graded_in, rewards_of, run_episode, run_trial
from tests.helpers.paths import ROOT
from tests.helpers.tasks import BASE, write_task

pytestmark = [pytest.mark.docker]

LISTED, OTHER = "LISTED", "OTHER"
"""The two sites; a test puts their addresses in place."""

STEPS = {
    "as-the-task": ("", {LISTED}),
    "other-host": (f'[steps.agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["{OTHER}"]\n', {OTHER}),
    "no-network": ('[steps.agent]\nnetwork_mode = "no-network"\n', set[str]()),
    "public": ('[steps.agent]\nnetwork_mode = "public"\n', {LISTED, OTHER}),
}
"""Step → its settings, and the hosts that the policy reaches then. The verifier has the task's own list each time."""


@pytest.fixture
def sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make Harbor build the stand-in, and ask the kernel by an image that is there."""
    forget = vars(DockerEnvironment)["_egress_control_kernel_support"].__func__.cache_clear
    forget()
    context = shutil.copytree(ROOT / "tests" / "helpers" / "egress_sidecar", tmp_path / "sidecar")
    shutil.copy(EGRESS_CONTROL_SIDECAR_CONTEXT_PATH / "entrypoint.sh", context)
    monkeypatch.setattr(DockerEnvironment, "_EGRESS_CONTROL_SIDECAR_CONTEXT_PATH", context)
    monkeypatch.setattr(DockerEnvironment, "_EGRESS_CONTROL_KERNEL_PROBE_IMAGE", BASE)
    yield
    forget()


@pytest.fixture
def addresses() -> Iterator[dict[str, str]]:
    """Two addresses of this machine as containers see it, each the gateway of a network."""
    name = f"harbor-gym-test-{uuid.uuid4().hex[:8]}"
    docker("network", "create", name)
    try:
        yield {site: gateway_of(network) for site, network in ((LISTED, "bridge"), (OTHER, name))}
    finally:
        docker("network", "rm", name)


@pytest.fixture
async def port() -> AsyncGenerator[int]:
    """Where something listens at all of this machine's addresses."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "0.0.0.0")
    async with server:
        yield server.sockets[0].getsockname()[1]


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, check=True, text=True).stdout.strip()


def gateway_of(network: str) -> str:
    """Return where a container's default route leads. Docker does not always report a network's gateway."""
    routes = docker("run", "--rm", "--network", network, BASE, "cat", "/proc/net/route")
    gateways = [row[2] for row in (line.split() for line in routes.splitlines()) if row[1] == "00000000"]
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(gateways[0])))


def list_task(directory: Path) -> Path:
    toml = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["192.0.2.1"]\n'
    return write_task(directory, toml=toml)


@pytest.mark.usefixtures("sidecar")
async def test_a_list_without_the_probes_image_is_refused_with_that_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = "registry.invalid/harbor-gym-test-probe:1"
    monkeypatch.setattr(DockerEnvironment, "_EGRESS_CONTROL_KERNEL_PROBE_IMAGE", image)
    with pytest.raises(HarborGymError, match=rf"network_mode='allowlist' is refused on Docker.*{image} is not here"):
        await run_episode(list_task(tmp_path / "task"), [], sandbox="docker")
    monkeypatch.setattr(DockerEnvironment, "_EGRESS_CONTROL_KERNEL_PROBE_SCRIPT", "exit 1")
    monkeypatch.setattr(DockerEnvironment, "_EGRESS_CONTROL_KERNEL_PROBE_IMAGE", BASE)
    vars(DockerEnvironment)["_egress_control_kernel_support"].__func__.cache_clear()
    with pytest.raises(HarborGymError, match=r"CONFIG_NFT_FIB_INET"):
        await run_episode(list_task(tmp_path / "again"), [], sandbox="docker")


@pytest.mark.usefixtures("sidecar")
async def test_a_list_without_the_sidecars_image_is_refused_with_that_image(tmp_path: Path) -> None:
    recipe = tmp_path / "sidecar" / "Dockerfile"
    recipe.write_text(recipe.read_text().replace(f"FROM {BASE}", "FROM registry.invalid/harbor-gym-test-sidecar:1"))
    with pytest.raises(HarborGymError, match=r"egress sidecar.*registry\.invalid/harbor-gym-test-sidecar:1: get it"):
        await run_episode(list_task(tmp_path / "task"), [], sandbox="docker")


@pytest.mark.usefixtures("sidecar")
async def test_every_phase_reaches_the_hosts_that_it_lists(
    tmp_path: Path, addresses: dict[str, str], port: int
) -> None:
    look = " ".join(
        f"timeout 2 bash -c ': </dev/tcp/{address}/{port}' 2>/dev/null && echo {site};"
        for site, address in addresses.items()
    )
    toml = f'[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["{LISTED}"]\n'
    for step, (settings, _) in STEPS.items():
        toml += f'[[steps]]\nname = "{step}"\n{settings}'
    for site, address in addresses.items():
        toml = toml.replace(site, address)
    counts = ", ".join(
        f'"{who} {site}": $(grep -c {site} /srv/{who})' for who in ("policy", "verifier") for site in addresses
    )
    judge = f"{{ {look} }} > /srv/verifier\ncat > /logs/verifier/reward.json <<END\n{{{counts}}}\nEND\n"
    task_dir = write_task(tmp_path / "lists", toml=toml, test_sh=f"#!/bin/bash\n{judge}")
    for step in STEPS:
        (task_dir / "steps" / step).mkdir(parents=True)
        (task_dir / "steps" / step / "instruction.md").write_text("Look about.\n")
    scripts = [f"{{ {look} }} > /srv/policy"] * len(STEPS)
    async with asyncio.TaskGroup() as group:
        trial = group.create_task(run_trial(task_dir, scripts, sandbox="docker", trials_dir=tmp_path / "trials"))
        episode = group.create_task(run_episode(task_dir, scripts, sandbox="docker", reward_function="sum"))
    ends, _ = episode.result()
    expected = [
        {f"policy {site}": float(site in reached) for site in addresses}
        | {"verifier LISTED": 1.0, "verifier OTHER": 0.0}
        for _, reached in STEPS.values()
    ]
    assert graded_in(ends) == rewards_of(trial.result()) == expected
    assert not docker("ps", "--all", "--quiet", "--filter", "name=lists"), "nothing is left, the sidecar neither"
