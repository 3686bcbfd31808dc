"""TRL's rollout worker with an end that does not wait for a process that is gone."""

from importlib.util import find_spec
from typing import override

from harbor_gym.errors import MissingDependencyError

if find_spec("trl") is None:
    raise MissingDependencyError('TerminalRolloutWorker needs TRL: pip install "harbor-gym[trl,openenv]"')

from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker

_EXIT_SEC = 30.0
"""How long a process that reported its failure may take to end."""


class TerminalRolloutWorker(HarnessRolloutWorker):
    """``HarnessRolloutWorker`` for :class:`HarborTerminalSessionFactory`; the same arguments, the same work.

    TRL's own (1.16) hangs in ``stop`` once its process has failed: it sets an event that the process's thread waited
    for, and a ``multiprocessing`` event waits for its waiters to wake up. The trainer then never raises the failure.
    """

    @override
    def stop(self) -> None:
        """End the process. Returns at once if it is gone."""
        process = self._process
        if process is not None and self._failed_event.is_set():
            process.join(_EXIT_SEC)
        if process is not None and not process.is_alive():
            self._process = None
        super().stop()
