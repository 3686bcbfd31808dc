"""How many sandboxes a machine holds: by its memory, its container's, and its CPUs, whichever is least."""

import os
from pathlib import Path

import pytest

from harbor_gym._runtime import procfs
from harbor_gym.checking import capacity
from harbor_gym.checking.capacity import sandboxes_at_once
from harbor_gym.errors import UsageError
from tests.unit.house.test_cli import run


def four_cpus(pid: int) -> set[int]:
    return {0, 1, 2, 3}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 4 CPUs with 16 GiB free, whose container has no limit."""
    (tmp_path / "meminfo").write_text("MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n")
    (tmp_path / "v2").write_text("max\n")
    monkeypatch.setattr(procfs, "PROC", tmp_path)
    monkeypatch.setattr(capacity, "_LIMITS", (tmp_path / "v2", tmp_path / "v1"))
    monkeypatch.setattr(os, "sched_getaffinity", four_cpus)
    return tmp_path


def test_memory_or_cpus_whichever_is_less(machine: Path) -> None:
    assert sandboxes_at_once(2048) == 8
    assert sandboxes_at_once(256) == 64
    assert sandboxes_at_once(64) == 64
    assert sandboxes_at_once(1 << 20) == 1, "a machine that holds none can still be tried"


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_a_container_has_no_more_than_its_limit(machine: Path, name: str) -> None:
    (machine / name).write_text(f"{4 << 30}\n")
    assert sandboxes_at_once(2048) == 2
    (machine / name).write_text("9223372036854771712\n")
    assert sandboxes_at_once(2048) == 8


def test_the_command_prints_the_number_alone() -> None:
    done = run("doctor", "--sandboxes", "--memory-mb", "1024")
    assert done.returncode == 0
    assert done.stdout == f"{int(done.stdout)}\n"
    assert run("doctor", "--sandboxes", "--memory-mb", "0").returncode == 2
    with pytest.raises(UsageError, match="at least 1"):
        sandboxes_at_once(0)
