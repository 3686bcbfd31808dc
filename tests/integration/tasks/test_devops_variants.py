"""Variants of devops_task: other names, the same faults and the same way to repair them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from tests.helpers.paths import ROOT


def variants(folder: Path, *seeds: int) -> list[Path]:
    """Make the variants of some seeds."""
    argv = [sys.executable, str(ROOT / ".ci/variants.py"), str(folder), *map(str, seeds)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines()]


def test_a_seed_decides_all_names(tmp_path: Path) -> None:
    first, other = variants(tmp_path / "first", 1, 2)
    (again,) = variants(tmp_path / "again", 1)
    assert first.name == again.name != other.name
    files = {path.relative_to(first): path for path in first.rglob("*") if path.is_file()}
    for name, path in files.items():
        assert path.read_bytes() == (again / name).read_bytes()
        assert not re.search(r"\bapp?(ctl)?\b|104[12]", f"{name} {path.read_text(encoding='utf-8')}")
    assert (first / "solution/solve.sh").stat().st_mode & 0o100


@pytest.mark.local
async def test_its_own_solution_solves_it_and_no_other(tmp_path: Path) -> None:
    first, other = variants(tmp_path, 1, 2)
    rewards = []
    for solution in (first, other):
        async with AsyncTerminalGymEnv(TerminalEnvConfig(task_dir=first, sandbox="local")) as env:
            await env.reset()
            await env.exec((solution / "solution/solve.sh").read_text(encoding="utf-8"), timeout_sec=30)
            rewards.append((await env.finish()).reward)
    assert rewards == [1.0, 0.0]
