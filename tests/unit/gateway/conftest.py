"""Fixtures of the gateway's and the samplers' tests."""

from collections.abc import AsyncIterator

import pytest

from harbor_gym.samplers import statuses
from tests.helpers.engine_double import EngineDouble, serve


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineDouble]:
    """An engine that samples its prompt reversed, and a client that waits for it hardly at all."""
    monkeypatch.setattr(statuses, "_BACKOFF_SEC", 0.001)
    async with serve(EngineDouble()) as double:
        yield double
