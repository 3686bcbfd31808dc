"""Fixtures of the episode's tests."""

from pathlib import Path

import pytest

from harbor_gym.checking import CheckPlan
from harbor_gym.sandboxes import environment_config
from tests.helpers.engines import require_engine


@pytest.fixture
def plan(tmp_path: Path) -> CheckPlan:
    require_engine("local")
    return CheckPlan(environment_config("local"), tmp_path / "trials", repeat=1)
