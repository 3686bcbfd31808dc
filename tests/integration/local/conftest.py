"""Fixtures of the local sandbox's tests."""

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
