"""Files that go into and out of a local sandbox, as root and as an ordinary user."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from harbor_gym.sandboxes.images.debian_base import ensure_base_tar
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.hostile.transfer_behaviours import BEHAVIOURS, Behaviour
from tests.helpers.ordinary import ordinary_user, run_as
from tests.helpers.sandboxes.local import make_sandbox, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[LocalEnvironment]:
    """A running sandbox."""
    async with running(make_sandbox(tmp_path / "sandbox")) as made:
        yield made


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
async def test_as_root(sandbox: LocalEnvironment, tmp_path: Path, behaviour: Behaviour) -> None:
    await behaviour(sandbox, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_as_an_ordinary_user() -> None:
    base = await ensure_base_tar()

    def run_all() -> subprocess.CompletedProcess[str]:
        with ordinary_user() as (user, home):
            return run_as(user, home, sys.executable, "-m", "tests.helpers.hostile.transfer_behaviours", base=base)

    done = await asyncio.to_thread(run_all)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told == {"run": len(BEHAVIOURS), "failures": {}}
