"""A hostile root in a local sandbox: root's, an ordinary user's, and one without ids of its own."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from harbor_gym.sandboxes.local import own_ids
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.hostile.attacks import BEHAVIOURS, OF_OTHER_PROCESSES
from tests.helpers.hostile.behaviours import Behaviour, expect_all_pass_as_rootless_user
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.local import make_sandbox, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


CASES = [
    pytest.param(ids, behaviour, id=f"{ids}-{behaviour.__name__}")
    for ids in ("own ids", "shared ids")
    for behaviour in BEHAVIOURS
    if ids == "own ids" or behaviour not in OF_OTHER_PROCESSES
]


@pytest.fixture
async def sandbox(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[LocalEnvironment]:
    """A sandbox in its policy's hands; the second kind comes of a kernel or a cache without idmapped mounts."""
    if request.param == "shared ids":
        monkeypatch.setattr(own_ids, "refusal", lambda: "the test refuses")
    async with running(make_sandbox(tmp_path / "sandbox")) as made:
        await made.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        yield made


@pytest.mark.parametrize(("sandbox", "behaviour"), CASES, indirect=["sandbox"])
async def test_as_root(sandbox: LocalEnvironment, tmp_path: Path, behaviour: Behaviour) -> None:
    await behaviour(sandbox, tmp_path)


@pytest.mark.slow
async def test_as_a_rootless_user() -> None:
    await expect_all_pass_as_rootless_user("tests.helpers.hostile.attacks", len(BEHAVIOURS))
