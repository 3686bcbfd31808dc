"""Probable mistakes in a task that Harbor accepts silently."""

import contextlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

_SCRIPTS = ("tests/*.sh", "solution/*.sh", "steps/*/tests/*.sh", "steps/*/solution/*.sh", "steps/*/workdir/*.sh")


def find_oddities(task_dir: Path) -> tuple[str, ...]:
    """Return a line about each table of ``task.toml`` that Harbor does not know, and each script with CRLF line ends.

    Args:
        task_dir: The directory of a well-formed task.
    """
    return (*_unknown_tables(task_dir / "task.toml"), *_windows_scripts(task_dir))


def _unknown_tables(path: Path) -> Iterator[str]:
    from harbor.models.task.config import TaskConfig

    with path.open("rb") as file:
        found = tomllib.load(file)
    known = TaskConfig.model_fields
    tables = [name for name, value in found.items() if isinstance(value, dict) and name not in known]
    if tables:
        names = " and ".join(f"[{name}]" for name in tables)
        yield f"{path}: Harbor reads no {names}: what is there has no effect (notes of your own go below [metadata])"


def _windows_scripts(task_dir: Path) -> Iterator[str]:
    for path in sorted(path for pattern in _SCRIPTS for path in task_dir.glob(pattern)):
        with contextlib.suppress(OSError):
            if b"\r\n" in path.read_bytes():
                yield f"{path} has Windows line ends (CRLF), which a shell takes for parts of its commands: use LF"
