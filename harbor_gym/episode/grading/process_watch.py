"""Tell the task's own processes in a sandbox from all others, over all phases of an episode, and end the others.

After a phase the directories that grading needs are made again.
"""

from dataclasses import replace

from harbor.environments.base import BaseEnvironment

from harbor_gym.episode.grading import cleanup
from harbor_gym.episode.grading.cleanup import Baseline, CleanupResult
from harbor_gym.terminal.session import Leftovers


class ProcessWatch:
    """Stops the processes that the policy and the verifier leave running. One for an episode.

    The task's own processes are those that ran before the first phase. All others end with the phase in which they were
    started: those of the policy or of a later step's set-up before grading, those of a step's verifier (or of programs
    that it found planted) before the next step.

    Args:
        environment: The sandbox.
    """

    def __init__(self, environment: BaseEnvironment) -> None:
        self._environment = environment
        self._own: Baseline | None = None
        self._before_verifier: Baseline | None = None
        self.keeps_processes = False
        """Whether processes of the policy run on after its last phase."""
        self._is_verified = self._is_graded = False
        self.oom_kills: int | None = None
        """Processes that the memory limit had killed when the last phase began; None where none is reported."""

    async def begin_phase(self) -> None:
        """Note the memory limit's count before a phase; before the first one also the task's own processes.

        Raises:
            SandboxError: The sandbox does not answer.
        """
        now = await cleanup.take_baseline(self._environment, is_first=self._own is None)
        self._own = self._own or now
        await self.take_room_back()
        self.oom_kills = now.oom_kills

    async def has_others(self) -> bool:
        """Return whether any process runs that is not the task's own.

        Raises:
            SandboxError: The sandbox does not answer.
        """
        now = await cleanup.take_baseline(self._environment)
        return self._own is not None and not now.processes <= self._own.processes

    async def take_room_back(self) -> None:
        """Reserve the storage of grading again, as far as it is free; what follows uses the policy's share.

        Raises:
            SandboxError: The sandbox does not answer.
        """
        if self._is_graded:
            await cleanup.close_grading(self._environment)

    async def end_phase(self, *, keep_processes: bool, terminal: Leftovers | None) -> CleanupResult:
        """Stop the policy's processes, unless they are kept, and make the directories that grading needs.

        Where nothing but its terminal runs, that is stopped in any case.

        Returns:
            The numbers of stopped and kept processes and of the memory limit's kills, and whether the storage was full.

        Raises:
            SandboxError: The sandbox does not answer.
            BrokenByPolicyError: Some could not be killed, or a directory can't be made.
        """
        if self._own is None:
            self.keeps_processes = keep_processes
            return CleanupResult(0, None)
        stopped = await cleanup.stop_processes(self._environment, self._own, terminal=terminal, keeps=keep_processes)
        self.keeps_processes = stopped.kept > 0
        result = replace(stopped, oom_kills=_grown(stopped.oom_kills, self.oom_kills))
        self._is_graded = True
        return replace(result, was_full=await cleanup.open_grading(self._environment, self._own))

    async def stop_again(self) -> None:
        """Stop processes that were started since the end of the phase, unless the policy's are kept.

        Raises:
            SandboxError: The sandbox does not answer.
            BrokenByPolicyError: Some could not be killed.
        """
        if self._own is not None and not self.keeps_processes:
            await cleanup.stop_processes(self._environment, self._own)

    async def stop_kept(self) -> None:
        """Stop the processes that were kept.

        Raises:
            SandboxError: The sandbox does not answer.
            BrokenByPolicyError: Some could not be killed.
        """
        self.keeps_processes = False
        await self.stop_again()

    async def begin_verification(self, *, is_last: bool) -> None:
        """Note the processes that must outlive the verifier; the last verifier needs none to.

        Raises:
            SandboxError: The sandbox does not answer.
        """
        self._is_verified = not is_last
        self._before_verifier = self._own
        if self.keeps_processes and not is_last:
            self._before_verifier = await cleanup.take_baseline(self._environment)

    async def end_verification(self) -> None:
        """Stop the processes that the last verifier left running. Idempotent.

        Raises:
            SandboxError: The sandbox does not answer.
            BrokenByPolicyError: Some could not be killed.
        """
        if self._is_verified and self._before_verifier is not None:
            self._is_verified = False
            await cleanup.stop_processes(self._environment, self._before_verifier)


def _grown(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
