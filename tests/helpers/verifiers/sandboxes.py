"""Fake sandboxes for episodes in other processes, which a test can look at only through files."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, override

from harbor_gym.testing import FakeEnvironment

ANSWER, BREAKING_ANSWER = "/srv/answer", "broken"


class Traced(FakeEnvironment):
    """Leaves the id of its process in a directory; the verifier writes no reward for one answer.

    Args:
        pids_dir: The directory.
    """

    def __init__(self, *args: Any, pids_dir: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Path(pids_dir, str(os.getpid())).touch()

    @override
    def grade(self) -> Mapping[str, float] | None:
        is_broken = (self.files.text(ANSWER) or "").strip() == BREAKING_ANSWER
        return None if is_broken else super().grade()
