"""Services of a Compose file on SIF images: they are as on the local sandbox, and what is their own."""

from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment

from harbor_gym.sandboxes.apptainer.environment import ApptainerEnvironment
from harbor_gym.sandboxes.images.recipe import PLATFORM
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.sandboxes.local import make, running
from tests.integration.local import test_compose_as_docker as first
from tests.integration.local import test_more_compose_as_docker as further
from tests.integration.local.test_compose_as_docker import PUBLIC, write

pytestmark = [pytest.mark.apptainer, pytest.mark.compose, pytest.mark.usefixtures("nothing_left")]

COMPOSE = first.COMPOSE.replace("CONTAINER", "own-name").replace("PLATFORM", PLATFORM["TARGETPLATFORM"])


def composed(directory: Path, compose: str, **options: Any) -> ApptainerEnvironment:
    """Return a sandbox of a Compose file, not started yet."""
    return make(ApptainerEnvironment, write(directory, compose), None, network="task", **options)


async def seen(sandbox: BaseEnvironment, directory: Path, *, is_first: bool) -> dict[str, Any]:
    """Return what the cases of one of the two projects show of a sandbox."""
    async with running(sandbox):
        return await (first.seen(sandbox, directory) if is_first else further.seen(sandbox, directory))


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "further"])
async def test_services_are_as_on_local(is_first: bool, tmp_path: Path) -> None:
    compose, files = (COMPOSE, first.FILES) if is_first else (further.COMPOSE, further.FILES)
    options: dict[str, Any] = {"network_policy": PUBLIC, "config": {} if is_first else {"env": further.GIVEN}}
    found: dict[str, dict[str, Any]] = {}
    for kind in (LocalEnvironment, ApptainerEnvironment):
        directory = write(tmp_path / kind.type(), compose, files)
        sandbox = make(kind, directory, None, network="task", **options)
        found[kind.type()] = await seen(sandbox, directory, is_first=is_first)
    assert found["apptainer"] == found["local"]
