"""Requirements on a sandbox: Harbor's folders, healthchecks, limits, its life cycle, a terminal in it."""

import asyncio
import contextlib
import shlex
import socket
from collections.abc import Iterator

from harbor.environments.base import HealthcheckError
from harbor.models.task.config import HealthcheckConfig
from harbor.models.trial.paths import EnvironmentPaths

from harbor_gym.config import TerminalConfig
from harbor_gym.errors import HarborGymError
from harbor_gym.terminal import open_terminal
from harbor_gym.testing.conformance.behaviours import Family, NotApplicable, expect, expect_equal, refused
from harbor_gym.testing.conformance.probe import USER, Probe
from harbor_gym.types import Command

FOLDERS = Family[Probe]("folders")
LIMITS = Family[Probe]("limits")
LIFE = Family[Probe]("life")
TERMINAL = Family[Probe]("terminal")

_PATIENCE_SEC = 30.0


@FOLDERS.behaviour
async def the_log_folders_are_there_for_every_user(probe: Probe) -> None:
    """The agent, verifier and artifacts folders under /logs exist, and root and ordinary users can write to them."""
    inside = EnvironmentPaths()
    for path in (inside.agent_dir, inside.verifier_dir, inside.artifacts_dir):
        expect(await probe.sandbox.is_dir(str(path)), f"{path} is missing")
        for user in ("root", USER):
            await probe.output(f"echo x > {path}/by-{user}", user=user)


@FOLDERS.behaviour_alone
async def folders_are_made_and_emptied_as_harbor_asks(probe: Probe) -> None:
    """``ensure_dirs`` and ``empty_dirs`` work as root for any default user, and leave the folder writable."""
    with probe.sandbox.with_default_user(USER):
        await probe.sandbox.ensure_dirs(["/made/for all"])
        await probe.output("echo x > '/made/for all/file'")
        await probe.sandbox.empty_dirs(["/made/for all"])
        expect(not await probe.sandbox.is_file("/made/for all/file"), "empty_dirs left a file")
        expect(await probe.sandbox.is_dir("/made/for all"), "empty_dirs removed the folder itself")


@FOLDERS.behaviour
async def a_healthcheck_is_run_inside(probe: Probe) -> None:
    """A task's healthcheck passes if its command succeeds in the sandbox, and fails after its retries."""
    await probe.output("echo up > /tmp/health")
    quick = {"interval_sec": 0.01, "start_period_sec": 0.0, "timeout_sec": 10.0, "retries": 2}
    await probe.sandbox.run_healthcheck(HealthcheckConfig.model_validate({"command": "test -f /tmp/health", **quick}))
    with refused("a healthcheck that fails", HealthcheckError):
        await probe.sandbox.run_healthcheck(HealthcheckConfig.model_validate({"command": "test -f /tmp/no", **quick}))


# --- limits ----------------------------------------------------------------------------------------------------------


@LIMITS.behaviour
async def two_sandboxes_share_no_files(probe: Probe) -> None:
    """A sandbox's writes are invisible to another sandbox of the same image."""
    other = await probe.other()
    await probe.output("echo mine > /tmp/mine; echo mine > /etc/mine")
    expect(not await other.is_file("/tmp/mine"), "a file in /tmp is seen by another sandbox")
    expect(not await other.is_file("/etc/mine"), "a file in /etc is seen by another sandbox")


@LIMITS.behaviour
async def two_sandboxes_share_no_processes(probe: Probe) -> None:
    """A sandbox's processes are invisible in another sandbox."""
    other = await probe.other()
    await probe.leave_running(4011)
    expect(not await probe.is_alive(4011, sandbox=other), "a process of another sandbox is seen")


@LIMITS.behaviour
async def files_of_the_host_are_not_seen(probe: Probe) -> None:
    """A path of the host leads nowhere inside, not even through another process's root."""
    secret = probe.folder() / "secret"
    secret.write_text("hunter2", encoding="utf-8")
    path = shlex.quote(str(secret))
    answer = await probe.run(f"cat {path}; for root in /proc/[0-9]*/root; do cat $root{path}; done 2>/dev/null")
    expect("hunter2" not in (answer.stdout or ""), f"the sandbox read {secret} of the host")


@LIMITS.behaviour
async def no_network_is_none(probe: Probe) -> None:
    """With ``no-network`` a sandbox reaches neither the host nor its loopback, and has no route out."""
    if not probe.sandbox.capabilities.disable_internet:
        raise NotApplicable("this kind can't switch the network off (capabilities.disable_internet)")
    other = await probe.other()
    with contextlib.closing(socket.create_server(("", 0))) as server:
        port = server.getsockname()[1]
        addresses = [address for address in _own_addresses() if _answers(address, port)]
        expect(addresses, "this machine does not reach itself, so nothing can be checked")
        for address in addresses:
            call = f"timeout 3 bash -c '</dev/tcp/{address}/{port}' 2>/dev/null"
            result = await other.exec(call, timeout_sec=30)
            expect(result.return_code != 0, f"the sandbox reached the host at {address}")
    routes = await probe.output("tail -n +2 /proc/net/route", sandbox=other)
    expect_equal(routes, "", "routes")


def _own_addresses() -> Iterator[str]:
    yield "127.0.0.1"
    with contextlib.suppress(OSError), contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: the kernel only picks the address it would send from
        yield probe.getsockname()[0]


def _answers(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


# --- life ------------------------------------------------------------------------------------------------------------


@LIFE.behaviour
async def a_stop_before_the_start_is_harmless(probe: Probe) -> None:
    """A sandbox that never started can be stopped: Harbor does that when a start fails."""
    await probe.make().stop(delete=True)


@LIFE.behaviour
async def a_stop_ends_what_runs(probe: Probe) -> None:
    """An ``exec`` that runs when the sandbox stops ends soon, by an error or with a status other than 0."""
    _, command = await probe.ended()
    await asyncio.wait([command], timeout=_PATIENCE_SEC)
    expect(command.done(), "the call of exec still waits, though its sandbox was stopped")
    lost = command.cancelled() or command.exception() is not None or command.result().return_code != 0
    expect(lost, "the command is reported as successful, though its sandbox was stopped")


@LIFE.behaviour
async def a_second_stop_is_harmless(probe: Probe) -> None:
    """A second ``stop`` does nothing."""
    sandbox, _ = await probe.ended()
    await sandbox.stop(delete=True)


@LIFE.behaviour
async def after_the_stop_nothing_runs(probe: Probe) -> None:
    """A command for a stopped sandbox raises or fails, and runs nowhere."""
    sandbox, _ = await probe.ended()
    try:
        result = await sandbox.exec("echo alive", timeout_sec=20)
    except Exception:  # any refusal will do
        return
    expect(result.return_code != 0, "a command was run after the sandbox had been stopped")


@LIFE.behaviour
async def after_the_stop_nothing_is_transferred(probe: Probe) -> None:
    """Uploads to and downloads from a stopped sandbox raise."""
    sandbox, _ = await probe.ended()
    folder = probe.folder()
    (folder / "file").write_text("x", encoding="utf-8")
    with refused("an upload to a stopped sandbox"):
        await sandbox.upload_file(folder / "file", "/tmp/file")
    with refused("a download from a stopped sandbox"):
        await sandbox.download_file("/etc/hostname", folder / "back")


# --- terminal --------------------------------------------------------------------------------------------------------


@TERMINAL.behaviour
async def a_terminal_opens_and_answers(probe: Probe) -> None:
    """A shell session opens in the working directory, runs what is typed, and keeps its state between turns."""
    where = await probe.output("pwd")
    terminal = await open_terminal(probe.sandbox, TerminalConfig())
    try:
        turn = await terminal.run([Command("pwd; WORD=for; echo ${WORD}ty-two\n", 10.0)])
        expect(where in turn.text.splitlines(), f"the terminal is not where commands run: {turn.text!r}")
        expect("forty-two" in turn.text, f"the answer is not on the screen: {turn.text!r}")
        turn = await terminal.run([Command("echo ${WORD}ty-three\n", 10.0)])
        expect("forty-three" in turn.text, f"the session forgot its variable: {turn.text!r}")
    finally:
        await terminal.close()


@TERMINAL.behaviour
async def a_terminal_is_its_users(probe: Probe) -> None:
    """A terminal opened for a user runs as that user."""
    terminal = await open_terminal(probe.sandbox, TerminalConfig(), user=USER)
    try:
        turn = await terminal.run([Command("whoami\n", 10.0)])
        expect(USER in turn.text.splitlines(), f"the terminal is somebody else's: {turn.text!r}")
    finally:
        await terminal.close()


@TERMINAL.behaviour
async def a_running_program_is_interrupted_by_a_key(probe: Probe) -> None:
    """A command keeps running after its deadline; C-c ends it and brings the prompt back."""
    terminal = await open_terminal(probe.sandbox, TerminalConfig(min_wait_sec=0.0))
    try:
        turn = await terminal.run([Command("sleep 4012\n", 0.2)])
        expect_equal(turn.waits, ("deadline",), "what ended the wait for a sleeping program")
        turn = await terminal.run([Command("C-c", 10.0)])
        expect_equal(turn.waits, ("prompt",), "what ended the wait for C-c")
    finally:
        await terminal.close()


@TERMINAL.behaviour
async def a_closed_terminal_leaves_no_process(probe: Probe) -> None:
    """Processes that were started in a terminal end with it."""
    terminal = await open_terminal(probe.sandbox, TerminalConfig())
    await terminal.run([Command("sleep 4013 &\n", 10.0)])
    await terminal.close()
    await probe.expect_dead(4013)


@TERMINAL.behaviour
async def a_terminal_in_a_stopped_sandbox_is_an_infrastructure_failure(probe: Probe) -> None:
    """A lost sandbox raises an error that is marked ``is_infrastructure``, so it never becomes a reward."""
    sandbox, _ = await probe.ended()
    try:
        await open_terminal(sandbox, TerminalConfig())
    except HarborGymError as exc:
        expect(exc.is_infrastructure, f"{type(exc).__name__} is not marked as a failure of the infrastructure")
        return
    expect(False, "a terminal opened in a stopped sandbox")
