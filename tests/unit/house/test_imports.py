"""Frameworks stay in their adapters, the supervisor imports the standard library only, and ``import harbor_gym`` stays
light. The layers of the package, and their imports of each other, are in .importlinter.
"""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

PACKAGE = ROOT / "harbor_gym"
SUPERVISOR = PACKAGE / "sandboxes" / "supervisor" / "program"
TREES = PACKAGE / "sandboxes" / "archive" / "trees"
"""With the supervisor's folder, the files that run without the package."""

ENGINE = PACKAGE / "embedded" / "engine"
"""The files that the training server's interpreter imports by their path."""

# The modules that may import a package from outside; every package that is not listed is free.
OWNERS = {
    "aiohttp": {"embedded", "gateway", "samplers"},
    "harbor.trial": {"adapters.harbor", "episode", "checking", "gateway"},
    "harbor.agents": {"adapters.harbor", "episode", "formats", "checking"},
    "gymnasium": {"adapters.gymnasium"},
    "tinker": {"adapters.tinker", "embedded"},
    "tinker_cookbook": {"adapters.tinker", "embedded"},
    "chz": {"adapters.tinker"},
    "torch": {"embedded"},
    "trl": {"adapters.trl"},
    "datasets": {"adapters.trl"},
    "verifiers": {"adapters.verifiers"},
    "verl": {"adapters.verl"},
    "ray": {"adapters.skyrl", "cluster"},
    "skyrl": {"adapters.skyrl", "embedded"},
    "skyrl_gym": {"adapters.skyrl"},
    "openenv": {"adapters.openenv"},
    "nemo_gym": {"adapters.nemo_gym"},
    "pandas": {"report"},
    "transformers": {"adapters.trl", "checking", "embedded"},
    "matplotlib": {"report"},
    "typer": {"cli"},
}

HEAVY = ("litellm", "torch", "tinker", "tinker_cookbook", "harbor.agents", "harbor.trial", "gymnasium", "numpy")

FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


def room_of(file: Path) -> str:
    room, *rest = (part.removesuffix(".py") for part in file.relative_to(PACKAGE).parts)
    return f"{room}.{rest[0]}" if room == "adapters" and rest else room


@functools.cache
def imported_names(file: Path) -> tuple[str, ...]:
    """Return the dotted name of everything imported, lazily too; ``from a import b`` is ``a.b``."""
    return tuple(_imported_names(file))


def _imported_names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 1 and file.is_relative_to(ENGINE):
                continue
            is_apart = file.is_relative_to(TREES)
            assert node.level == 0 or is_apart, f"{file}:{node.lineno}: relative import; write the package's name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_room_was_found() -> None:
    assert {"types", "episode", "env", "sandboxes", "cli", "adapters.tinker"} <= {room_of(file) for file in FILES}


def test_the_supervisor_imports_the_standard_library_only() -> None:
    program = [file for folder in (SUPERVISOR, TREES) for file in folder.rglob("*.py")]
    assert len(program) > 20
    own = {"trees"} | {path.stem for path in SUPERVISOR.iterdir()}
    foreign = {
        f"{file} imports {name}"
        for file in program
        for name in imported_names(file)
        if name.split(".")[0] not in own | set(sys.stdlib_module_names) | {"records"}
    }
    assert not foreign


def test_the_training_servers_engine_imports_nothing_of_the_package() -> None:
    assert not {name for file in ENGINE.glob("*.py") for name in imported_names(file) if name.startswith("harbor_gym")}


def test_frameworks_are_imported_by_their_owners_only() -> None:
    strangers = [
        f"{file} imports {name}; only {sorted(rooms)} may"
        for file in FILES
        for name in imported_names(file)
        for package, rooms in OWNERS.items()
        if (name == package or name.startswith(f"{package}.")) and room_of(file) not in rooms
    ]
    assert not strangers


LIGHT = (
    *("harbor_gym", "harbor_gym.config", "harbor_gym.sandboxes"),
    *(
        "harbor_gym.cli.main",
        "harbor_gym.cli.recipes.train",
        "harbor_gym.cli.recipes.evaluate",
        "harbor_gym.adapters.tinker",
    ),
)


@pytest.mark.parametrize("module", LIGHT)
def test_importing_is_light(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sandboxes_load_nothing_of_the_package_that_stands_above_them() -> None:
    classes = ", ".join(f"harbor_gym.sandboxes.{kind}.environment" for kind in ("apptainer", "docker", "local"))
    code = f"import sys, harbor_gym; own = set(sys.modules); import {classes}; print(*(set(sys.modules) - own))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = {name.split(".")[1] for name in done.stdout.split() if name.startswith("harbor_gym.")}
    assert rooms - {"_runtime"} == {"sandboxes"}
    assert not {"gymnasium", "libtmux", "tinker"} & set(done.stdout.split())


# Where the imported package has another name than the installed one.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "pydantic_core": "pydantic",
    "tinker_cookbook": "tinker-cookbook",
    "nemo_gym": "nemo-gym",
    "opentelemetry": "opentelemetry-sdk",
    "skyrl_gym": "skyrl-gym",
}


def distributions(lines: Iterable[str]) -> set[str]:
    """Return the packages that requirement lines declare."""
    return {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in lines}


def imported_distributions(files: Iterable[Path]) -> set[str]:
    """Return the names, as they are declared, of the packages outside the standard library that files import."""
    packages = {name.split(".")[0] for file in files for name in imported_names(file)}
    return {_DISTRIBUTIONS.get(name, name) for name in packages - set(sys.stdlib_module_names)}


def test_what_is_imported_is_declared() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, engine = document["project"], document["dependency-groups"]["engine"]  # which the launcher runs in
    extras = project["optional-dependencies"].values()
    declared = distributions([*project["dependencies"], *engine, *(line for extra in extras for line in extra)])
    apart = [file for file in FILES if file.is_relative_to(SUPERVISOR) or file.is_relative_to(TREES)]
    third_party = imported_distributions(file for file in FILES if file not in apart)
    # With tinker-cookbook; with SkyRL; in a sandbox's own Python; runs the plugin; with transformers; ours;
    # for type checkers, which have it.
    elsewhere = {"chz", "jupyter_client", "litellm", "pytest", "safetensors", "trees", "typing_extensions"}
    assert third_party - declared - elsewhere - {"harbor_gym", "harbor_gym_console"} == set()


def test_a_bound_from_above_has_its_reason_beside_it() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    bounds = [number for number, line in enumerate(lines) if re.search(r'"[\w.\[\],-]+[^"#]*(==|<|!=|~=)[\d*]', line)]
    assert len(bounds) > 10
    bare = [lines[number] for number in bounds if "#" not in lines[number] and not lines[number - 1].startswith("#")]
    assert bare == []


_BROUGHT_ALONG = {
    "openenv": {"fastmcp", "huggingface-hub"},
    "otel": {"opentelemetry-exporter-otlp-proto-http"},
    "skyrl": {"jaxtyping", "loguru", "pybase64", "skyrl-gym", "torchdata"},
    "trackers": {"mlflow", "trackio", "wandb"},
}
"""Declared for a framework: it imports them without requiring them, or bounds them too widely.
One is a part of a namespace. Trackers are imported by the name that the user gives."""


def test_what_is_declared_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    imported = imported_distributions(FILES)
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    unused = {name: distributions(lines) - imported for name, lines in groups.items()}
    assert {name: left for name, left in unused.items() if left} == _BROUGHT_ALONG


def test_no_test_module_imports_a_framework_when_it_is_collected(imported_when_collected: list[str]) -> None:
    assert imported_when_collected == [], "import it in the test, in a fixture, or through a package of lazy names"
