"""The rules for a task's ``setup_command`` on every sandbox: its failures, and the sandboxes without it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from harbor_gym.sandboxes.errors import SandboxError, SandboxStartError
from harbor_gym.sandboxes.tools import limited

_OUTPUT_TAIL_CHARACTERS = 4000
OF_VERIFIERS = "__verifier__"
"""Harbor writes it into the session ids of separate verifiers' sandboxes."""


def is_of_verifier(session_id: str) -> bool:
    """Return whether a sandbox is a separate verifier's, for which no set-up command runs."""
    return OF_VERIFIERS in session_id


@contextlib.asynccontextmanager
async def setting_up(timeout_sec: float) -> AsyncGenerator[None]:
    """Limit the time of a set-up command, and report its failure as a failed start.

    Raises:
        SandboxStartError: The time was up, or the sandbox failed.
    """
    try:
        async with limited(timeout_sec, lambda: "setup_command"):
            yield
    except SandboxStartError:
        raise
    except SandboxError as exc:
        raise SandboxStartError(f"setup_command: {exc}") from exc


def require_success(code: int, output: str, *, of: str = "setup_command") -> None:
    """Raise :class:`SandboxStartError` with the end of the output unless a command of the configuration succeeded."""
    if code != 0:
        answer = output.strip()[-_OUTPUT_TAIL_CHARACTERS:]
        raise SandboxStartError(f"{of} ended with status {code}: {answer}")
