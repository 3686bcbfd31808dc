"""Abilities beyond Harbor's ``BaseEnvironment`` that a sandbox class may have, as protocols, each with its contract.

A class supports an ability by having its methods; there is nothing to inherit or register. The core asks with
``isinstance``; a method set to None takes an inherited ability away. Every ability is optional: without it the same is
done by plain commands, more slowly, or not at all, as each protocol states. ``harbor-gym check-sandbox`` checks what a
class supports.

========================  ==============================================  ============================================
protocol                  gives                                           without it
========================  ==============================================  ============================================
SupportsExecArgv,         a terminal channel that stays open: a step      one ``exec`` a step (Docker's own class is
SupportsExecPipes         takes milliseconds                              entered by its engine)
SupportsTerminal          a terminal for sandboxes without processes      tmux in the sandbox
SupportsVerifierView      grading in a pristine view                      grading as Harbor does it
SupportsSetUpView         later steps prepared in one                     their set-up runs among the policy's files
SupportsCleanUp           clean-up by no program of the sandbox           the same by a script in it
SupportsIsUp              a lost sandbox distinct from a broken one       a silent sandbox counts as lost
SupportsWrittenPaths      ``harbor-gym check`` proposes verify_paths      no proposal
SupportsSharedSetup       ``info["setup"]`` has ``each_start`` rightly    a class with ``setup_command`` is believed
ReportsLeftBehind         a close that left something behind raises       Harbor's log alone has it
ReportsServices           ``harbor-gym check`` names services            no remark
DeclaresKnownFailures     check-sandbox shows what is known to fail       each failure counts
========================  ==============================================  ============================================
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from harbor_gym.errors import SandboxTimeoutError

if TYPE_CHECKING:
    from harbor.environments.base import ExecResult  # 0.3 s to import, and only its type is needed

    from harbor_gym.config import TerminalConfig


class ExecTimeoutError(SandboxTimeoutError, RuntimeError):
    """A command ran out of time and was killed. A ``RuntimeError`` too, as Harbor's own environments raise."""


class SupportsExec(Protocol):
    """The one method that every sandbox has, and what the core relies on in it."""

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> "ExecResult":
        """Run shell text in the sandbox and wait for its end.

        Args:
            command: Text for ``bash -c`` (``sh -c`` where there is no bash). Any length up to 128 KiB, any UTF-8 but
                NUL; it is never to be split, expanded or trimmed on the way.
            cwd: Absolute directory; None is the image's working directory.
            env: Variables on top of the image's; values may hold commas, quotes and line ends.
            timeout_sec: Whole seconds until the command, with the processes that it started, is killed; None is no
                limit. What was printed until then is lost.
            user: Name or id; None is ``default_user``, and with that None the image's user.

        Returns:
            Exit code, standard output and standard error, decoded with replacement; a code above 128 is a signal's. A
            failing command is a result and no error.

        Raises:
            Exception: The sandbox is gone, refuses, or the time is up. Any class that a provider's client raises: the
                core turns it into a ``SandboxError``.

        Not to be assumed: that a call returns while a background process holds its output; that two calls at once see
        each other's order; that variables, directories or users set in one call are there in the next; that a cancelled
        call has ended in the sandbox when it returns here (it should be killed soon after); that a command that timed
        out may be run again.
        """
        ...


class PipedProcess(Protocol):
    """A running command with streams: one of asyncio's processes, or what a sandbox provides in its place."""

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """Its standard input; closing it is the end of file."""
        ...

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """Its standard output, bytes as they come."""
        ...

    def kill(self) -> None:
        """Kill it with SIGKILL, and what belongs to its process group. Idempotent, also after its end."""
        ...

    async def wait(self) -> int:
        """Wait for its end and return its status; any other than 0 if the sandbox ended."""
        ...


@runtime_checkable
class SupportsExecArgv(Protocol):
    """A sandbox that a process of this machine can enter. One method, and the terminal keeps its channel open."""

    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        """Return an argument vector for a process of this machine that is ``command`` in the sandbox.

        The process has the starter's standard streams, byte for byte and unbuffered; its status is the command's; the
        command ends with it, also when it is killed with SIGKILL, and it ends with the sandbox. Nothing is started by
        this call, and it must not block.

        Args:
            command: Shell text, as for :meth:`SupportsExec.exec`; it may hold line ends.
            user: As for :meth:`SupportsExec.exec`.

        Raises:
            SandboxLostError: The sandbox is not running.

        Not to be assumed: that the process has a terminal; that signals other than SIGKILL reach the command; that it
        sees this machine's environment.
        """
        ...


@runtime_checkable
class SupportsExecPipes(Protocol):
    """A sandbox that starts commands with pipes itself: one process of this machine less. Beside ``exec_argv``."""

    async def exec_pipes(self, command: str, *, user: str | int | None = None) -> PipedProcess:
        """Start ``command`` and return while it runs; the caller ends it and awaits its ``wait``.

        Standard error goes nowhere. The command ends when it is killed and with the sandbox; closing its input ends it
        only if it heeds that.

        Args:
            command: Shell text, as for :meth:`SupportsExec.exec`.
            user: As for :meth:`SupportsExec.exec`.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        ...


@runtime_checkable
class SupportsTerminal(Protocol):
    """A sandbox without real processes that has a terminal of its own, as the fake has."""

    def make_terminal(self, config: "TerminalConfig", *, user: str | int | None) -> Awaitable[Any]:
        """Return a :class:`harbor_gym.terminal.Terminal`; its caller closes it.

        Args:
            config: Pane size, waits and the observation budget.
            user: The shell's user; None is the image's user.

        Raises:
            TerminalStartError: None can be opened.
        """
        ...


@runtime_checkable
class SupportsVerifierView(Protocol):
    """A sandbox that can show its verifier the image as it was, with chosen paths of the policy's files."""

    async def enter_verifier_view(self, verify_paths: Sequence[PurePosixPath]) -> None:
        """Switch every further call of the sandbox to a fresh overlay of the image's layers.

        In it /tests, /tmp and /logs/verifier are the image's, and of the policy's files only these paths exist, each as
        it is: absent where it is absent, or where a link leads to it. Processes and network stay the sandbox's.

        Every command in the view has the rank ``verifier``: no process outside of the view, root's or another user's,
        opens its memory or its files (/proc/PID/mem, root, cwd, fd, environ). A process that leaves the view, or never
        was in it (``exec_argv``), has the rank of what runs outside.

        Args:
            verify_paths: Absolute paths of directories or regular files.

        Raises:
            SandboxError: The view can't be made; nothing is graded then.
        """
        ...

    async def leave_verifier_view(self) -> None:
        """Switch every further call back to the policy's files, and drop the view. Idempotent.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        ...


@runtime_checkable
class SupportsSetUpView(Protocol):
    """A sandbox that can prepare a later step in a pristine view, too. Beside :class:`SupportsVerifierView`."""

    async def enter_set_up_view(self, verify_paths: Sequence[PurePosixPath]) -> None:
        """Switch every further call to a view like the verifier's, in which the default workdir is the sandbox's own.

        A workdir that is missing, or to which a link leads, is the image's, made if it has none.

        Args:
            verify_paths: As for :meth:`SupportsVerifierView.enter_verifier_view`.

        Raises:
            SandboxError: The view can't be made.
        """
        ...

    async def leave_set_up_view(self, *, timeout_sec: float) -> str:
        """Make what was written in the view part of the sandbox's own files, and switch every further call back.

        Files, links, directories and removals, each with owner and mode, in place of what the policy has there:
        nothing is written through its links. /tmp, /tests and /logs/verifier of the view are dropped.

        Args:
            timeout_sec: Seconds after which it is given up.

        Returns:
            Why not all could be written, as where the policy left no room; empty where all was. It is then the
            policy's failure.

        Raises:
            SandboxTimeoutError: The time was up; the policy is held to be the cause.
            SandboxError: It failed.

        Not to be assumed: that what the set-up started sees the policy's files from then on. It stays in the view, with
        what it wrote there, and is reached over the network or in the carried paths.
        """
        ...


@runtime_checkable
class SupportsCleanUp(Protocol):
    """A sandbox that cleans up from outside, by no program that the policy could replace."""

    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        """Do one of the works by which an episode cleans up before grading.

        The first ``baseline`` parts what runs in the sandbox: what ran before has the rank ``service`` and what is run
        from then on the rank ``policy``, which can't open the memory or the files of a service's processes, as root or
        as any user. What the policy is to have is therefore started after the first baseline, its terminal included.

        Args:
            work: ``baseline`` (list what runs), ``stop`` (end what is not in a baseline), ``open_grading`` (make again
                the workdir and the log directories, and give room that the policy could not use), ``close_grading``
                (take that room back, as far as it is free) or ``reset_verifier_dirs`` (empty the verifier's
                directories). Others are refused, or the class's own.
            arguments: What the work takes; see :mod:`harbor_gym.episode.grading.cleanup`, its only caller.
            timeout_sec: Seconds after which the work is given up.

        Returns:
            What the work found, and ``oom_kills``: processes that the memory limit killed so far, None if not counted.

        Raises:
            SandboxTimeoutError: The time was up; the policy is held to be the cause.
            SandboxError: The work failed.
        """
        ...


@runtime_checkable
class SupportsIsUp(Protocol):
    """A sandbox of which the host knows whether it is there, whatever its policy did to what is in it."""

    async def is_up(self) -> bool:
        """Return whether the sandbox is there. Asks the host or the provider, and runs no program in the sandbox.

        A sandbox that is up and answers nothing was broken by its policy (reward 0); one that is not up was lost (no
        reward). When in doubt, return False.
        """
        ...


@runtime_checkable
class SupportsWrittenPaths(Protocol):
    """A sandbox that knows what was changed in it."""

    async def written_paths(self) -> Sequence[PurePosixPath]:
        """Return the paths that differ from the image: files, links, empty directories, and what was deleted.

        Some thousand at most; which, where there are more, is open.

        Raises:
            SandboxError: They can't be listed.
        """
        ...


@runtime_checkable
class SupportsSharedSetup(Protocol):
    """A sandbox class that takes ``setup_command`` and may have to run it at each start."""

    @property
    def shares_setup(self) -> bool:
        """Whether the started sandbox stands on files that the command wrote once for many."""
        ...


@runtime_checkable
class ReportsLeftBehind(Protocol):
    """A sandbox that knows what its ``stop`` could not remove. Harbor logs such an error and goes on."""

    @property
    def left_behind(self) -> str | None:
        """Return what is left and how to remove it, as a sentence; None where nothing is."""
        ...


@runtime_checkable
class ReportsServices(Protocol):
    """A sandbox whose start waits for the services that its image's ENTRYPOINT starts."""

    @property
    def services_note(self) -> str | None:
        """How long it waited, for people; None where no service was started."""
        ...


@runtime_checkable
class DeclaresKnownFailures(Protocol):
    """A sandbox class, or a maker of environments, whose behaviours are known not to hold all."""

    @property
    def known_failures(self) -> Mapping[str, str]:
        """Name of a behaviour → why it does not hold."""
        ...
