"""The interpreter of the training server: this one if it has SkyRL, else one in a separate environment.

SkyRL's pins conflict with the cookbook's, so no resolver installs both into one environment without overrides.
"""

import contextlib
import hashlib
import importlib.metadata
import shutil
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from harbor_gym._runtime.cache import cache_dir
from harbor_gym._runtime.console.progress import ticking
from harbor_gym._runtime.processes import ask, tool_environment
from harbor_gym.embedded.launcher import SKYRL_VERSION
from harbor_gym.errors import HarborGymError, MissingDependencyError

REQUIREMENTS = "server_requirements.txt"
"""The file with the environment's pinned packages."""

_COMPLETE = ".installed"
_TAIL_LINES = 12
_SIZE = "some GB the first time"


class ServerInstallError(HarborGymError):
    """The environment of the training server could not be made."""


def server_python() -> str:
    """Return the interpreter to start the training server with.

    Raises:
        MissingDependencyError: The training server is not installed.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        if importlib.metadata.version("skyrl") == SKYRL_VERSION and _is_importable("peft"):
            return sys.executable
    if (python := installed_python()) is not None:
        return str(python)
    raise MissingDependencyError(
        "the embedded training server is not installed: run `harbor-gym server install` (once; some GB)"
    )


def installed_python() -> Path | None:
    """Return the interpreter of the server's environment; None if it is not installed with the current pins."""
    folder = environment_dir()
    python = folder / "bin" / "python"
    return python if (folder / _COMPLETE).is_file() and python.exists() else None


def environment_dir() -> Path:
    """Return the directory of the environment for the current pins and Python version, whether it exists or not."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(f"{version}\n{_pins()}".encode()).hexdigest()[:12]
    return cache_dir() / "server" / f"skyrl-{SKYRL_VERSION}-{key}"


def install() -> Path:
    """Install the training server's environment if it is missing, and return its interpreter. Blocks for minutes.

    Packages come from the index that is configured for uv, or for pip if there is no uv.

    Raises:
        ServerInstallError: A step failed; the message has the end of its output.
    """
    if (known := installed_python()) is not None:
        return known
    folder = environment_dir()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv")
    with ticking(f"making {folder}"):
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)] if uv else _venv(folder))
    python = folder / "bin" / "python"
    with (
        resources.as_file(resources.files(__package__).joinpath(REQUIREMENTS)) as pins,
        ticking(f"installing {_count()} pinned packages", _SIZE),
    ):
        install_packages(python, "-r", str(pins))
    with ticking("looking whether the server can start", "Python compiles its packages first, for minutes"):
        _run([str(python), "-P", str(Path(__file__).with_name("launcher.py")), "--verify"])
    (folder / _COMPLETE).touch()
    return python


def install_packages(python: Path, *arguments: str) -> None:
    """Install packages without their dependencies, by uv or else pip, from the index that is configured for it. Blocks.

    Args:
        python: The interpreter that they are for.
        arguments: What to install, as both programs take it.

    Raises:
        ServerInstallError: It failed; the message has the end of the output.
    """
    uv = shutil.which("uv")
    installer = [uv, "pip", "install", "--quiet", "--python", str(python)] if uv else _pip(python)
    _run([*installer, "--no-deps", *arguments])


def remove() -> list[Path]:
    """Remove every environment of the training server; return their directories."""
    found = sorted((cache_dir() / "server").glob("skyrl-*"))
    for folder in found:
        shutil.rmtree(folder)
    return found


def _venv(folder: Path) -> list[str]:
    return [sys.executable, "-m", "venv", str(folder)]


def _pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def _run(command: Sequence[str | None]) -> None:
    environment = tool_environment()
    environment.pop("VIRTUAL_ENV", None)
    # Else each start of the server would compile its imports anew: many container images set it.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    argv = [part for part in command if part is not None]
    done = ask(*argv, timeout_sec=None, environment=environment)
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_TAIL_LINES:])
        raise ServerInstallError(f"{Path(argv[0]).name} ended with exit code {done.returncode}:\n{tail}")


def _pins() -> str:
    return resources.files(__package__).joinpath(REQUIREMENTS).read_text(encoding="utf-8")


def _count() -> int:
    return sum("==" in line for line in _pins().splitlines())


def _is_importable(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None
