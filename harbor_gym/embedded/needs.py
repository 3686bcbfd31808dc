"""What ``train --backend local`` needs on this machine, for ``harbor-gym doctor``."""

import importlib.util
from collections.abc import Iterable

from harbor_gym.checking.capacity import free_memory_mb
from harbor_gym.checking.doctor import Finding
from harbor_gym.embedded.server import last_start
from harbor_gym.errors import MissingDependencyError, UsageError

AREA = "train"
"""The findings' area."""

MODULES = ("tinker", "tinker_cookbook", "torch", "transformers")
"""What a training on this machine imports, of the extras ``tinker`` and ``server``."""

MEMORY_MB = 3072
"""Memory in MiB for the server and this process, each 1 GB with the built-in policy, and for a sandbox."""

_EXTRAS = 'pip install "harbor-gym[tinker,server]"'
_SERVER = "harbor-gym server install"


def examine_training() -> Iterable[Finding]:
    """Check what a training on this machine needs beside a sandbox. Starts and imports nothing of it."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    note = f"no {', '.join(missing)}" if missing else "tinker, server"
    yield Finding(AREA, "extras", ok=not missing, note=note, fix=_EXTRAS if missing else "")
    yield _server(f"{_EXTRAS} && {_SERVER}" if missing else _SERVER)
    free = free_memory_mb()
    fix = "" if free >= MEMORY_MB else f"free {MEMORY_MB} MiB, or train with the Tinker service"
    yield Finding(AREA, "memory", ok=not fix, note=f"{free} MiB free", fix=fix)
    try:
        last = last_start()
    except UsageError:
        return  # the cache can't be used, which the server's finding says
    note = f"{last.seconds:.0f} s, at {last.when}" if last else "none yet: compiling its imports takes minutes once"
    yield Finding(AREA, "last start of the server", ok=True, note=note, is_needed=False)


def _server(fix: str) -> Finding:
    from harbor_gym.embedded import interpreter

    try:
        return Finding(AREA, "server", ok=True, note=interpreter.server_python())
    except UsageError as exc:  # of the cache, in which it would lie
        why, _, fix = str(exc).partition(": ")
        return Finding(AREA, "server", ok=False, note=why, fix=fix)
    except MissingDependencyError:
        return Finding(AREA, "server", ok=False, note="not installed", fix=fix)
