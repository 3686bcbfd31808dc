"""Requirements on an interrupted ``exec``: timeouts, cancellation, processes left running."""

import asyncio
import contextlib

from harbor_gym.errors import SandboxTimeoutError
from harbor_gym.testing.conformance.behaviours import Family, Violation, expect, expect_equal, refused
from harbor_gym.testing.conformance.probe import Probe

INTERRUPTIONS = Family[Probe]("interruptions")

_PATIENCE_SEC = 10.0
_LOOKS = 200


@INTERRUPTIONS.behaviour
async def a_timeout_raises(probe: Probe) -> None:
    """``exec`` raises if its command still runs after ``timeout_sec``, and returns no ordinary result."""
    with refused("a command that outlived its timeout", RuntimeError, TimeoutError, SandboxTimeoutError):
        async with asyncio.timeout(_PATIENCE_SEC + 1):
            await probe.sandbox.exec("sleep 4001", timeout_sec=1)


@INTERRUPTIONS.behaviour
async def a_timed_out_command_is_dead(probe: Probe) -> None:
    """No process of a timed-out command keeps running, its children included."""
    with contextlib.suppress(RuntimeError, TimeoutError, SandboxTimeoutError):
        await probe.sandbox.exec("sleep 4002 & sleep 4002; true", timeout_sec=1)
    await probe.expect_dead(4002)


@INTERRUPTIONS.behaviour
async def a_timeout_leaves_the_sandbox_usable(probe: Probe) -> None:
    """After a timeout the next command runs normally."""
    with contextlib.suppress(RuntimeError, TimeoutError, SandboxTimeoutError):
        await probe.sandbox.exec("sleep 4003", timeout_sec=1)
    expect_equal(await probe.output("echo well"), "well", "stdout of the next command")


@INTERRUPTIONS.behaviour
async def a_timeout_spares_the_other_commands(probe: Probe) -> None:
    """A timeout kills its own command and no concurrent one."""
    neighbour = asyncio.ensure_future(probe.output("sleep 2; echo survived"))
    try:
        with contextlib.suppress(RuntimeError, TimeoutError, SandboxTimeoutError):
            await probe.sandbox.exec("sleep 4004", timeout_sec=1)
        expect_equal(await neighbour, "survived", "stdout of the neighbour")
    finally:
        neighbour.cancel()


@INTERRUPTIONS.behaviour
async def a_command_within_its_timeout_is_left_alone(probe: Probe) -> None:
    """A timeout that is not reached changes nothing."""
    expect_equal(await probe.output("sleep 0.2; echo done", timeout_sec=20), "done", "stdout")


async def _cancel_command(probe: Probe, marker: int) -> None:
    began = f"/tmp/began-{marker}"
    command = asyncio.ensure_future(probe.sandbox.exec(f"touch {began}; sleep {marker}; true"))
    try:
        for _ in range(_LOOKS):
            if await probe.sandbox.is_file(began):
                break
            await asyncio.sleep(0.02)
        else:
            raise Violation("the command to be cancelled did not begin")
    finally:
        command.cancel()
        await asyncio.wait([command], timeout=_PATIENCE_SEC)
    expect(command.cancelled(), "the cancelled call of exec is not over, or swallowed its cancellation")


@INTERRUPTIONS.behaviour
async def a_cancellation_leaves_the_sandbox_usable(probe: Probe) -> None:
    """A cancelled call of ``exec`` ends at once with ``CancelledError``, and the next command runs."""
    await _cancel_command(probe, 4005)
    expect_equal(await probe.output("echo well"), "well", "stdout of the next command")


@INTERRUPTIONS.behaviour
async def a_cancelled_command_is_dead(probe: Probe) -> None:
    """No process of a cancelled command keeps running."""
    await _cancel_command(probe, 4006)
    await probe.expect_dead(4006)


@INTERRUPTIONS.behaviour
async def a_process_left_behind_holds_nothing_up(probe: Probe) -> None:
    """``exec`` returns when its shell ends, even if a background process holds the output open."""
    expect_equal(await probe.output("sleep 4007 & echo started", timeout_sec=15), "started", "stdout")


@INTERRUPTIONS.behaviour
async def a_daemon_lives_on_between_commands(probe: Probe) -> None:
    """Background processes of a command run until the sandbox stops, so the verifier finds servers alive."""
    await probe.leave_running(4008)
    expect_equal(await probe.output("echo between"), "between", "stdout")
    expect(await probe.is_alive(4008), "the daemon did not outlive the command that started it")


@INTERRUPTIONS.behaviour
async def orphans_are_reaped(probe: Probe) -> None:
    """An orphaned process leaves no zombie; else long episodes would run out of processes."""
    await probe.output("for i in {1..10}; do (sleep 0.05 &); done")
    script = "for i in {1..40}; do n=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '); [ $n = 0 ] && break; "
    expect_equal(await probe.output(f"{script}sleep 0.05; done; echo $n"), "0", "zombies")
