"""Fixtures of the training's tests."""

import functools
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny_trl
from tests.helpers.engines import require_engine
from tests.helpers.policies.random_policy import write_endless_policy, write_random_policy
from tests.helpers.sandboxes.letters import LETTER
from tests.helpers.sharing import shared_folder


@pytest.fixture(scope="module")
def engines() -> None:
    require_engine("server")
    require_engine("tinker")


@pytest.fixture(scope="session")
def letter_policy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the saved policy of an agent that writes one of four letters; it is made once in a process."""
    resource_tracker.ensure_running()  # TRL spawns its worker, and Python keeps this process until the end

    @functools.cache
    def make(agent: str) -> Path:
        from harbor_gym.adapters.trl import HarborSpec

        folder = tmp_path_factory.mktemp("policy")
        own: dict[str, Any] = tiny_trl.SETTINGS if agent == "terminal" else {"max_turns": 3}
        with HarborSpec(tiny_trl.write_letter_task(folder / "task"), agent=agent, sandbox=LETTER, **own) as spec:
            return tiny_trl.make_letter_policy(spec, folder / "saved")[0]

    return make


@pytest.fixture(scope="session")
def policies(own_temporary_dir: Path) -> Path:
    """A folder with the policies ``random`` and ``endless``.

    One test process makes them for all: the libraries take seconds to import.
    """
    with shared_folder("policies") as shared:
        folder, partial = shared / "made", own_temporary_dir / "policies"
        if not folder.is_dir():
            write_random_policy(partial / "random")
            write_endless_policy(partial / "endless")
            partial.rename(folder)
    return folder
