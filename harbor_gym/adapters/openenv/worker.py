"""TRL's rollout worker with a ``stop`` that does not wait for a process that has failed."""

from importlib.util import find_spec
from typing import override

from harbor_gym.errors import MissingDependencyError

if find_spec("trl") is None:
    raise MissingDependencyError('TerminalRolloutWorker needs TRL: pip install "harbor-gym[trl,openenv]"')

from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker

_EXIT_SEC = 30.0
"""Longest wait for the end of a process that reported its failure, in seconds."""


class TerminalRolloutWorker(HarnessRolloutWorker):
    """``HarnessRolloutWorker`` for :class:`HarborTerminalSessionFactory`, with the same arguments.

    TRL's own class (1.16) hangs in ``stop`` once its process has failed: it sets a ``multiprocessing`` event, which
    waits until its waiters wake up, and one of them was in that process. The trainer then never raises the failure.
    """

    @override
    def stop(self) -> None:
        """End the process. Returns at once if it has already ended."""
        process = self._process
        if process is not None and self._failed_event.is_set():
            process.join(_EXIT_SEC)
        if process is not None and not process.is_alive():
            self._process = None
        super().stop()
