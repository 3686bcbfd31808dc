"""What tells a copy of an episode from its siblings: a mark in its sandbox, and a command that runs there once."""

import contextlib
import logging
import os
import secrets
import tempfile
from collections.abc import Generator, Mapping
from typing import Any, cast

from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym.episode.episode import AgentPhase, run_in_phase
from harbor_gym.errors import SandboxError, SandboxLostError
from harbor_gym.sandboxes.setup_command import require_success
from harbor_gym.terminal.sandbox_exec import run_in_sandbox
from harbor_gym.types import CopyMark

COPY_FILE = "/run/harbor-gym-copy"
"""The file with a copy's number, root's, in its sandbox."""

COPY_VARIABLE = "HARBOR_GYM_COPY"
"""The same in the environment of ``copy_command``."""

_ID_BITS = 63

_logger = logging.getLogger(__name__)


def marks_of(info: Mapping[str, Any], *, turn: int) -> tuple[CopyMark, ...]:
    """Return the marks of an episode, in order, up to a turn.

    Args:
        info: That of the episode's ``reset``.
        turn: Turns taken.
    """
    return tuple(mark for mark in cast("tuple[CopyMark, ...]", info.get("copies", ())) if mark["turn"] <= turn)


def new_mark(turn: int, command: str | None) -> CopyMark:
    """Return the mark of a copy that begins after so many turns."""
    return CopyMark(turn=turn, id=str(secrets.randbits(_ID_BITS)), command=command)


async def apply_mark(phase: AgentPhase, mark: CopyMark, *, timeout_sec: float) -> None:
    """Write a copy's mark into its sandbox, and run its command there as the policy's user, beside the terminal.

    Where the policy left no room for the mark, the log has a warning.

    Args:
        phase: The copy's running phase.
        mark: The copy's, or that of an episode whose turns are replayed.
        timeout_sec: Longest run of the command.

    Raises:
        SandboxStartError: The command failed; the text has the end of its output.
        SandboxTimeoutError: It did not end in time.
        SandboxLostError: The sandbox is gone.
    """
    with _file_with(mark["id"]) as source:
        try:
            await run_in_phase(phase, phase.environment.upload_file(source, COPY_FILE))
        except SandboxLostError:
            raise
        except SandboxError as exc:
            _logger.warning("the copy has no mark in %s: %s", COPY_FILE, exc)
    if (command := mark["command"]) is None:
        return
    work = run_in_sandbox(
        phase.environment,
        command,
        timeout_sec=timeout_sec,
        user=phase.user,
        env={COPY_VARIABLE: mark["id"]},
        purpose="run the copy_command",
    )
    done = await run_in_phase(phase, work)
    require_success(done.return_code, f"{done.stdout or ''}{done.stderr or ''}", of="copy_command")


@contextlib.contextmanager
def _file_with(text: str) -> Generator[str]:
    """Yield the path of a file with a line of text, which all may read."""
    with tempfile.NamedTemporaryFile("w", encoding="ascii", prefix=temporary_prefix("copy")) as file:
        file.write(f"{text}\n")
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        yield file.name
