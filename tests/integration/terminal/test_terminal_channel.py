"""The persistent transport when things go wrong: killed channels, cancelled turns, dead hosts. No keystroke twice."""

import asyncio
import contextlib
import os
import random
import re
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal, override

import pytest

from harbor_gym.config import TerminalConfig
from harbor_gym.errors import SandboxLostError, TerminalStartError
from harbor_gym.sandboxes.piped import PipedCommand
from harbor_gym.terminal import Terminal, open_terminal
from harbor_gym.terminal.screen.keys import encode_keystrokes
from harbor_gym.terminal.tmux import TmuxTerminal
from harbor_gym.terminal.transports import channel, persistent
from harbor_gym.terminal.transports.persistent import PersistentTransport
from harbor_gym.terminal.transports.step import make_step
from harbor_gym.types import Command
from tests.helpers.engines import require_engine
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.terminal_environments import (
    KINDS,
    LONG_SEC,
    ON_DOCKER_TOO,
    Container,
    LocalSandbox,
    Sandbox,
    channel_processes,
    enter,
    running_sandbox,
    start_local,
)

_KILL_CLIENTS = "kill -KILL $(tmux -S $(ls -d /run/.terminal-*)/socket list-clients -F '#{client_pid}')"
_ROUNDS = 40


@pytest.fixture(params=KINDS[:1])
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path, nothing_left: None) -> AsyncGenerator[Sandbox]:
    # A failed test's leftovers, too: all tests of this file share the container.
    async with running_sandbox(request, tmp_path, clean="pkill tmux; rm -rf /srv/* /run/.terminal-*") as entered:
        yield entered


@pytest.fixture
async def terminal(sandbox: Sandbox) -> AsyncGenerator[Terminal]:
    opened = await open_terminal(sandbox, TerminalConfig())
    assert (await opened.run([])).transport == "persistent"
    yield opened
    await opened.close()


async def read(sandbox: Sandbox, command: str) -> str:
    return ((await sandbox.exec(command)).stdout or "").strip()


async def kill_channels_after(delay_sec: float) -> None:
    await asyncio.sleep(delay_sec)
    kill_channels()


def kill_channels() -> None:
    for pid in channel_processes(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# --- a broken channel -------------------------------------------------------------------------------------------------


@ON_DOCKER_TOO
@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
async def test_killed_channels_neither_lose_nor_double_a_keystroke(
    sandbox: Sandbox, terminal: Terminal, batch: int
) -> None:
    chance = random.Random(batch)
    numbers = iter(range(1, 10_000))
    shown: list[str] = []
    fallbacks = 0
    for _ in range(_ROUNDS):
        typed = [f"echo $((1000 + {next(numbers)})) | tee -a /srv/lines\n" for _ in range(batch)]
        async with asyncio.TaskGroup() as group:
            group.create_task(kill_channels_after(chance.uniform(0, 0.015 * batch)))
            turn = group.create_task(enter(terminal, *typed))
        fallbacks += turn.result().transport == "portable"
        assert turn.result().waits == ("prompt",) * batch, turn.result()
        shown += turn.result().text.splitlines()
    count = next(numbers) - 1
    expected = [str(1000 + number) for number in range(1, count + 1)]
    assert (await read(sandbox, "cat /srv/lines")).split() == expected
    assert [line for line in shown if line.isdecimal()] == expected
    assert fallbacks > _ROUNDS / 4


async def test_an_answer_that_was_lost_is_given_again(sandbox: Sandbox) -> None:
    for keystrokes in ("seq 100\n", "vi\n", "seq 10000\n", "(exit 3)\n", "é 漢字", "exit 4\n"):
        terminal = await open_terminal(sandbox, TerminalConfig())
        assert isinstance(terminal, TmuxTerminal)
        assert isinstance(terminal.transport, PersistentTransport)
        await enter(terminal, "echo before\n")
        commands = [Command(keystrokes, LONG_SEC)]
        step = make_step(commands, [encode_keystrokes(keystrokes)], first_number=2, config=TerminalConfig())
        capture = await terminal.transport.run_step(step)
        assert await terminal.transport.portable.run_step(step, again=True) == capture, keystrokes
        await terminal.close()


NOTE = (
    "cd /run/.terminal-*; read -r shell _ <pane; runtime=; "
    'until read -r now _ </proc/$shell/schedstat; [ "$now" = "$runtime" ]; do runtime=$now; sleep 0.3; done; '
    'tmux -S socket set-option -p -F -t %0 @typed "{number} {waits}|$shell:$runtime |#{{pane_path}}"'
)
"""Notes what a process notes with the keys of a command, once the shell has nothing left to do for the last one."""


async def test_what_the_shell_has_not_taken_in_yet_is_waited_for(sandbox: Sandbox) -> None:
    terminal = await open_terminal(sandbox, TerminalConfig())
    assert isinstance(terminal, TmuxTerminal)
    assert isinstance(terminal.transport, PersistentTransport)
    await enter(terminal, "echo before\n")
    # As a process leaves it that is killed once it has typed, on a machine too busy to let the shell run.
    await sandbox.exec(NOTE.format(number=2, waits=""))
    commands = [Command("echo typed already\n", 1.0)]
    keys = [encode_keystrokes(command.keystrokes) for command in commands]
    step = make_step(commands, keys, first_number=2, config=TerminalConfig())
    assert (await terminal.transport.portable.run_step(step, again=True)).waits == ("deadline",)
    await terminal.close()


async def test_a_command_that_was_waited_for_is_not_waited_for_again(sandbox: Sandbox) -> None:
    terminal = await open_terminal(sandbox, TerminalConfig())
    assert isinstance(terminal, TmuxTerminal)
    assert isinstance(terminal.transport, PersistentTransport)
    await enter(terminal, "cat\n", wait_sec=0.5)
    await enter(terminal, "C-d")
    # As a process leaves it that is killed when it has just typed the step's second command.
    await sandbox.exec(NOTE.format(number=3, waits=",fullscreen") + " \\; send-keys -t %0 'echo next' Enter")
    commands = [Command("C-d", LONG_SEC), Command("echo next\n", LONG_SEC), Command("echo last\n", LONG_SEC)]
    keys = [encode_keystrokes(command.keystrokes) for command in commands]
    step = make_step(commands, keys, first_number=2, config=TerminalConfig())
    capture = await terminal.transport.portable.run_step(step, again=True)
    assert capture.waits == ("fullscreen", "prompt", "prompt"), "what was noted, and two waits"
    assert "\n".join(capture.lines).count("\nlast") == 1
    await terminal.close()


_NOTES = ("", "x", "9 ,|a[$(touch/srv/x)]:1|", "1 ,x|y:1 a[1]:2 3:b|@ 1 a[$(touch/srv/x)] p", "99999999999999999999 ,")


async def test_a_note_that_the_policy_wrote_harms_nothing(sandbox: Sandbox) -> None:
    for note in _NOTES:
        terminal = await open_terminal(sandbox, TerminalConfig())
        assert isinstance(terminal, TmuxTerminal)
        assert isinstance(terminal.transport, PersistentTransport)
        await enter(terminal, "echo before\n")
        await sandbox.exec(f"tmux -S /run/.terminal-*/socket set-option -p -t %0 @typed {shlex.quote(note)}")
        commands = [Command("echo after\n", LONG_SEC)]
        step = make_step(commands, [encode_keystrokes("echo after\n")], first_number=2, config=TerminalConfig())
        capture = await terminal.transport.portable.run_step(step, again=True)
        assert capture.waits == ("prompt",), note
        assert "\nafter" in "\n".join(capture.lines), note
        assert await read(sandbox, "ls /srv") == "", note
        await terminal.close()


async def test_what_was_typed_is_waited_for_and_not_typed_again(sandbox: Sandbox) -> None:
    for size in (1, 300, 3000, 120_000):
        terminal = await open_terminal(sandbox, TerminalConfig())
        assert isinstance(terminal, TmuxTerminal)
        assert isinstance(terminal.transport, PersistentTransport)
        keystrokes = f"cat >>/srv/typed.{size} <<'END'\n" + f"{'x' * 59}\n" * (size // 60) + "END\n"
        commands = [Command(keystrokes, LONG_SEC), Command(f"date +%N >>/srv/dates.{size}\n", LONG_SEC)]
        keys = [encode_keystrokes(command.keystrokes) for command in commands]
        first = make_step(commands[:1], keys[:1], first_number=1, config=TerminalConfig())
        await terminal.transport.run_step(first)
        both = make_step(commands, keys, first_number=1, config=TerminalConfig())
        capture = await terminal.transport.portable.run_step(both, again=True)
        assert capture.waits == ("prompt", "prompt"), size
        counted = await read(sandbox, f"grep -c x /srv/typed.{size}; wc -l </srv/dates.{size}")
        assert counted == f"{size // 60}\n1"
        await terminal.close()


@ON_DOCKER_TOO
async def test_a_new_channel_takes_the_place_of_a_broken_one(terminal: Terminal) -> None:
    kill_channels()
    turns = [await enter(terminal, f"echo {number}\n") for number in range(3)]
    assert [turn.transport for turn in turns] == ["portable", "persistent", "persistent"]
    assert [turn.text for turn in turns] == [f"$ echo {number}\n{number}\n$" for number in range(3)]


@ON_DOCKER_TOO
async def test_killing_the_other_end_is_survived(sandbox: Sandbox, terminal: Terminal) -> None:
    detach = "tmux -S $(ls -d /run/.terminal-*)/socket detach-client -a -s main; sleep 0.1"
    for killing in ("pkill -KILL -f '[s]tep serve'", _KILL_CLIENTS, detach):
        await sandbox.exec(killing)
        for word in ("one", "two"):
            assert (await enter(terminal, f"echo {word}\n")).text == f"$ echo {word}\n{word}\n$", killing


async def test_a_new_channel_comes_up_while_the_screen_is_being_written_to(terminal: Terminal) -> None:
    await enter(terminal, "while :; do echo noise; sleep 0.001; done &\n")
    for number in range(10):
        kill_channels()
        assert (await enter(terminal, "true\n", wait_sec=0.2)).transport == "portable"
        turn = await enter(terminal, f"echo $((1000 + {number}))\n", wait_sec=0.2)
        assert turn.transport == "persistent"
        async with asyncio.timeout(PATIENCE_SEC):
            while f"{1000 + number}\n" not in turn.text:
                turn = await enter(terminal, "", wait_sec=0.2)


@ON_DOCKER_TOO
@pytest.mark.parametrize("is_killed", [False, True])
async def test_closing_takes_no_trip_but_where_the_channel_is_gone(
    sandbox: Sandbox, terminal: Terminal, *, is_killed: bool
) -> None:
    await enter(terminal, "sleep 1009 & while :; do sleep 0.01; done\n", wait_sec=0.1)
    if is_killed:
        kill_channels()
    before = sandbox.execs
    await terminal.close()
    assert sandbox.execs - before == is_killed
    # A container's process notices a moment later that nobody speaks to it any more.
    left = "$(pgrep -f '[s]leep 1009|[.]terminal-|[t]erminal/step'; ls -d /run/[.]terminal-* 2>/dev/null)"
    look = f'for _ in {{1..3000}}; do left={left}; [ -z "$left" ] && break; sleep 0.02; done; echo $left'
    assert await read(sandbox, look) == ""


@ON_DOCKER_TOO
@pytest.mark.parametrize("moment", ["before", "during"])
async def test_a_hung_channel_is_left_before_the_step_is_over(
    sandbox: Sandbox, terminal: Terminal, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_SILENCE_SEC", 4.5)
    stop = "pkill -STOP -f '[s]tep serve'"
    if moment == "before":
        await sandbox.exec(stop)
        turn = await enter(terminal, "echo one | tee -a /srv/typed\n")
    else:
        turn = await enter(terminal, f"{stop}; sleep 0.2; echo one | tee -a /srv/typed\n")
    assert (turn.transport, turn.waits) == ("portable", ("prompt",))
    assert turn.text.endswith("\none\n$")
    assert turn.duration_sec < LONG_SEC / 2, "the ceiling was waited for"
    turn = await enter(terminal, "cat /srv/typed\n")
    assert (turn.transport, turn.text) == ("persistent", "$ cat /srv/typed\none\n$")


@ON_DOCKER_TOO
async def test_a_long_wait_is_no_hung_channel(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_SILENCE_SEC", 4.5)
    turn = await enter(terminal, "sleep 5.5\n")
    assert (turn.transport, turn.waits) == ("persistent", ("prompt",))


@ON_DOCKER_TOO
async def test_killing_the_other_end_from_within_is_survived(terminal: Terminal) -> None:
    turn = await enter(terminal, "pkill -KILL -f '[s]tep serve'; sleep 0.2; echo survived\n", "echo next\n")
    assert turn.text.endswith("; echo survived\nsurvived\n$ echo next\nnext\n$")
    turn = await enter(terminal, f"{_KILL_CLIENTS}; sleep 0.2; echo survived\n", "echo next\n")
    assert turn.text.endswith("; echo survived\nsurvived\n$ echo next\nnext\n$")


_SLOW_TMUX = r"""#!/bin/bash
[[ " $* " == *" -C "* ]] || exec /usr/bin/tmux "$@"
echo come >>/srv/clients
/usr/bin/tmux "$@"
sleep 0.3
echo gone >>/srv/clients
"""


@pytest.mark.local
async def test_a_client_comes_when_the_last_one_is_gone(tmp_path: Path) -> None:
    # tmux up to 3.6 crashes where a client leaves while a control client introduces itself.
    require_engine("local")
    sandbox = await start_local(tmp_path / "environment")
    install = f"printf %s {shlex.quote(_SLOW_TMUX)} >/usr/local/bin/tmux; chmod +x /usr/local/bin/tmux"
    assert (await sandbox.exec(install)).return_code == 0
    terminal = await open_terminal(sandbox, TerminalConfig(transport="portable"))
    for word in ("one", "two"):
        assert (await enter(terminal, f"echo {word}\n")).text == f"$ echo {word}\n{word}\n$"
    seen = (await read(sandbox, "cat /srv/clients")).split()
    assert len(seen) >= 5, "the session's first client, and one for each step"
    assert seen == (["come", "gone"] * len(seen))[: len(seen)]
    await terminal.close()
    await sandbox.stop(delete=True)


_SILENT_TMUX = r"""#!/bin/bash
[[ " $* " == *" new-session "* ]] || exec /usr/bin/tmux "$@"
echo started >>/srv/starts
(($(wc -l </srv/starts) > ENDS)) || exit 1
exec /usr/bin/tmux "$@"
"""


@pytest.mark.local
@pytest.mark.parametrize("transport", ["portable", "persistent"])
async def test_a_tmux_that_ends_at_its_start_without_a_word_is_started_once_more(
    tmp_path: Path, transport: Literal["portable", "persistent"]
) -> None:
    require_engine("local")
    sandbox = await start_local(tmp_path / "environment")
    script = shlex.quote(_SILENT_TMUX.replace("ENDS", "1"))
    await sandbox.exec(f"printf %s {script} >/usr/local/bin/tmux; chmod +x /usr/local/bin/tmux")
    terminal = await open_terminal(sandbox, TerminalConfig(transport=transport))
    assert (await enter(terminal, "echo one\n")).text == "$ echo one\none\n$"
    await terminal.close()
    await sandbox.exec("rm /srv/starts; sed -i 's/> 1/> 9/' /usr/local/bin/tmux")
    with pytest.raises(TerminalStartError, match="start"):
        await open_terminal(sandbox, TerminalConfig(transport=transport))
    assert (await read(sandbox, "cat /srv/starts")).split() == ["started"] * 2
    await sandbox.stop(delete=True)


# --- cancellation and ends --------------------------------------------------------------------------------------------


@ON_DOCKER_TOO
async def test_a_cancelled_turn_types_all_of_a_command_or_nothing(sandbox: Sandbox, terminal: Terminal) -> None:
    for delay_sec in (0.0, 0.001, 0.005, 0.02, 0.3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay_sec):
                await enter(terminal, "sleep 1; echo slow >>/srv/lines\n", "echo never >>/srv/lines\n")
        turn = await enter(terminal, "echo next >>/srv/lines\n", "echo last >>/srv/lines\n")
        assert turn.transport == "persistent", delay_sec
        lines = (await read(sandbox, "cat /srv/lines; rm /srv/lines")).split()
        assert lines in (["next", "last"], ["slow", "next", "last"]), delay_sec


@ON_DOCKER_TOO
async def test_what_a_cancelled_turn_left_running_can_be_interrupted(sandbox: Sandbox, terminal: Terminal) -> None:
    # Not before it runs: on its way from reading a line to running it, bash may miss an interrupt.
    left = asyncio.create_task(enter(terminal, "sleep 1008; echo slow >>/srv/lines\n", "echo never >>/srv/lines\n"))
    while not await read(sandbox, "pgrep -fx 'sleep 1008'"):  # noqa: ASYNC110 - a command that runs does not report it
        await asyncio.sleep(0.05)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    turn = await enter(terminal, "C-c", "echo next >>/srv/lines\n")
    assert turn.transport == "persistent"
    assert await read(sandbox, "cat /srv/lines") == "next"


@ON_DOCKER_TOO
async def test_a_cancelled_turn_can_be_closed_at_once(sandbox: Sandbox) -> None:
    terminal = await open_terminal(sandbox, TerminalConfig())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await enter(terminal, "sleep 1006\n")
    await terminal.close()
    assert await read(sandbox, "pgrep -fa 'sleep 100[6]$|[.]terminal-'") == ""
    assert channel_processes(os.getpid()) == []


@ON_DOCKER_TOO
async def test_closing_leaves_nothing_on_either_side(sandbox: Sandbox) -> None:
    terminal = await open_terminal(sandbox, TerminalConfig())
    assert len(channel_processes(os.getpid())) == 1
    await terminal.close()
    assert channel_processes(os.getpid()) == []
    assert await read(sandbox, "pgrep -fa '[.]terminal-'; ls -d /run/.term* 2>/dev/null") == ""


@ON_DOCKER_TOO
async def test_an_idle_terminal_costs_no_processor_time(sandbox: Sandbox, terminal: Terminal) -> None:
    await enter(terminal, "echo busy\n")
    count = "for p in $(pgrep -f '[.]terminal-|[t]erminal/step'); do cut -d ' ' -f 14,15 /proc/$p/stat; done"
    before = ""
    async with asyncio.timeout(PATIENCE_SEC):  # the end of a step may still run where every processor is busy
        while (now := await read(sandbox, count)) != before:
            before = now
            await asyncio.sleep(1)
    assert len(before.splitlines()) >= 4


_HOST = """
    import asyncio, sys
    from pathlib import Path
    from harbor_gym.config import TerminalConfig
    from harbor_gym.terminal import open_terminal
    from harbor_gym.types import Command
    from tests.helpers.sandboxes.terminal_environments import Container

    async def main():
        terminal = await open_terminal(Container(sys.argv[1], Path(sys.argv[2])), TerminalConfig())
        print("open", flush=True)
        await terminal.run([Command("sleep 1007\\n", 60.0)] if sys.argv[3] == "busy" else [])
        await asyncio.sleep(60)

    asyncio.run(main())
"""


@pytest.mark.docker
@pytest.mark.parametrize("state", ["idle", "busy"])
async def test_a_killed_host_leaves_no_channel(container: str, tmp_path: Path, state: str) -> None:
    require_engine("docker")
    argv = [sys.executable, "-c", textwrap.dedent(_HOST), container, str(tmp_path), state]
    host = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert host.stdout is not None
    assert await host.stdout.readline() == b"open\n"
    await asyncio.sleep(0.5)
    (channel,) = channel_processes(host.pid)
    host.kill()
    await host.wait()
    sandbox = Container(container, tmp_path)
    for _ in range(1200):
        if channel not in channel_processes(of=None):
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("the channel outlives its host")
    assert await read(sandbox, "for i in $(seq 1200); do pgrep -f '[s]tep serve' || break; sleep 0.05; done") == ""
    await sandbox.exec("pkill tmux")


# --- configuration ----------------------------------------------------------------------------------------------------


class Plain(Container):
    """A container into which no process can be sent but by exec."""

    exec_argv = None  # pyright: ignore[reportAssignmentType]  # takes the inherited way in away


@pytest.mark.docker
async def test_an_environment_without_a_way_in(container: str, tmp_path: Path) -> None:
    require_engine("docker")
    plain = Plain(container, tmp_path)
    terminal = await open_terminal(plain, TerminalConfig())
    assert (await enter(terminal, "echo one\n")).transport == "portable"
    await terminal.close()
    with pytest.raises(TerminalStartError, match=r"Plain offers no pipes into its sandbox.*Set transport to 'auto'"):
        await open_terminal(plain, TerminalConfig(transport="persistent"))
    assert await read(plain, "pgrep -fa '[.]terminal-'") == ""


class Mute(Container):
    """A container whose way in leads nowhere."""

    @override
    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        return ["false"]


@pytest.mark.docker
async def test_a_way_in_that_leads_nowhere(container: str, tmp_path: Path) -> None:
    require_engine("docker")
    mute = Mute(container, tmp_path)
    terminal = await open_terminal(mute, TerminalConfig())
    assert (await enter(terminal, "echo one\n")).transport == "portable"
    await terminal.close()
    with pytest.raises(TerminalStartError, match="does not answer"):
        await open_terminal(mute, TerminalConfig(transport="persistent"))


async def test_pipes_that_lead_nowhere(sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    pipes = sandbox.exec_pipes

    async def mute(command: str, **options: Any) -> PipedCommand:
        return await pipes("false", **options)

    monkeypatch.setattr(sandbox, "exec_pipes", mute)
    terminal = await open_terminal(sandbox, TerminalConfig())
    assert (await enter(terminal, "echo one\n")).transport == "portable"
    await terminal.close()
    assert await read(sandbox, "ls -d /run/.terminal-* /dev/shm/.terminal-*") == ""
    with pytest.raises(TerminalStartError, match="does not answer"):
        await open_terminal(sandbox, TerminalConfig(transport="persistent"))


@pytest.mark.parametrize("instead", ["sleep 1009", "while :; do echo; sleep 0.1; done"])
async def test_a_new_channel_that_does_not_become_ready_holds_a_step_up_only_briefly(
    sandbox: LocalSandbox, terminal: Terminal, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes = sandbox.exec_pipes

    async def replaced(command: str, **options: Any) -> PipedCommand:
        return await pipes(instead, **options)

    with monkeypatch.context() as patched:
        patched.setattr(sandbox, "exec_pipes", replaced)
        patched.setattr(persistent, "_OPEN_TIMEOUT_SEC", 10 * PATIENCE_SEC)
        patched.setattr(persistent, "_REOPEN_TIMEOUT_SEC", 0.5)
        kill_channels()
        for _ in range(2):
            assert (await enter(terminal, "echo one\n")).transport == "portable"
    assert (await enter(terminal, "echo one\n")).transport == "persistent"
    assert await read(sandbox, "pgrep -f '[s]leep (1009|0.1)'") == ""


async def test_the_sandbox_makes_the_sessions_directory_where_its_user_may(sandbox: LocalSandbox) -> None:
    await sandbox.exec(
        "id dev || useradd dev; printf '#!/bin/sh\\necho x >>/srv/made; exec /usr/bin/mkdir \"$@\"' >/srv/mkdir"
    )
    await sandbox.exec(
        "chmod 755 /srv/mkdir; touch /srv/made; chmod 666 /srv/made; ln -s /srv/mkdir /usr/local/bin/mkdir"
    )
    for user, found, calls in (("root", "/run/.terminal-… root 700", 0), ("dev", "/dev/shm/.terminal-… dev 700", 1)):
        terminal = await open_terminal(sandbox, TerminalConfig(), user=user)
        listed = await read(sandbox, "stat -c '%n %U %a' /run/.terminal-* /dev/shm/.terminal-* 2>/dev/null")
        assert re.sub("-[0-9a-f]+ ", "-… ", listed) == found
        assert len((await read(sandbox, "cat /srv/made")).split()) == calls
        await terminal.close()
        assert await read(sandbox, "ls -d /run/.terminal-* /dev/shm/.terminal-*") == ""
    await sandbox.exec("rm /usr/local/bin/mkdir")


async def test_whatever_pipes_raise_is_the_sandboxs_failure(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(command: str, **options: Any) -> None:
        raise ValueError("no more pipes")

    monkeypatch.setattr(sandbox, "exec_pipes", refuse)
    with pytest.raises(SandboxLostError, match="ValueError: no more pipes"):
        await open_terminal(sandbox, TerminalConfig())


@pytest.mark.parametrize("transport", ["portable", "persistent"])
async def test_exact_waits_sleep_the_whole_duration(sandbox: Sandbox, transport: str) -> None:
    config = TerminalConfig.model_validate({"transport": transport, "wait": "exact"})
    terminal = await open_terminal(sandbox, config)
    started = time.monotonic()
    turn = await enter(terminal, "echo one\n", "sleep 50\n", "C-c", wait_sec=1.0)
    assert time.monotonic() - started >= 3.0
    assert turn.waits == ("prompt", "deadline", "prompt")
    assert turn.text == "[exit code 130]\n$ echo one\none\n$ sleep 50\n^C\n$"
    assert (await enter(terminal, "sleep 1\n", wait_sec=0.1)).text == "[still running after 0.1 s]\n$ sleep 1"
    assert (await enter(terminal, "vi\n", wait_sec=4.0)).waits == ("fullscreen",)
    await terminal.close()


@ON_DOCKER_TOO
async def test_both_transports_show_the_same_and_no_host_name(sandbox: Sandbox) -> None:
    prompt = shlex.quote(r"PS1='[\u@\h \H \\h \W]# '")
    await sandbox.exec(f"mv ~/.bashrc ~/.bashrc.old; printf '%s\\n' {prompt} >~/.bashrc")
    try:
        texts: list[str] = []
        for transport in ("portable", "persistent"):
            terminal = await open_terminal(sandbox, TerminalConfig.model_validate({"transport": transport}))
            texts.append((await terminal.run([])).text)
            await terminal.close()
    finally:
        await sandbox.exec("mv ~/.bashrc.old ~/.bashrc")
    assert texts == [r"[root@sandbox sandbox \h srv]#"] * 2
