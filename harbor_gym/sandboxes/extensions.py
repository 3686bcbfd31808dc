"""Abilities beyond Harbor's ``BaseEnvironment`` that a sandbox class may have, as protocols, each with its contract.

A class supports an ability by having its methods; it need not inherit or register anything. The core checks with
``isinstance``; a method set to None removes an inherited ability. Every ability is optional: without it the core uses
plain commands, more slowly, or does without, as each protocol states. ``harbor-gym check-sandbox`` checks the abilities
that a class supports.

========================  ==============================================  ============================================
protocol                  gives                                           without it
========================  ==============================================  ============================================
SupportsExecArgv,         a terminal channel that stays open: a step      one ``exec`` a step (Docker's own class is
SupportsExecPipes         takes milliseconds                              entered by its engine)
SupportsTerminal          a terminal for sandboxes without processes      tmux in the sandbox
SupportsVerifierView      grading in a pristine view                      grading as Harbor does it
SupportsSetUpView         later steps prepared in one                     their set-up runs among the policy's files
SupportsSharedView        verifier's directories that the processes       these processes see them
                          left by the policy don't see
SupportsCleanUp           clean-up by no program of the sandbox           the same by a script in it
SupportsProcessCopies     ``fork(mode="exact")``                          copies by replay
SupportsUnblocking        no file of a policy holds up the engine         a silent sandbox is left as it is
SupportsBuild             a build that Harbor's limit of the start        the limit includes the build, and its wait
                          does not include                                for others
SupportsIsUp              a lost sandbox distinct from a broken one       a silent sandbox counts as lost
SupportsWrittenPaths      ``harbor-gym check`` proposes verify_paths      no proposal
SupportsSharedSetup       ``info["setup"]`` is exact                      ``shared`` for a class of this package
ReportsLeftBehind         a close that left something behind raises       only Harbor's log reports it
ReportsServices           ``harbor-gym check`` names services             no remark
DeclaresKnownFailures     check-sandbox shows known failures as such      each failure counts
DeclaresCutRewards        a verifier's directory in one transfer          the sandbox first cuts large reward files
========================  ==============================================  ============================================
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from harbor_gym.sandboxes.errors import SandboxTimeoutError

if TYPE_CHECKING:
    from harbor.environments.base import ExecResult  # 0.3 s to import, and only its type is needed


class ExecTimeoutError(SandboxTimeoutError, RuntimeError):
    """A command ran out of time and was killed. A ``RuntimeError`` too, as Harbor's own environments raise."""


class SupportsExec(Protocol):
    """The one method that every sandbox has, with the guarantees that the core relies on."""

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
            command: Text for ``bash -c`` (``sh -c`` if there is no bash). Any length up to 128 KiB, any UTF-8 except
                NUL; it must not be split, expanded or trimmed.
            cwd: Absolute directory; None is the image's working directory.
            env: Variables on top of the image's; values may hold commas, quotes and line ends.
            timeout_sec: Whole seconds after which the command and the processes that it started are killed; None is no
                limit. The output until then is lost.
            user: Name or id; None is ``default_user``, and with that None the image's user.

        Returns:
            Exit code, standard output and standard error, decoded with replacement; a code above 128 is a signal's. A
            failing command is a result, not an error.

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
    """A running command with streams: one of asyncio's processes, or a sandbox's equivalent."""

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """Its standard input; closing it is the end of file."""
        ...

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """Its standard output, as unbuffered bytes."""
        ...

    def kill(self) -> None:
        """Kill it and its process group with SIGKILL. Idempotent, also after its end."""
        ...

    async def wait(self) -> int:
        """Wait for its end and return its status; any other than 0 if the sandbox ended."""
        ...


class RootProcess(PipedProcess, Protocol):
    """A process that goes on when its streams are dropped."""

    def drop(self) -> None:
        """Release the pipes. Idempotent."""
        ...


@runtime_checkable
class SupportsExecArgv(Protocol):
    """A sandbox that a process of this machine can enter, so that the terminal can keep its channel open."""

    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        """Return an argument vector for a process of this machine that runs ``command`` in the sandbox.

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
    """A sandbox that also starts commands with pipes itself, which saves a process of this machine."""

    async def exec_pipes(self, command: str, *, user: str | int | None = None, directory: str = "") -> PipedProcess:
        """Start ``command`` and return while it runs; the caller ends it and awaits its ``wait``.

        Standard error is discarded. The command ends when it is killed and with the sandbox; closing its input ends it
        only if it reads that.

        Args:
            command: Shell text, as for :meth:`SupportsExec.exec`.
            user: As for :meth:`SupportsExec.exec`.
            directory: A directory that the command makes for its user alone unless it finds it: a sandbox that can
                make it in the user's name saves the command a process. Empty for none.

        Raises:
            SandboxLostError: The sandbox is not running.
        """
        ...


@runtime_checkable
class SupportsProcessCopies(Protocol):
    """A sandbox whose processes and files can be copied into another of its class while they stand still."""

    @property
    def is_forkable(self) -> bool:
        """Whether this one can: the option ``forkable``."""
        ...

    async def exec_root(self, command: str, *, user: str | int | None = None) -> RootProcess:
        """Start the process above all that is copied, as :meth:`SupportsExecPipes.exec_pipes` does.

        It becomes the parent of what is below it and whose own parent ends.
        """
        ...

    async def dump(self, root: int) -> Any:
        """Dump that process and all below it, and the sandbox's files, to memory. They go on undisturbed.

        Returns:
            The dump, which its holder closes by its ``close``; it takes ``size_bytes`` of memory. ``pack`` writes what
            is there to a file by its descriptor; all else about it can be written as JSON.

        Raises:
            SandboxError: They can't be dumped; the text states why.
        """
        ...

    @staticmethod
    def stored_dump(record: Any, packed: int) -> Any:
        """Return a dump of another process, from its JSON values and a descriptor of the file to which it was packed.

        Raises:
            UsageError: It is no such record.
        """
        ...

    def begin_as(self, dump: Any) -> None:
        """Let this sandbox, which is not started yet, begin with a dump's image and files, and with what was known of
        them before their policy came. Its start then reads nothing of them, and runs nothing.
        """
        ...

    async def restore(self, dump: Any) -> None:
        """Bring the dumped processes back in this sandbox, which began as the dump and runs nothing yet.

        Raises:
            SandboxError: They can't be restored; the text states why.
        """
        ...


@runtime_checkable
class SupportsTerminal(Protocol):
    """A sandbox without real processes that has a terminal of its own, as the fake has."""

    def make_terminal(self, config: Any, *, user: str | int | None) -> Awaitable[Any]:
        """Return a :class:`harbor_gym.terminal.Terminal`; its caller closes it.

        Args:
            config: A :class:`harbor_gym.TerminalConfig`: pane size, waits and the observation budget.
            user: The shell's user; None is the image's user.

        Raises:
            TerminalStartError: No terminal can be opened.
        """
        ...


@runtime_checkable
class SupportsVerifierView(Protocol):
    """A sandbox that can show its verifier the original image, with chosen paths of the policy's files."""

    async def enter_verifier_view(self, verify_paths: Sequence[PurePosixPath]) -> None:
        """Switch every further call of the sandbox to a fresh overlay of the image's layers.

        In it /tests, /tmp and /logs/verifier are the image's, and of the policy's files only these paths exist, each as
        it is: absent if it is absent, or if a link leads to it. Processes and network stay the sandbox's.

        Every command in the view has the rank ``verifier``: no process outside of the view, root's or another user's,
        can open its memory or its files (/proc/PID/mem, root, cwd, fd, environ). A process that leaves the view, or was
        never in it (``exec_argv``), has the rank of processes outside.

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
class SupportsSharedView(Protocol):
    """A sandbox in which a verifier can have directories of its own beside the processes that the policy left."""

    async def enter_shared_view(self, directories: Sequence[PurePosixPath]) -> None:
        """Switch every further call of the sandbox to its own files, with empty directories at these paths.

        No process outside of the view sees what is written in them, or can put others in their place. Every command in
        the view has the rank ``verifier``, as in :meth:`SupportsVerifierView.enter_verifier_view`. Everything else is
        shared: files, processes, signals, network.

        Args:
            directories: Absolute paths of the verifier's directories.

        Raises:
            SandboxError: The view can't be made; nothing has changed then.
        """
        ...

    async def leave_verifier_view(self) -> None:
        """As :meth:`SupportsVerifierView.leave_verifier_view`."""
        ...


@runtime_checkable
class SupportsSetUpView(Protocol):
    """A sandbox with :class:`SupportsVerifierView` that can also prepare a later step in a pristine view."""

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
        """Copy the changes made in the view to the sandbox's own files, and switch every further call back.

        Files, links, directories and removals, each with owner and mode, replace the policy's: nothing is written
        through its links. /tmp, /tests and /logs/verifier of the view are dropped.

        Args:
            timeout_sec: Seconds after which the attempt ends.

        Returns:
            Why some changes could not be written, for example for lack of room, which is the policy's failure; empty if
            all were.

        Raises:
            SandboxTimeoutError: The time was up; the policy is assumed to be the cause.
            SandboxError: It failed.

        Not to be assumed: that processes of the set-up see the policy's files from then on. They stay in the view, with
        the files that they wrote there, and can be reached over the network or in the carried paths.
        """
        ...


@runtime_checkable
class SupportsCleanUp(Protocol):
    """A sandbox that is cleaned up from outside, without programs that the policy could replace."""

    async def clean_up(self, work: str, arguments: Mapping[str, Any], *, timeout_sec: float) -> dict[str, Any]:
        """Do one part of an episode's clean-up before grading.

        The first ``baseline`` separates the processes of the sandbox: earlier ones have the rank ``service``, later
        ones the rank ``policy``, which can't open the memory or the files of a service's processes, as root or as any
        user. So the policy's processes, including its terminal, are started after the first baseline.

        Args:
            work: ``baseline`` (list the processes), ``stop`` (end those not in a baseline), ``open_grading`` (make the
                workdir and the log directories again, and free the room reserved for grading), ``close_grading``
                (reserve that room again, as far as it is free) or ``reset_verifier_dirs`` (empty the verifier's
                directories). Others are refused, or the class's own.
            arguments: The arguments of the part; see :mod:`harbor_gym.episode.grading.cleanup`, its only caller.
            timeout_sec: Seconds after which the attempt ends.

        Returns:
            The results, and ``oom_kills``: processes that the memory limit killed so far, None if not counted.

        Raises:
            SandboxTimeoutError: The time was up; the policy is assumed to be the cause.
            SandboxError: The work failed.
        """
        ...


@runtime_checkable
class SupportsIsUp(Protocol):
    """A sandbox whose host knows whether it exists, regardless of its policy's actions."""

    async def is_up(self) -> bool:
        """Return whether the sandbox exists. Asks the host or the provider, and runs no program in the sandbox.

        A sandbox that is up and answers nothing was broken by its policy (reward 0); one that is not up was lost (no
        reward). When in doubt, return False.
        """
        ...


@runtime_checkable
class SupportsUnblocking(Protocol):
    """A sandbox whose engine itself waits for files that a policy can replace."""

    async def unblock(self) -> str | None:
        """Replace what would hold up the engine at the next command. Called where a terminal does not answer, and
        before grading.

        Runs no program in the sandbox, takes some seconds at most, and raises nothing if it can't be done.

        Returns:
            What this or an earlier call replaced, in words; programs that wait for it already wait on. None: nothing.
        """
        ...


@runtime_checkable
class SupportsBuild(Protocol):
    """A sandbox that can get its image before its start, which Harbor limits by ``build_timeout_sec``."""

    async def build_image(self, *, force_build: bool) -> None:
        """Build or fetch the image that the start will use. Called at most once, before ``start``; ``stop`` frees it.

        The class limits the build itself, from the build's own start.

        Args:
            force_build: As for ``start``, which does not build again then.

        Raises:
            MissingDependencyError: A program or a right is missing.
            SandboxStartError: The image can't be built.
        """
        ...


@runtime_checkable
class SupportsWrittenPaths(Protocol):
    """A sandbox that knows which of its files were changed."""

    async def written_paths(self) -> Sequence[PurePosixPath]:
        """Return the paths that differ from the image: files, links, empty directories, and deleted entries.

        At most some thousand; if there are more, an arbitrary selection.

        Raises:
            SandboxError: They can't be listed.
        """
        ...


@runtime_checkable
class SupportsSharedSetup(Protocol):
    """A sandbox class that takes ``setup_command`` and may have to run it at each start."""

    @property
    def shares_setup(self) -> bool:
        """Whether the started sandbox uses files that the command wrote once for many sandboxes."""
        ...


@runtime_checkable
class ReportsLeftBehind(Protocol):
    """A sandbox that knows which objects its ``stop`` could not remove. Harbor only logs such an error."""

    @property
    def left_behind(self) -> str | None:
        """A sentence on the remaining objects and how to remove them; None if there are none."""
        ...


@runtime_checkable
class ReportsServices(Protocol):
    """A sandbox whose start waits for the services that its image's ENTRYPOINT starts."""

    @property
    def services_note(self) -> str | None:
        """A sentence on how long it waited; None if no service was started."""
        ...


@runtime_checkable
class DeclaresKnownFailures(Protocol):
    """A sandbox class, or a maker of environments, with behaviours that are known not to hold."""

    @property
    def known_failures(self) -> Mapping[str, str]:
        """Name of a behaviour → why it does not hold."""
        ...


@runtime_checkable
class DeclaresCutRewards(Protocol):
    """A sandbox class whose transfers cut a verifier's reward files, which a policy's program can make very large."""

    @property
    def cuts_rewards(self) -> bool:
        """True."""
        ...
