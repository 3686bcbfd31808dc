"""A hostile root in a local sandbox: root's, an ordinary user's, one without ids of its own, and one of a SIF file."""

import inspect
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor import own_ids
from tests.helpers.engines import require_engine
from tests.helpers.hostile.attacks import BEHAVIOURS, OF_OTHER_PROCESSES
from tests.helpers.hostile.behaviours import Behaviour, expect_all_pass_as_rootless_user
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes import apptainer
from tests.helpers.sandboxes.local import make_sandbox, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


_OF_ROOT = [
    pytest.param(ids, behaviour, id=f"{ids}-{behaviour.__name__}")
    for ids in ("own ids", "shared ids")
    for behaviour in BEHAVIOURS
    if ids == "own ids" or behaviour not in OF_OTHER_PROCESSES
]
_OF_SIF_FILES = [
    pytest.param("sif", behaviour, id=f"sif-{behaviour.__name__}", marks=pytest.mark.apptainer)
    for behaviour in BEHAVIOURS
    if next(iter(inspect.signature(behaviour).parameters)) == "sandbox"  # the others make sandboxes themselves
]


@pytest.fixture
async def sandbox(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[LocalEnvironment]:
    """A sandbox in its policy's hands; the second kind comes of a kernel or a cache without idmapped mounts."""
    make: Callable[..., Any] = make_sandbox
    if request.param == "sif":
        require_engine("apptainer")
        make = apptainer.make_sandbox
    if request.param == "shared ids":
        monkeypatch.setattr(own_ids, "refusal", lambda: "the test refuses")
    async with running(make(tmp_path / "sandbox")) as made:
        await made.clean_up("baseline", {}, timeout_sec=PATIENCE_SEC)
        yield made


@pytest.mark.parametrize(("sandbox", "behaviour"), [*_OF_ROOT, *_OF_SIF_FILES], indirect=["sandbox"])
async def test_as_root(sandbox: LocalEnvironment, tmp_path: Path, behaviour: Behaviour) -> None:
    await behaviour(sandbox, tmp_path)


@pytest.mark.slow
async def test_as_a_rootless_user() -> None:
    await expect_all_pass_as_rootless_user("tests.helpers.hostile.attacks", len(BEHAVIOURS))
