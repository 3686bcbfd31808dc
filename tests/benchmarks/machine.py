"""The machine that figures were measured on, in words: figures without it can't be compared."""

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass

from harbor_gym import __version__
from harbor_gym._runtime.procfs import PROC, size_bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of a machine that decide how fast a benchmark is."""

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
    """Describe this machine; a property that it does not report is empty or 0."""
    from importlib.metadata import version

    return Machine(
        processor=_model() or platform.processor(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        memory_gib=round((size_bytes("meminfo", "MemTotal") or 0) / (1 << 30), 1),
        system=platform.system() + "".join(f", {name}" for name in _distribution()),
        kernel=platform.release(),
        python=platform.python_version(),
        harbor_gym=__version__,
        harbor=version("harbor"),
    )


def load() -> float:
    """Return how many processes waited for or used a processor in the last minute, on average."""
    return round(os.getloadavg()[0], 2)


def _model() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", (PROC / "cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


def _distribution() -> Iterator[str]:
    try:
        yield platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return
