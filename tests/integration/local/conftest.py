"""Fixtures of the local sandbox's tests."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.sandboxes.local import make_sandbox, running


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[LocalEnvironment]:
    """A running sandbox."""
    async with running(make_sandbox(tmp_path / "sandbox")) as started:
        yield started


@pytest.fixture
def two_processors() -> None:
    """Skip a test on a machine of one processor."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs a machine with two processors")
