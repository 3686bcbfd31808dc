"""Fixtures of the episode's tests."""

import pytest

from harbor_gym.testing.fake import terminal
from tests.helpers.sandboxes.timed_fakes import CLOCK


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the fake's terminals go by the clock of those who work; return their sandbox."""
    monkeypatch.setattr(terminal, "time", CLOCK)
    return "tests.helpers.sandboxes.timed_fakes:Working"
