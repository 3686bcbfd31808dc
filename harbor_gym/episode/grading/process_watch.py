"""Tell the task's own processes in a sandbox from all others, over all phases of an episode, and end the others.

With a phase also its files end: what grading needs is made again.
"""

from dataclasses import replace

from harbor.environments.base import BaseEnvironment

from harbor_gym.episode.grading import cleanup
from harbor_gym.episode.grading.cleanup import Baseline, CleanupResult
from harbor_gym.terminal.session import Leftovers


class ProcessWatch:
    """Stops what the policy and the verifier leave running. One for an episode.

    The task's own is what ran before the first phase. All else ends with the phase in which it was started: what the
    policy or a later step's set-up started before it is graded, what a step's verifier started (or what it found
    planted) before the next step begins.

    Args:
        environment: The sandbox.
    """

    def __init__(self, environment: BaseEnvironment) -> None:
        self._environment = environment
        self._own: Baseline | None = None
        self._before_verifier: Baseline | None = None
        self._keeps_processes = False
        self._is_verified = self._is_graded = False
        self.oom_kills: int | None = None
        """Processes that the memory limit had killed when the last phase began; None where none is reported."""

    async def begin_phase(self) -> None:
        """Take note of a phase that is about to begin; before the first, also of what is the task's own.

        Raises:
            SandboxError: The sandbox does not answer.
        """
        now = await cleanup.take_baseline(self._environment, is_first=self._own is None)
        self._own = self._own or now
        await self.take_room_back()
        self.oom_kills = now.oom_kills

    async def has_others(self) -> bool:
        """Return whether anything runs that is not the task's own.

        Raises:
            SandboxError: The sandbox does not answer.
        """
        now = await cleanup.take_baseline(self._environment)
        return self._own is not None and not now.processes <= self._own.processes

    async def take_room_back(self) -> None:
        """Take back what grading had of storage, as far as it is free: what follows has the policy's own.

        Raises:
            SandboxError: The sandbox does not answer.
        """
        if self._is_graded:
            await cleanup.close_grading(self._environment)

    async def end_phase(self, *, keep_processes: bool, terminal: Leftovers | None) -> CleanupResult:
        """Stop what the policy left running, unless it is to be kept, and make again what grading needs.

        Returns:
            How many processes that were, the memory limit's victims in this phase, and whether the storage was full.

        Raises:
            SandboxError: The sandbox does not answer.
            BrokenByPolicyError: Some could not be killed, or a directory can't be made.
        """
        self._keeps_processes = keep_processes
        if self._own is None:
            return CleanupResult(0, None)
        result = CleanupResult(0, None)
        if not keep_processes:
            stopped = await cleanup.stop_processes(self._environment, self._own, terminal=terminal)
            result = CleanupResult(stopped.processes, _grown(stopped.oom_kills, self.oom_kills))
        self._is_graded = True
        return replace(result, was_full=await cleanup.open_grading(self._environment, self._own))

    async def stop_again(self) -> None:
        """Stop what was started since the end of the phase, unless what the policy started is kept.

        Raises:
            SandboxError: The sandbox does not answer.
            BrokenByPolicyError: Some could not be killed.
        """
        if self._own is not None and not self._keeps_processes:
            await cleanup.stop_processes(self._environment, self._own)

    async def begin_verification(self, *, is_last: bool) -> None:
        """Take note of what must outlive the verifier; after the last one there is nothing to outlive it in.

        Raises:
            SandboxError: The sandbox does not answer.
        """
        self._is_verified = not is_last
        self._before_verifier = self._own
        if self._keeps_processes and not is_last:
            self._before_verifier = await cleanup.take_baseline(self._environment)

    async def end_verification(self) -> None:
        """Stop what the last verifier left running, or what ran because of it. Does nothing when called again.

        Raises:
            SandboxError: The sandbox does not answer.
            BrokenByPolicyError: Some could not be killed.
        """
        if self._is_verified and self._before_verifier is not None:
            self._is_verified = False
            await cleanup.stop_processes(self._environment, self._before_verifier)


def _grown(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
