"""Imports go one way, frameworks stay in their rooms, and ``import harbor_gym`` stays light."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "harbor_gym"

# A room imports from the floors below its own, and from itself.
FLOORS = (
    {"types", "errors", "ordinary"},
    {"verify_paths"},
    {"config"},
    {
        "cancellation",
        "portal",
        "processes",
        "prompts",
        "cache",
        "owners",
        "pacing",
        "reporting",
        "rewards",
        "shell_text",
        "recording",
        "task_sources",
    },
    {"actions", "terminal", "sandboxes"},
    {"episode", "guarded_turn"},
    {"prepared"},
    {"pool"},
    {"terminal_env", "checking"},
    {"token_env", "testing"},
    {"rollout", "transcripts"},
    {"evaluation"},
    {"tinker", "gymnasium", "adapters"},
    {"embedded", "bench", "doctor"},
    {"cli"},
    {"__main__"},
)

# Who may import what from outside; everything that is not listed is free.
OWNERS = {
    "harbor.trial": {"episode", "checking", "bench"},
    "harbor.agents": {"episode", "actions", "bench", "checking"},
    "gymnasium": {"gymnasium"},
    "tinker": {"tinker", "embedded"},
    "tinker_cookbook": {"tinker", "embedded"},
    "chz": {"tinker"},
    "torch": {"embedded"},
    "jax": {"embedded"},
    "skyrl": {"embedded"},
    "transformers": {"embedded"},
    "matplotlib": {"reporting"},
    "typer": {"cli"},
}

HEAVY = ("litellm", "torch", "jax", "tinker", "tinker_cookbook", "gymnasium", "harbor.agents", "harbor.trial")

FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imported_names(file: Path) -> tuple[str, ...]:
    """Return the dotted name of everything imported, lazily too; ``from a import b`` is ``a.b``."""
    return tuple(_imported_names(file))


def _imported_names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # The supervisor's program runs without the package, and knows its own modules only.
            is_apart = "supervisor" in file.parts
            assert node.level == 0 or is_apart, f"{file}:{node.lineno}: relative import; write the package's name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def floor_of(room: str) -> int:
    floors = [number for number, rooms in enumerate(FLOORS) if room in rooms]
    assert floors, (
        f"harbor_gym/{room} stands on no floor: import from the room itself, or give a new room its floor in {__file__}"
    )
    return floors[0]


def test_every_room_was_found() -> None:
    assert {"types", "episode", "terminal_env", "sandboxes", "cli"} <= {room_of(file) for file in FILES}


def test_rooms_import_downwards_only() -> None:
    upwards: list[str] = []
    for file in FILES:
        room = room_of(file)
        used = {name.split(".")[1] for name in imported_names(file) if name.startswith("harbor_gym.")}
        above = {other for other in used - {room, "__version__"} if floor_of(other) >= floor_of(room)}
        upwards += [f"{file}: {room} (floor {floor_of(room)}) imports {other}" for other in sorted(above)]
    assert not upwards, "what is imported is not below what imports it"


def test_frameworks_are_imported_by_their_owners_only() -> None:
    strangers = [
        f"{file} imports {name}; only {sorted(rooms)} may"
        for file in FILES
        for name in imported_names(file)
        for package, rooms in OWNERS.items()
        if (name == package or name.startswith(f"{package}.")) and room_of(file) not in rooms
    ]
    assert not strangers


@pytest.mark.parametrize("module", ["harbor_gym", "harbor_gym.config", "harbor_gym.sandboxes", "harbor_gym.cli"])
def test_importing_is_light(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
