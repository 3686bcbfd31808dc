"""Training with Prime-RL: check its requirements before the start, and make its command line.

Prime-RL is a git checkout with its own environment (Python 3.12, CUDA), and is not imported. The checks take seconds;
Prime-RL itself would fail after minutes, when its trainer and its inference have loaded the model.
"""

import importlib
import importlib.metadata
import importlib.util
import io
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

from harbor_gym._runtime.files import why_unreadable
from harbor_gym._runtime.processes import ask
from harbor_gym.adapters.verifiers import PLUGIN_ID
from harbor_gym.errors import HarborGymError, MissingDependencyError, TaskError, UsageError

OLDEST_COMMIT = date(2026, 8, 22)
"""Prime-RL must be newer: until then it read a field that verifiers 0.4 removed."""

_LOOK_TIMEOUT_SEC = 30.0

type Source = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    """The subject of the check."""

    found: str
    """The finding, or the problem and its remedy."""

    is_ok: bool = True
    """Whether training can start."""


def check_run(config: Path) -> Iterator[Finding]:
    """Check versions, tasks and sandboxes of a training run, and yield the findings. Starts nothing; blocks.

    Prime-RL itself checks the GPUs before it starts anything.

    Args:
        config: The TOML of Prime-RL's ``rl``.

    Raises:
        UsageError: The file can't be read, or trains on no Harbor tasks.
    """
    settings = read_config(config)
    sources = harbor_sources(settings)
    yield _check("versions", _versions)
    yield _check("Prime-RL", prime_rl_version)
    for split, source in sources:
        name = source.get("name", PLUGIN_ID)
        yield _check(f"tasks of {split} source {name!r}", lambda source=source: _tasks(source))
        yield _check(f"sandbox of {split} source {name!r}", lambda source=source: _sandbox(source))


def command(config: Path, arguments: Sequence[str] = ()) -> list[str]:
    """Return Prime-RL's command line for a configuration.

    Args:
        config: The TOML.
        arguments: Further arguments of ``rl``, such as ``--max-steps 20``.

    Raises:
        MissingDependencyError: There is no ``rl`` next to this Python or on the PATH.
    """
    beside = Path(sys.executable).with_name("rl")
    program = str(beside) if beside.is_file() else shutil.which("rl")
    if program is None:
        raise MissingDependencyError(
            f"Prime-RL's command `rl` is neither beside {sys.executable} nor on the PATH: run this with the Python of "
            "Prime-RL's environment (docs/verifiers.md)"
        )
    return [program, "@", str(config), *arguments]


def read_config(config: Path) -> Mapping[str, Any]:
    """Return the settings of a TOML file.

    Raises:
        UsageError: The file is missing, or is not TOML.
    """
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise UsageError(
            f"{config} does not exist: give a TOML file such as recipes/prime_rl/qwen3_8b_docker.toml"
        ) from exc
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise UsageError(f"{config} can't be read as TOML: {why_unreadable(exc)}: name or repair the file") from exc


def harbor_sources(settings: Mapping[str, Any]) -> list[tuple[str, Source]]:
    """Return the sources with this package's taskset, each with its split.

    Args:
        settings: The settings of Prime-RL's ``rl``.

    Raises:
        UsageError: There is no such training source.
    """
    orchestrator: Mapping[str, Any] = settings.get("orchestrator", {})
    found = [
        (split, cast("Source", source))
        for split in ("train", "eval")
        for source in orchestrator.get(split, {}).get("source", ())
        if source.get("env", {}).get("taskset", {}).get("id") == PLUGIN_ID
    ]
    if not any(split == "train" for split, _ in found):
        raise UsageError(
            f"no [[orchestrator.train.source]] has a taskset of Harbor tasks: write env.taskset.id = {PLUGIN_ID!r}"
        )
    return found


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of a ``.env`` file, without expanding variables in values.

    Raises:
        UsageError: The file can't be read, or a line is not ``NAME=value``.
    """
    from dotenv.parser import parse_stream

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"the environment file {path} can't be read: {why_unreadable(exc)}: name a file of NAME=value lines"
        ) from exc
    variables: dict[str, str] = {}
    for line in parse_stream(io.StringIO(text)):
        if line.error or (line.key is not None and line.value is None):
            raise UsageError(f"{path}, line {line.original.line}: expected NAME=value")
        if line.key is not None:
            variables[line.key] = line.value or ""
    return variables


def _check(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, look())
    except (HarborGymError, ValueError) as exc:
        return Finding(what, str(exc), is_ok=False)


def _versions() -> str:
    try:
        version = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError as exc:
        raise MissingDependencyError('verifiers is not installed: pip install "harbor-gym[verifiers]"') from exc
    if not version.startswith("0.4."):
        raise MissingDependencyError(f"verifiers is {version}, and 0.4 is needed: uv pip install 'verifiers>=0.4,<0.5'")
    return f"verifiers {version}, harbor {importlib.metadata.version('harbor')}"


def prime_rl_version() -> str:
    """Return a description of the Prime-RL that this Python imports.

    Raises:
        MissingDependencyError: Prime-RL is not installed, or its checkout is too old.
    """
    spec = importlib.util.find_spec("prime_rl")
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    if not places:
        raise MissingDependencyError("Prime-RL is not installed for this Python: clone it (docs/verifiers.md)")
    committed = next((day for place in places if (day := _commit_date(place)) is not None), None)
    if committed is None:
        return f"version {importlib.metadata.version('prime-rl')}; no git checkout, so its date is unknown"
    if committed <= OLDEST_COMMIT:
        raise MissingDependencyError(
            f"Prime-RL's checkout is of {committed}, and one newer than {OLDEST_COMMIT} is needed: git pull, and "
            "install it again"
        )
    return f"checkout of {committed}"


def _commit_date(place: Path) -> date | None:
    git = ["git", "-C", str(place), "log", "-1", "--format=%ct"]
    try:
        done = ask(*git, timeout_sec=_LOOK_TIMEOUT_SEC)
        done.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return None
    return datetime.fromtimestamp(int(done.stdout), UTC).date()


def _tasks(source: Source) -> str:
    from harbor_gym.adapters.verifiers import HarborTasksetConfig, HarborTerminalTaskset

    tasks = list(HarborTerminalTaskset(HarborTasksetConfig.model_validate(source["env"]["taskset"])))
    if not tasks:
        raise TaskError("the sources hold no tasks")
    names = ", ".join(task.data.name or "" for task in tasks[:3])
    return f"{len(tasks)}: {names}{', …' if len(tasks) > 3 else ''}"


def _sandbox(source: Source) -> str:
    from harbor_gym.adapters.verifiers import HarborHarnessConfig

    loaders = importlib.import_module("verifiers.v1.utils.loaders")

    env: Any = loaders.resolve_env_config(dict(source["env"]))
    harness = env.agent_harnesses()["agent"]
    if not isinstance(harness, HarborHarnessConfig):
        raise UsageError(f"the harness is {harness.id!r}: write env.agent.harness.id = {PLUGIN_ID!r}")
    harness.preflight()
    return harness.episode().sandbox
