"""A command that an adapter runs in the policy's sandbox, beside its terminal."""

import time
from dataclasses import dataclass

from harbor_gym.episode.episode import AgentPhase, run_in_phase
from harbor_gym.errors import SandboxTimeoutError
from harbor_gym.terminal.sandbox_exec import run_in_sandbox


@dataclass(frozen=True)
class SideResult:
    """The result of a side command."""

    return_code: int | None
    """None if the command did not end in time, which may be the policy's doing."""

    output: str
    """Standard output and error; empty if the command did not end in time."""

    duration_sec: float


async def run_side_command(phase: AgentPhase, command: str, *, timeout_sec: float) -> SideResult:
    """Run shell text once in the phase's sandbox, as the policy's user.

    Raises:
        SandboxLostError: The sandbox could not run it at all.
    """
    started = time.monotonic()
    work = run_in_sandbox(
        phase.environment, command, timeout_sec=timeout_sec, user=phase.user, purpose="run a tool's command"
    )
    try:
        done = await run_in_phase(phase, work)
    except SandboxTimeoutError:
        return SideResult(None, "", time.monotonic() - started)
    output = f"{done.stdout or ''}{done.stderr or ''}"
    return SideResult(done.return_code, output, time.monotonic() - started)
