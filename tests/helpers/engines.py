"""Find the engines of this machine, and skip or fail tests when one is missing."""

import asyncio
import functools
import importlib.util
import os
import shutil
import subprocess
from typing import NoReturn

import pytest

from harbor_gym.embedded.models import cached_model
from harbor_gym.errors import MissingDependencyError, SandboxError
from harbor_gym.sandboxes.apptainer.programs import require_all
from harbor_gym.sandboxes.compose.reader import compose_program
from harbor_gym.sandboxes.local import criu
from tests.helpers.paths import ROOT

_UNPACKED = tuple(ROOT / "build/engines" / place for place in ("apptainer/bin", "criu/usr/sbin", "registry/usr/bin"))
_HOW_TO_ENABLE = {
    "browser": "install Chromium (`make engines` gets it; apt-get install chromium)",
    "docker": "install Docker with Compose v2 and start the daemon (`make engines` does both on Debian)",
    "local": "run as root on Linux with slirp4netns, buildah, runc, mmdebstrap, tmux, ip (`make engines` gets them)",
    "compose": "run as root with what `local` needs and Compose 2, without Docker (`make engines` gets both)",
    "apptainer": "install apptainer with squashfuse, and open /dev/fuse (`make engines-apptainer` does it on Debian)",
    "criu": "run as root with CRIU 4.2 or later (`make engines-criu` unpacks it on Debian; see `harbor-gym doctor`)",
    "registry": "install docker-registry (`make engines-registry` unpacks it on Debian)",
    "server": "install the embedded training server (`make setup`)",
    "nemo_gym": "it has an environment of its own: `.ci/nemo_gym/test.sh` makes it and runs its tests",
    "tinker": 'pip install "harbor-gym[tinker]"',
    "pretrained": "fetch the model once (`harbor-gym server fetch smollm2-135m`)",
    "prime_rl": "it has a checkout and an environment of its own: `.ci/prime_rl/test.sh` makes both and runs its tests",
    "verifiers": "it has an environment of its own: `.ci/environment.sh verifiers` makes it, and "
    "`build/environments/verifiers/bin/python -m pytest -m verifiers` runs its tests",
    "verl": "it has an environment of its own: `.ci/verl/test.sh` makes it and runs its tests",
}

ENGINES = tuple(_HOW_TO_ENABLE)
"""The names of all engines, which are also those of pytest's marks."""


@functools.cache
def has_engine(engine: str) -> bool:
    match engine:
        case "browser":
            return shutil.which("chromium") is not None
        case "docker":
            commands = (["docker", "info"], ["docker", "compose", "version"])
            return shutil.which("docker") is not None and all(
                subprocess.run(command, capture_output=True, check=False).returncode == 0 for command in commands
            )
        case "local":
            tools = ("buildah", "ip", "mmdebstrap", "runc", "slirp4netns", "tmux")
            return os.geteuid() == 0 and all(shutil.which(tool) for tool in tools)
        case "compose":
            return has_engine("local") and compose_program() is not None
        case "apptainer":
            return _runs_apptainer()
        case "criu":
            return _runs_criu()
        case "registry":
            return shutil.which("docker-registry") is not None
        case "server":
            return importlib.util.find_spec("skyrl") is not None and importlib.util.find_spec("peft") is not None
        case "nemo_gym":
            return importlib.util.find_spec("nemo_gym") is not None
        case "pretrained":
            return cached_model("smollm2-135m").is_dir()
        case "tinker":
            return importlib.util.find_spec("tinker_cookbook") is not None
        case "prime_rl":
            return all(importlib.util.find_spec(name) is not None for name in ("prime_rl", "msgspec", "torch"))
        case "verifiers":
            return importlib.util.find_spec("verifiers") is not None
        case "verl":
            return importlib.util.find_spec("verl") is not None
        case _:
            raise ValueError(f"unknown engine {engine!r}; known: {', '.join(_HOW_TO_ENABLE)}")


def agents_path() -> str:
    """Return a PATH on which agents are found, and the Node that runs most of them."""
    return f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{ROOT / 'build/agents/bin'}"


def find_agent(program: str) -> str:
    """Return the path of an agent's program; skip the calling test without it, or fail it when that is required."""
    places = agents_path()
    if (path := shutil.which(program, path=places)) is not None:
        return path
    return _miss("agents", f"{program} is not on the PATH: install it, or all of them with `.ci/engines.sh agents`")


def _runs_apptainer() -> bool:
    try:
        require_all()
    except MissingDependencyError:
        return False
    return shutil.which("buildah") is not None


def _runs_criu() -> bool:
    try:
        asyncio.run(criu.found())
    except SandboxError:
        return False
    return True


def use_unpacked_engines() -> None:
    """Add the programs that `make engines` unpacked to the search path, after those of the machine."""
    known = os.environ["PATH"].split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys([*known, *map(str, _UNPACKED)]))


def require_engine(engine: str) -> None:
    """Skip the calling test when ``engine`` is missing; fail it when HARBOR_GYM_REQUIRE names the engine."""
    if has_engine(engine):
        return
    _miss(engine, f"{engine} is not available here: {_HOW_TO_ENABLE[engine]}")


def _miss(engine: str, message: str) -> NoReturn:
    if engine in os.environ.get("HARBOR_GYM_REQUIRE", "").split(","):
        pytest.fail(message)
    pytest.skip(message)
