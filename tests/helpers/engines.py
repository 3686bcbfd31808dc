"""Which engines this machine has, and what to do when one is missing."""

import functools
import importlib.util
import os
import shutil
import subprocess

import pytest

_HOW_TO_ENABLE = {
    "browser": "install Chromium (`make engines` gets it; apt-get install chromium)",
    "docker": "install Docker with Compose v2 and start the daemon (`make engines` does both on Debian)",
    "local": "run as root on Linux with slirp4netns, buildah, mmdebstrap, tmux (`make engines` gets them)",
    "server": "install the embedded training server (`make setup`)",
    "tinker": 'pip install "harbor-gym[tinker]"',
}

ENGINES = tuple(_HOW_TO_ENABLE)
"""The names of all engines, which are also those of pytest's marks."""


@functools.cache
def _has(engine: str) -> bool:
    match engine:
        case "browser":
            return shutil.which("chromium") is not None
        case "docker":
            commands = (["docker", "info"], ["docker", "compose", "version"])
            return shutil.which("docker") is not None and all(
                subprocess.run(command, capture_output=True, check=False).returncode == 0 for command in commands
            )
        case "local":
            tools = ("buildah", "mmdebstrap", "slirp4netns", "tmux")
            return os.geteuid() == 0 and all(shutil.which(tool) for tool in tools)
        case "server":
            return importlib.util.find_spec("skyrl") is not None and importlib.util.find_spec("jax") is not None
        case "tinker":
            return importlib.util.find_spec("tinker_cookbook") is not None
        case _:
            raise ValueError(f"unknown engine {engine!r}; known: {', '.join(_HOW_TO_ENABLE)}")


def require_engine(engine: str) -> None:
    """Skip the calling test when ``engine`` is missing; fail it when HARBOR_GYM_REQUIRE names the engine."""
    if _has(engine):
        return
    message = f"{engine} is not available here: {_HOW_TO_ENABLE[engine]}"
    if engine in os.environ.get("HARBOR_GYM_REQUIRE", "").split(","):
        pytest.fail(message)
    pytest.skip(message)
