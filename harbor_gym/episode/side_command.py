"""A command that an adapter runs in the policy's sandbox, beside its terminal, or in a service of the episode."""

import time
from dataclasses import dataclass

from harbor.environments.base import ServiceOperationsUnsupportedError

from harbor_gym.episode.episode import AgentPhase, run_in_phase
from harbor_gym.errors import SandboxError, SandboxLostError, SandboxTimeoutError, UsageError
from harbor_gym.terminal.sandbox_exec import run_in_sandbox


@dataclass(frozen=True)
class SideResult:
    """The result of a side command."""

    return_code: int | None
    """None if the command did not end in time, which may be the policy's doing."""

    output: str
    """Standard output and error; empty if the command did not end in time."""

    duration_sec: float


async def run_side_command(
    phase: AgentPhase, command: str, *, timeout_sec: float, service: str | None = None
) -> SideResult:
    """Run shell text once in the phase's sandbox, as the policy's user, or in a service, as the service's.

    Raises:
        SandboxError: The sandbox could not run it at all.
        UsageError: There is no such service, or it does not run.
    """
    started = time.monotonic()
    work = run_in_sandbox(
        phase.environment,
        command,
        timeout_sec=timeout_sec,
        user=phase.user if service is None else None,
        purpose="run a tool's command",
        service=service,
    )
    try:
        done = await run_in_phase(phase, work)
    except SandboxTimeoutError:
        return SideResult(None, "", time.monotonic() - started)
    except SandboxError as exc:
        is_lost = isinstance(exc, SandboxLostError) and not isinstance(exc.__cause__, ServiceOperationsUnsupportedError)
        if service is None or is_lost:
            raise
        raise UsageError(f"service {service!r}: {exc.__cause__ or exc}") from exc
    output = f"{done.stdout or ''}{done.stderr or ''}"
    return SideResult(done.return_code, output, time.monotonic() - started)
