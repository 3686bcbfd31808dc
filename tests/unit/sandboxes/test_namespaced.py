"""The refusals of sandboxes on this machine's kernel before anything starts."""

from pathlib import Path

import pytest

from harbor_gym.errors import TaskError, UsageError
from harbor_gym.sandboxes.apptainer.environment import ApptainerEnvironment
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.sandboxes.local import DOCKERFILE, make

pytestmark = pytest.mark.parametrize("kind", [ApptainerEnvironment, LocalEnvironment])


def test_a_relative_working_directory_is_refused(kind: type[ApptainerEnvironment | LocalEnvironment]) -> None:
    with pytest.raises(UsageError, match="workdir: 'app' is no absolute path"):
        kind(workdir="app")


@pytest.mark.parametrize("name", ["cpus", "memory_mb", "storage_mb"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_of_nothing_is_refused_and_is_not_the_default(
    kind: type[ApptainerEnvironment | LocalEnvironment], tmp_path: Path, name: str, value: int
) -> None:
    least = "0.01" if name == "cpus" else "1"
    with pytest.raises(TaskError, match=f"{name} = {value}: must be at least {least};"):
        make(kind, tmp_path, DOCKERFILE, config={name: value})
