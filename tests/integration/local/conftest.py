"""Fixtures of the local sandbox's tests."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor import cgroups
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


@pytest.fixture
def control_groups() -> None:
    """Skip a test where no control groups can be made."""
    if set(cgroups.places()) != set(cgroups.CONTROLLERS):
        pytest.skip("no control groups can be made here: start the container with --privileged --cgroupns=host")
