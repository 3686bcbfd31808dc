"""A hostile root in a local sandbox: root's, an ordinary user's, and one without ids of its own."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from harbor_gym.sandboxes.images.debian_base import ensure_base_tar
from harbor_gym.sandboxes.local import own_ids
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.hostile.attacks import BEHAVIOURS, Behaviour
from tests.helpers.ordinary import ordinary_user, run_as
from tests.helpers.sandboxes.local import make_sandbox, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture(params=["own ids", "shared ids"])
async def sandbox(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[LocalEnvironment]:
    """A running sandbox; the second kind is what a kernel or a cache without idmapped mounts gives."""
    if request.param == "shared ids":
        monkeypatch.setattr(own_ids, "refusal", lambda: "the test says so")
    async with running(make_sandbox(tmp_path / "sandbox")) as made:
        yield made


@pytest.mark.timeout(300)
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
async def test_as_root(sandbox: LocalEnvironment, tmp_path: Path, behaviour: Behaviour) -> None:
    await behaviour(sandbox, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_as_an_ordinary_user() -> None:
    base = await ensure_base_tar()

    def run_all() -> subprocess.CompletedProcess[str]:
        with ordinary_user() as (user, home):
            return run_as(user, home, sys.executable, "-m", "tests.helpers.hostile.attacks", base=base)

    done = await asyncio.to_thread(run_all)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told == {"run": len(BEHAVIOURS), "failures": {}}
