"""Apptainer sandboxes for tests, made without a trial around them."""

from pathlib import Path
from typing import Any

from harbor_gym.sandboxes.apptainer.environment import ApptainerEnvironment
from tests.helpers.sandboxes.local import DOCKERFILE, make


def make_sandbox(directory: Path, *, dockerfile: str | None = DOCKERFILE, **options: Any) -> ApptainerEnvironment:
    """Make an Apptainer sandbox, as :func:`tests.helpers.sandboxes.local.make` does."""
    return make(ApptainerEnvironment, directory, dockerfile, **options)
