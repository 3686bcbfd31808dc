"""Classification of a failed episode: its kind as one word, whether to mask it, and whether and when to retry it.

==========================  ====================  =========  ======
error                       failure_kind          retryable  masked
==========================  ====================  =========  ======
UsageError                  usage_error           no         no
MissingDependencyError      missing_dependency    no         no
TaskSourceError             task_source           no         no
TaskUnsupportedError        task_unsupported      no         no
TaskError                   task_error            no         no
SandboxThrottledError       sandbox_throttled     yes        yes
SandboxStartError           sandbox_start         yes        yes
SandboxMemoryError          sandbox_memory        yes        yes
SandboxLostError            sandbox_lost          yes        yes
SandboxTimeoutError         sandbox_timeout       yes        yes
SandboxError                sandbox_error         yes        yes
TerminalStartError          terminal_start        yes        yes
TerminalError               terminal_error        yes        yes
VerifierOutOfMemoryError    verifier_memory       yes        yes
VerifierError               verifier_error        yes        yes
ContextOverflowError        context_overflow      yes        yes
BudgetSpentError            budget_spent          yes        yes
SamplerError                sampler_error         yes        yes
ForkDivergedError           fork_diverged         yes        yes
AgentFailedError            agent_failed          yes        yes
FindingError                finding               no         no
UnexpectedError             unexpected            yes        yes
any other                   unexpected            no         no
==========================  ====================  =========  ======

*Retryable*: a fresh sandbox may succeed; the failure says nothing about the policy. *Masked*: if the episode is not run
again, its tokens must not be trained on and its reward counts in no mean and no baseline. An error that is neither ends
the run: no retry repairs a task or a bug, and an adapter must not skip it batch after batch.

An exception that is not of this package, between the policy's first action and the reward, is an ``UnexpectedError``:
what the policy left may have caused it, so that it loses one episode, with its traceback in the log. The eighth in a
row, without a reward between them, is raised as it is and ends the run.

Between the end of the policy's work and the reward, a failure that the policy could cause is the policy's: the episode
ends as ``sandbox_broken`` with reward 0 and the reason in ``info["breakage"]``, and raises nothing. First the sandbox
is repaired: the workdir, Harbor's log directories, ``/tests`` and ``/etc/resolv.conf`` are made again, FIFOs are
removed from ``/etc``, the accounts are restored, and storage that the policy could not use is set free.
These errors can then still prevent a verdict:

==========================================  ==============================  ====================================
error                                       in the policy's own sandbox     in a separate verifier's
==========================================  ==============================  ====================================
BrokenByPolicyError: the clean-up failed    the policy's                    the policy's: it is cleaned up, too
or timed out
VerifierTimeoutError                        ambiguous                       infrastructure
no reward, and the memory limit killed      ambiguous                       infrastructure (nothing counts there)
HealthcheckError, a later step's setup.sh   ambiguous                       ambiguous: it is the policy's sandbox
RewardFileNotFoundError, -EmptyError,       if broken, the policy's;        open
VerifierOutputParseError                    else open
AddTestsDirError, DownloadVerifierDirError  if broken, the policy's;        infrastructure
                                            else open
a verdict of which the configuration can    open                            open
make no reward (other keys)
SandboxError: a command that can't start,   if broken, the policy's         infrastructure; artifacts that do
the network, the view                                                       not fit there: the policy's
SandboxLostError, SandboxMemoryError        infrastructure, where the       infrastructure
                                            sandbox is not up
EnvironmentStartTimeoutError                none                            infrastructure
any other                                   if broken, the policy's         infrastructure
==========================================  ==============================  ====================================

*If broken*: there is evidence that the policy broke the sandbox. A shell or the tests' interpreter does not run, the
verifier's user can't run a command or write its verdict, or the storage was full. *Ambiguous*: either the policy or the
task may have caused it; ``TerminalEnvConfig.ambiguous_failures`` decides, and by default it is the policy's.
*Open*: most verifiers run the policy's programs, which can void the verdict. It is the policy's failure if the same
verifier gives a usable verdict in a sandbox that no policy was in, else the task's (VerifierError). That sandbox is
started when the first such case of a task needs it, once a process; if it fails, the failure stays the
infrastructure's. With ``ambiguous_failures = "infrastructure"`` nothing is asked, and all of them are VerifierErrors.
A reward file is read without trust: an ordinary file up to 1 MiB, of finite numbers, with up to 10 000 keys.

What follows a verdict is cleaning up (the sandbox's removal, its network, the files of the trial): a failure of it is
logged, what is left is the reaper's, and the verdict counts.

Harbor grades after most exceptions of an agent. The verdict counts if the exception is an end of the agent itself (a
non-zero exit, its time-out, the model's context or output length, a refusal). After any other recorded exception, of
the trial or of a step, the episode is an ``AgentFailedError``. It is one as well after a non-zero exit whose last
request got no answer or status 429, and on Harbor's server after any non-zero exit within the budgets: the server's
relay refuses requests by itself, and this process never sees them.

What ends while the gateway and the sandbox are well is the policy's, and the verdict counts. An agent that runs in the
sandbox, the tunnel to it and its requests are in the policy's power: after any exit of its program the verdict counts,
unless the gateway itself could not answer its last request, or never answered one. An agent of this process that
raises because its commands fail in a sandbox that is there has lost its terminal or its programs by its policy, and is
graded as after a non-zero exit.

In an episode's loop ``ContextOverflowError`` and ``BudgetSpentError`` are no failures: the episode ends truncated, and
is verified. A subclass of these errors has its base's row. Adapters report ``failure_kind`` under their framework's
name for it.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass

from harbor_gym import errors
from harbor_gym.errors import HarborGymError, SandboxThrottledError, UnexpectedError, UsageError, printable

_FIRST_PAUSE_SEC, _LONGEST_PAUSE_SEC = 1.0, 60.0
_UNEXPECTED_IN_A_ROW = 8
_MAX_TEXT = 2000
"""Characters of a foreign exception's text that are kept: it may quote all that a sandbox wrote."""
_LONGEST_ASKED_PAUSE_SEC = 600.0
"""The longest pause that a provider may ask for; a longer one is cut to this."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """A row of the table."""

    failure_kind: str
    """One word, fit for a metric's name."""

    is_retryable: bool
    """Whether the episode may be run again in a fresh sandbox."""

    is_masked: bool
    """Whether an episode that is not run again is left out of training instead of ending the run."""


_UNEXPECTED = Failure("unexpected", is_retryable=False, is_masked=False)

_KINDS: dict[type[HarborGymError], str] = {
    errors.UsageError: "usage_error",
    errors.MissingDependencyError: "missing_dependency",
    errors.TaskSourceError: "task_source",
    errors.TaskUnsupportedError: "task_unsupported",
    errors.TaskError: "task_error",
    errors.SandboxThrottledError: "sandbox_throttled",
    errors.SandboxStartError: "sandbox_start",
    errors.SandboxMemoryError: "sandbox_memory",
    errors.SandboxLostError: "sandbox_lost",
    errors.SandboxTimeoutError: "sandbox_timeout",
    errors.SandboxError: "sandbox_error",
    errors.TerminalStartError: "terminal_start",
    errors.TerminalError: "terminal_error",
    errors.VerifierOutOfMemoryError: "verifier_memory",
    errors.VerifierError: "verifier_error",
    errors.ContextOverflowError: "context_overflow",
    errors.BudgetSpentError: "budget_spent",
    errors.SamplerError: "sampler_error",
    errors.ForkDivergedError: "fork_diverged",
    errors.AgentFailedError: "agent_failed",
    errors.FindingError: "finding",
    errors.UnexpectedError: _UNEXPECTED.failure_kind,
}

FAILURE_KINDS: tuple[str, ...] = tuple(_KINDS.values())
"""Every ``failure_kind``."""


def classify(error: BaseException) -> Failure:
    """Return the row of the table for an error.

    Args:
        error: An exception that an episode raised, or ``Rollout.error``.
    """
    for kind in type(error).__mro__:
        if (word := _KINDS.get(kind)) is not None:
            passes = isinstance(error, HarborGymError) and error.is_infrastructure
            return Failure(word, is_retryable=passes, is_masked=passes)
    return _UNEXPECTED


def error_name(error: BaseException) -> str:
    """Return the name of an error's class, or of its nearest base in the table.

    Args:
        error: An exception that an episode raised.
    """
    kinds = type(error).__mro__
    return next((kind for kind in kinds if kind in _KINDS), kinds[0]).__name__


def describe(error: BaseException) -> str:
    """Return ``NAME: TEXT`` of an error; for the name see :func:`error_name`."""
    return f"{error_name(error)}: {error}"


def pause_sec(error: BaseException, attempt: int) -> float:
    """Return how long to wait before an episode runs again, in seconds.

    Only throttling is waited for: a broken sandbox predicts nothing about the next one. A throttled start waits as long
    as the provider asks, up to ten minutes; by default it waits a second, doubled each time up to a minute.

    Args:
        error: The error that ended the attempt.
        attempt: The attempt's number, from 0.
    """
    if not isinstance(error, SandboxThrottledError):
        return 0.0
    if error.retry_after_sec is not None:
        return min(error.retry_after_sec, _LONGEST_ASKED_PAUSE_SEC)
    return min(_FIRST_PAUSE_SEC * 2.0 ** min(attempt, 32), _LONGEST_PAUSE_SEC)


class _Unexpected:
    """This process's unexpected exceptions since its last reward."""

    in_a_row = 0


def note_reward() -> None:
    """Note that an episode of this process got its reward; see :func:`losing_one_episode`."""
    _Unexpected.in_a_row = 0


@contextlib.contextmanager
def losing_one_episode(name: str, has_begun: Callable[[], bool] = lambda: True) -> Generator[None]:
    """Turn an exception of the block that is not of this package into an error that loses one episode only.

    For what happens between the policy's first action and the reward, in which values that the policy left are read.

    Args:
        name: The episode's, in the log.
        has_begun: Returns whether the policy has acted by now; before that, exceptions are raised as they are.

    Raises:
        UnexpectedError: The block raised such an exception, which the log has with its traceback.
        Exception: As it is, the eighth in a row without a reward in this process (:func:`note_reward`).
    """
    try:
        yield
    except HarborGymError:
        raise
    except Exception as exc:  # the boundary of an episode
        if not has_begun():
            raise
        _Unexpected.in_a_row += 1
        if _Unexpected.in_a_row >= _UNEXPECTED_IN_A_ROW:
            raise
        summary = f"{type(exc).__name__}: {printable(str(exc)[:_MAX_TEXT])}"
        logger.exception("%s is lost by an exception that is not of this package: %s", name, summary)
        raise UnexpectedError(f"an exception that is not of this package ended {name}: {summary}") from exc


class RetryBudget:
    """The retries that are left to one episode, or shared by a group.

    Args:
        max_retries: Retries altogether; 0 allows none.
        warns: Whether to log a lost episode as a warning, instead of as information.

    Raises:
        UsageError: ``max_retries`` is negative.
    """

    def __init__(self, max_retries: int, *, warns: bool = True) -> None:
        if max_retries < 0:
            raise UsageError(f"max_retries must be at least 0, got {max_retries}")
        self._left, self._lost_level = max_retries, logging.WARNING if warns else logging.INFO

    async def run[T](self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the first successful attempt's result; raise the error that no retry may follow."""
        for number in itertools.count():
            try:
                return await attempt()
            except HarborGymError as exc:
                if not classify(exc).is_retryable or not await self.allows(exc, number):
                    raise
        raise AssertionError("there is no end to the attempts' numbers")

    async def allows(self, error: Exception, attempt: int, name: str = "an episode") -> bool:
        """Return whether an episode may run again; if so, wait for the pause of :func:`pause_sec` first.

        Args:
            error: The error that ended the attempt; the caller has checked that it is retryable.
            attempt: The attempt's number, from 0.
            name: The episode's name in log lines.
        """
        summary = describe(error)
        if self._left == 0:
            logger.log(self._lost_level, "%s was lost: %s", name, summary)
            return False
        self._left -= 1
        pause = pause_sec(error, attempt)
        when = f" in {pause:.3g} s" if pause else ""
        logger.info("%s was lost and runs again in a fresh sandbox%s: %s", name, when, summary)
        await asyncio.sleep(pause)
        return True
