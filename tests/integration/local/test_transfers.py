"""Files that go into and out of a local sandbox, as root and as an ordinary user."""

from pathlib import Path

import pytest

from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.hostile.behaviours import Behaviour, expect_all_pass_as_rootless_user
from tests.helpers.hostile.transfer_behaviours import BEHAVIOURS, FOR_ROOT

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
async def test_as_root(sandbox: LocalEnvironment, tmp_path: Path, behaviour: Behaviour) -> None:
    await behaviour(sandbox, tmp_path)


@pytest.mark.slow
async def test_as_a_rootless_user() -> None:
    await expect_all_pass_as_rootless_user("tests.helpers.hostile.transfer_behaviours", len(BEHAVIOURS) - len(FOR_ROOT))
