"""Fixtures of the unit tests."""

from pathlib import Path

import pytest

from harbor_gym.testing import write_tiny_task


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Three tasks with an instruction each."""
    for name in ("alpha", "beta", "gamma"):
        task = write_tiny_task(tmp_path / "suite" / name)
        (task / "instruction.md").write_text(f"Do {name}.\n")
    return tmp_path / "suite"
