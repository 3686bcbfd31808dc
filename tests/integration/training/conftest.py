"""Fixtures of the training's tests."""

import pytest

from tests.helpers.engines import require_engine


@pytest.fixture(scope="module")
def engines() -> None:
    require_engine("server")
    require_engine("tinker")
