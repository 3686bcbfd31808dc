"""How several test processes share the tests: by file and engine, so that a module's sandbox or server starts once.

What starts once for all of them is in a folder of theirs.
"""

import contextlib
import fcntl
import os
import tempfile
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_ENGINES = ("docker", "local", "apptainer")
_WHOLE = ("test_terminal_channel.py", "nemo_gym/test_rollouts.py")
"""Files whose engines are not taken apart: side by side, their killed channels and their timing disturb each other, and
NeMo Gym's head server has one port on a machine."""
_APART = ("images/test_as_docker.py", "images/test_sif_as_local.py")
"""Files whose tests share nothing, and take minutes."""
_PARTS = 4
_TRL = ("tests/integration/adapters/trl/", "tests/integration/training/trl/")
_OPENENV = ("tests/integration/adapters/test_openenv_server", "tests/unit/openenv/")
_TOGETHER = (("tests/unit/chat_codecs/",), _OPENENV, ("tests/unit/skyrl/",), _TRL)
"""Beginnings of files that run in one process: each would import a framework for seconds."""


@contextlib.contextmanager
def locked(directory: Path) -> Generator[None]:
    """Wait until no other process has this directory locked."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


@contextlib.contextmanager
def shared_folder(name: str) -> Generator[Path]:
    """Give one test process of a run at a time the folder of this name that all of them share."""
    run = Path(tempfile.gettempdir()).parent  # own_temporary_dir's is in pytest's folder of this process
    shared = (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / name
    shared.mkdir(exist_ok=True)
    with locked(shared):
        yield shared


def group_of(nodeid: str) -> str:
    """Return the name of the group that runs in one process, one test after the other."""
    file, _, name = nodeid.partition("::")
    if together := next((starts for starts in _TOGETHER if file.startswith(starts)), None):
        return together[0]
    if file.endswith(_APART):
        return f"{file} {zlib.crc32(name.encode()) % _PARTS}"
    parameters = name.partition("[")[2]
    engine = next((engine for engine in _ENGINES if engine in parameters), "")
    return file if file.endswith(_WHOLE) else f"{file} {engine}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Share by :func:`group_of`. (xdist's own ``loadgroup`` renames tests, which pytest 9.2 no longer lets it do.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Sharing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Sharing(config, log)
