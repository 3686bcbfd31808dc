"""The machine that figures were measured on, in words: figures without it can't be compared."""

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harbor_gym import __version__


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides how fast a benchmark is."""

    processor: str
    cpus: int
    """Processors that this process may use."""

    memory_gib: float
    system: str
    kernel: str
    python: str
    harbor_gym: str
    harbor: str


def describe_machine() -> Machine:
    """Return what this machine is; what it does not report is empty or 0."""
    from importlib.metadata import version

    return Machine(
        processor=_value(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        memory_gib=round(int(_value(Path("/proc/meminfo"), "MemTotal").split(" ")[0] or 0) / (1 << 20), 1),
        system=platform.system() + "".join(f", {name}" for name in _distribution()),
        kernel=platform.release(),
        python=platform.python_version(),
        harbor_gym=__version__,
        harbor=version("harbor"),
    )


def load() -> float:
    """Return how many processes waited for or used a processor in the last minute, on average."""
    return round(os.getloadavg()[0], 2)


def _value(file: Path, key: str) -> str:
    """Return a key's value in a file of lines ``key : value``; empty where there is none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next(
        (value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == key), ""
    )


def _distribution() -> Iterator[str]:
    try:
        yield platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return
