"""Fixtures of the terminal's tests."""

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.terminal_environments import LocalSandbox, Transport, running_container, start_local


@pytest.fixture
async def sandbox(tmp_path: Path, nothing_left: None) -> AsyncGenerator[LocalSandbox]:
    require_engine("local")
    sandbox = await start_local(tmp_path / "environment")
    yield sandbox
    await sandbox.stop(delete=True)


@pytest.fixture(params=["portable", "persistent"])
def transport(request: pytest.FixtureRequest) -> Transport:
    return request.param


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_container(tmp_path_factory.mktemp("image")) as name:
        yield name
