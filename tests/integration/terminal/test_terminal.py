"""The terminal on every screen a policy can get itself into, in every sandbox that runs here."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.config import TerminalConfig
from harbor_gym.errors import SandboxLostError, SandboxTimeoutError, TerminalStartError
from harbor_gym.terminal import Terminal, open_terminal
from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.terminal_environments import (
    KINDS,
    ON_DOCKER_TOO,
    Container,
    LocalSandbox,
    Sandbox,
    Transport,
    enter,
    remove_container,
    running_sandbox,
    start_container,
    start_local,
)

_FLOOR_SEC = 10.0
"""A floor that outlasts a short command, also on a loaded machine."""


@pytest.fixture(params=KINDS[:1])
async def sandbox(
    request: pytest.FixtureRequest, tmp_path: Path, transport: Transport, nothing_left: None
) -> AsyncGenerator[Sandbox]:
    async with running_sandbox(request, tmp_path, clean="rm -rf /srv/*", transport=transport) as entered:
        yield entered


@pytest.fixture
async def local(tmp_path: Path, transport: Transport, nothing_left: None) -> AsyncGenerator[LocalSandbox]:
    require_engine("local")
    sandbox = await start_local(tmp_path / "environment")
    sandbox.transport = transport
    yield sandbox
    await sandbox.stop(delete=True)


@pytest.fixture
async def terminal(sandbox: Sandbox) -> AsyncGenerator[Terminal]:
    opened = await open_session(sandbox)
    assert (await opened.run([])).text == "$"
    yield opened
    await opened.close()


async def open_session(sandbox: Sandbox, *, user: str | None = None, **settings: int | float | str) -> Terminal:
    config = TerminalConfig.model_validate({"transport": sandbox.transport, **settings})
    return await open_terminal(sandbox, config, user=user)


async def read(sandbox: Sandbox, command: str) -> str:
    return ((await sandbox.exec(command)).stdout or "").strip()


# --- at the prompt ----------------------------------------------------------------------------------------------------


@ON_DOCKER_TOO
async def test_a_command_costs_one_exec_or_none_and_shows_what_is_new(sandbox: Sandbox, terminal: Terminal) -> None:
    before = sandbox.execs
    turn = await enter(terminal, "echo one\n")
    assert sandbox.execs - before == (1 if sandbox.transport == "portable" else 0)
    assert (turn.text, turn.waits, turn.exit_code, turn.ended) == ("$ echo one\none\n$", ("prompt",), 0, False)
    assert (turn.omitted_bytes, turn.transport) == (0, sandbox.transport)
    assert (await enter(terminal, "echo two\n")).text == "$ echo two\ntwo\n$"


@ON_DOCKER_TOO
async def test_opening_takes_one_exec_or_none(sandbox: Sandbox) -> None:
    before = sandbox.execs
    terminal = await open_session(sandbox)
    serves_itself = isinstance(sandbox, LocalSandbox) and sandbox.transport == "persistent"
    assert sandbox.execs == before + (0 if serves_itself else 1)
    await terminal.close()


@ON_DOCKER_TOO
async def test_it_starts_in_the_working_directory_with_the_configured_size(sandbox: Sandbox) -> None:
    terminal = await open_session(sandbox, columns=100, rows=30)
    assert (await enter(terminal, "pwd; stty size; umask\n")).text == "$ pwd; stty size; umask\n/srv\n30 100\n0022\n$"
    client = "tmux -S /run/.terminal-*/socket -C attach-session -t main"
    await read(sandbox, f"{{ echo refresh-client -C 50,10; sleep 0.5; }} | {client}")
    assert (await enter(terminal, "stty size\n")).text == "$ stty size\n30 100\n$", "no other client changes the size"
    await terminal.close()


async def test_a_failure_is_reported_in_the_header(terminal: Terminal) -> None:
    turn = await enter(terminal, "(exit 3)\n")
    assert (turn.text, turn.exit_code) == ("[exit code 3]\n$ (exit 3)\n$", 3)


async def test_a_slow_command_is_waited_for(terminal: Terminal) -> None:
    turn = await enter(terminal, "sleep 0.3; echo done\n")
    assert (turn.text, turn.waits) == ("$ sleep 0.3; echo done\ndone\n$", ("prompt",))


async def test_the_floor_rescues_a_batch_whose_first_command_is_slow(sandbox: Sandbox) -> None:
    terminal = await open_session(sandbox, min_wait_sec=_FLOOR_SEC)
    turn = await enter(terminal, "sleep 0.4; X=1\n", "echo X=$X\n", wait_sec=0.0)
    await terminal.close()
    assert turn.waits == ("prompt", "prompt")
    assert turn.text.endswith("$ echo X=$X\nX=1\n$")


async def test_keys_that_a_lines_reader_is_not_woken_by_wait_for_their_echo(terminal: Terminal) -> None:
    """The echo is the work of a thread of the kernel's, which is late where every processor is busy."""
    await enter(terminal, "cat\n")
    assert (await enter(terminal, "part")).shown[-1].endswith("part")
    await enter(terminal, "ial\n")
    await enter(terminal, "\x03")
    await enter(terminal, "stty -echo; cat\n")
    begun = time.monotonic()
    turn = await enter(terminal, "part")
    assert turn.waits == ("tty_read",)
    assert time.monotonic() - begun > 0.1, "nothing was drawn: it may still be on its way"


async def test_the_deadline_is_reported_and_the_command_goes_on(sandbox: Sandbox, terminal: Terminal) -> None:
    turn = await enter(terminal, "until [ -e go ]; do sleep 0.1; done; echo late\n", wait_sec=3.0)
    assert (turn.waits, turn.exit_code) == (("deadline",), None)
    assert turn.text == "[still running after 3.0 s]\n$ until [ -e go ]; do sleep 0.1; done; echo late"
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(enter(terminal, ""))
        await sandbox.exec("until pgrep -f '[/]step (step|serve) '; do sleep 0.1; done")
        await asyncio.sleep(1.5)  # a step that begins behind the loop waits for something else
        assert not waiting.done()
        await sandbox.exec("touch /srv/go")
    turn = waiting.result()
    assert (turn.text, turn.waits) == ("late\n$", ("prompt",))


async def test_the_wait_is_capped(sandbox: Sandbox) -> None:
    terminal = await open_session(sandbox, max_wait_sec=1.0)
    assert (await enter(terminal, "sleep 20\n", wait_sec=1e9)).text.startswith("[still running after 1.0 s]")
    await terminal.close()


async def test_an_odd_duration_is_the_floor(sandbox: Sandbox) -> None:
    terminal = await open_session(sandbox, min_wait_sec=_FLOOR_SEC)
    for wait_sec in (-5.0, 0.0, float("nan")):
        assert (await enter(terminal, "sleep 0.3\n", wait_sec=wait_sec)).waits == ("prompt",), wait_sec
    await terminal.close()


async def test_empty_keystrokes_at_the_prompt_wait_for_background_output(sandbox: Sandbox, terminal: Terminal) -> None:
    await enter(terminal, "(until [ -e go ]; do sleep 0.1; done; echo background) &\n")
    await sandbox.exec("touch /srv/go")
    turn = await enter(terminal, "", wait_sec=3.0)
    assert (turn.text, turn.waits) == ("$ background", ("deadline",))


async def test_two_commands_in_one_string_are_both_waited_for(terminal: Terminal) -> None:
    turn = await enter(terminal, "sleep 0.3\nsleep 0.3; echo both\n")
    assert turn.text.endswith("\nboth\n$")


async def test_a_busy_shell_is_not_at_its_prompt(terminal: Terminal) -> None:
    turn = await enter(terminal, "true\nfor ((i = 0; i < 300000; i++)); do :; done; echo counted\n")
    assert turn.text.endswith("\ncounted\n$")


async def test_typing_without_enter_does_not_wait_for_a_command(terminal: Terminal) -> None:
    turn = await enter(terminal, "echo ab")
    assert (turn.text, turn.waits) == ("$ echo ab", ("tty_read",))
    assert (await enter(terminal, "c\n")).text == "$ echo abc\nabc\n$"


# --- keys -------------------------------------------------------------------------------------------------------------


async def test_a_running_command_is_interrupted(terminal: Terminal) -> None:
    for keystrokes in ("C-c", "C-c\n", "\x03"):
        await enter(terminal, "sleep 100\n", wait_sec=1.0)
        turn = await enter(terminal, keystrokes)
        assert (turn.text, turn.waits, turn.exit_code) == ("[exit code 130]\n^C\n$", ("prompt",), 130), keystrokes


@ON_DOCKER_TOO
async def test_a_flood_is_interrupted(terminal: Terminal) -> None:
    flood = await enter(terminal, "yes\n", wait_sec=1.0)
    assert flood.waits == ("deadline",)
    assert flood.omitted_bytes > 0
    assert len(flood.text.encode()) <= 10_000
    turn = await enter(terminal, "C-c")
    assert turn.waits == ("prompt",)
    assert turn.text.startswith("[exit code 130]\n")
    assert turn.text.endswith("^C\n$")


_TEXTS = ("a;", ";", "-l", "0x41", "'\"`$\\", "é 漢字 🎉", "a\ttab", "#{pane_id}", "%0", "~", "C-cc", "Enter!", " ")


@ON_DOCKER_TOO
async def test_bytes_arrive_as_they_are(sandbox: Sandbox, terminal: Terminal) -> None:
    for number, text in enumerate(_TEXTS):
        command = f"stty -icanon -echo; head -c {len(text.encode())} >/srv/got.{number}; stty sane\n"
        await enter(terminal, command, wait_sec=1)
        await enter(terminal, text)
    got = await read(
        sandbox, f"for n in {{0..{len(_TEXTS) - 1}}}; do od -An -tx1 -v /srv/got.$n | tr -d ' \\n'; echo; done"
    )
    assert dict(zip(_TEXTS, got.splitlines(), strict=True)) == {text: text.encode().hex() for text in _TEXTS}


async def test_arrows_reach_the_line_editor(terminal: Terminal) -> None:
    await enter(terminal, "echo again\n")
    turn = await enter(terminal, "Up", "Enter")
    assert turn.text == "$ echo again\nagain\n$"


@ON_DOCKER_TOO
async def test_a_heredoc_arrives_intact(sandbox: Sandbox, terminal: Terminal) -> None:
    for lines, execs in ((10, 1), (900, 1), (1500, 3)):
        body = "".join(f"{number:05} {'x' * 60} ;$HOME\n" for number in range(lines))
        before = sandbox.execs
        turn = await enter(terminal, f"cat >/srv/heredoc <<'END'\n{body}END\n", "echo $?\n", wait_sec=60.0)
        assert sandbox.execs - before == (execs if sandbox.transport == "portable" else 0), lines
        assert turn.text.endswith("$ echo $?\n0\n$"), lines
        assert await read(sandbox, "cat /srv/heredoc") == body.strip()


@ON_DOCKER_TOO
@pytest.mark.slow
async def test_a_megabyte_of_keystrokes_arrives(sandbox: Sandbox, terminal: Terminal) -> None:
    line = "y" * 99 + "\n"
    await enter(terminal, "stty -echo; cat >/srv/megabyte\n", line * 10_000, "C-d", wait_sec=60.0)
    assert await read(sandbox, "md5sum </srv/megabyte; wc -c </srv/megabyte") == await read(
        sandbox, f"yes {'y' * 99} | head -n 10000 | md5sum; echo 1000000"
    )


async def test_what_cannot_be_typed_is_refused_in_words(terminal: Terminal) -> None:
    cases = {"bytes of keystrokes, at most": "x" * 3_000_000, "NUL": "a\0", "surr": "\ud83d"}
    for reason, keystrokes in cases.items():
        turn = await enter(terminal, "echo before\n", keystrokes)
        assert turn.text.startswith("[nothing was typed: "), reason
        assert reason in turn.text
        assert (await terminal.run([])).text == "$"


# --- programs ---------------------------------------------------------------------------------------------------------


async def test_vi_opens_edits_and_quits(sandbox: Sandbox, terminal: Terminal) -> None:
    turn = await enter(terminal, "vi /srv/note\n")
    assert turn.waits == ("fullscreen",)
    assert turn.text.startswith("[full-screen program]\n")
    assert '"/srv/note" [New File]' in turn.text
    turn = await enter(terminal, "ihello\nworld")
    assert turn.text.startswith("[full-screen program]\nhello\nworld\n~\n")
    turn = await enter(terminal, "Escape", ":wq\n")
    assert (turn.waits, turn.text) == (("fullscreen", "prompt"), "$ vi /srv/note\n$")
    assert await read(sandbox, "cat /srv/note") == "hello\nworld"


async def test_less_pages(terminal: Terminal) -> None:
    assert (await enter(terminal, "seq 500 | less\n")).text.startswith("[full-screen program]\n1\n2\n")
    assert (await enter(terminal, " ")).text.startswith("[full-screen program]\n40\n41\n")
    assert (await enter(terminal, "q")).text == "$ seq 500 | less\n$"


async def test_output_before_a_full_screen_program_is_shown_after_it(terminal: Terminal) -> None:
    assert (await enter(terminal, "seq 100; vi\n")).waits == ("fullscreen",)
    turn = await enter(terminal, ":q\n")
    assert turn.text == "$ seq 100; vi\n" + "".join(f"{n}\n" for n in range(1, 101)) + "$"


@ON_DOCKER_TOO
async def test_python_answers_at_its_own_prompt(terminal: Terminal) -> None:
    turn = await enter(terminal, "python3 -q\n")
    assert (turn.text, turn.waits) == ("[waiting for input]\n$ python3 -q\n>>>", ("tty_read",))
    turn = await enter(terminal, "import time; time.sleep(0.4); print(6 * 7)\n")
    assert turn.text == "[waiting for input]\n>>> import time; time.sleep(0.4); print(6 * 7)\n42\n>>>"
    assert (await enter(terminal, "C-d")).waits == ("prompt",)


@ON_DOCKER_TOO
async def test_a_secret_is_read(terminal: Terminal) -> None:
    turn = await enter(terminal, "read -s -p 'Password: ' X\n")
    assert turn.text == "[waiting for input]\n$ read -s -p 'Password: ' X\nPassword:"
    assert (await enter(terminal, "hunter2\n")).text == "Password: $"
    assert (await enter(terminal, "echo $X\n")).text.endswith("\nhunter2\n$")


async def test_a_shell_in_the_shell_answers(terminal: Terminal) -> None:
    assert (await enter(terminal, "bash --norc\n")).waits == ("tty_read",)
    assert "\ninner\n" in (await enter(terminal, "echo inner\n")).text
    assert (await enter(terminal, "exit\n")).waits == ("prompt",)


async def test_an_open_quote_waits_for_input(terminal: Terminal) -> None:
    assert (await enter(terminal, "echo 'a\n")).text == "[waiting for input]\n$ echo 'a\n>"
    assert (await enter(terminal, "b'\n")).text == "> b'\na\nb\n$"


# --- text -------------------------------------------------------------------------------------------------------------


async def test_ten_thousand_lines_are_cut_with_an_honest_count(terminal: Terminal) -> None:
    command = "seq -f '%-60.0f' 10000"  # spaces at the end of a line are neither shown nor counted
    turn = await enter(terminal, f"{command}\n")
    assert len(turn.text.encode()) <= 10_000
    match = re.search(r"^\[\.\.\. (\d+) lines \((\d+) bytes\) omitted \.\.\.\]$", turn.text, re.MULTILINE)
    assert match
    head, tail = turn.text[: match.start()].splitlines(), turn.text[match.end() + 1 :].splitlines()
    assert head[:2] == [f"$ {command}", "1"]
    assert tail[-2:] == ["10000", "$"]
    first, last = int(head[-1]) + 1, int(tail[0]) - 1
    omitted = [str(number) for number in range(first, last + 1)]
    assert int(match[1]) == len(omitted)
    assert int(match[2]) == turn.omitted_bytes == sum(len(line) + 1 for line in omitted)


async def test_more_than_the_scrollback_is_reported(sandbox: Sandbox) -> None:
    terminal = await open_session(sandbox, history_lines=1000)
    turn = await enter(terminal, "seq 5000\n")
    assert turn.text.startswith("[earlier lines lost: the scrollback holds 1000]\n")
    assert turn.text.endswith("\n5000\n$")
    assert (await enter(terminal, "echo next\n")).text == "$ echo next\nnext\n$"
    await terminal.close()


async def test_a_screenful_of_the_last_step_is_not_shown_again(terminal: Terminal) -> None:
    for start in (1, 30, 59, 200, 400):
        numbers = range(start, start + 29)
        turn = await enter(terminal, f"seq {numbers[0]} {numbers[-1]}\n")
        assert turn.text.splitlines() == [f"$ seq {numbers[0]} {numbers[-1]}", *map(str, numbers), "$"]


async def test_a_wrapped_line_is_one_line(terminal: Terminal) -> None:
    line = "".join(f"<{number:04}>" for number in range(200))
    turn = await enter(terminal, f"echo '{line}'\n")
    assert turn.text == f"$ echo '{line}'\n{line}\n$"
    assert (await enter(terminal, "echo next\n")).text == "$ echo next\nnext\n$"


async def test_wide_characters(terminal: Terminal) -> None:
    line = "漢字かな🎉é" * 30
    turn = await enter(terminal, f"echo {line}\n")
    # tmux joins a row whose last cell was too narrow for the next character with a space.
    assert turn.text.replace(" ", "") == f"$echo{line}\n{line}\n$"


async def test_clear_shows_the_new_screen_alone(terminal: Terminal) -> None:
    await enter(terminal, "seq 20\n")
    assert (await enter(terminal, "clear; seq 30\n")).text.splitlines()[-31:] == [*map(str, range(1, 31)), "$"]
    await enter(terminal, "clear\n")
    assert (await enter(terminal, "seq 3\n")).text == "$ seq 3\n1\n2\n3\n$"


async def test_a_wiped_scrollback_hides_nothing_new(terminal: Terminal) -> None:
    for wipe in ("printf '\\033[H\\033[2J\\033[3J'", "printf '\\033c'", "TERM=xterm clear"):
        for _ in range(3):
            turn = await enter(terminal, f"{wipe}; seq 5\n")
            assert turn.text.splitlines()[-6:] == ["1", "2", "3", "4", "5", "$"], wipe


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_noise_is_text(terminal: Terminal, seed: int) -> None:
    code = f"import random, sys; sys.stdout.buffer.write(random.Random({seed}).randbytes(3000))"
    turn = await enter(terminal, f"python3 -c '{code}'\n", wait_sec=2.0)
    assert turn.text.encode()
    # Noise can open a control string, which tmux gives up after five seconds.
    await enter(terminal, "C-c", "", wait_sec=5.5)
    await enter(terminal, "reset\n", wait_sec=3.0)
    assert (await enter(terminal, "echo fine\n")).text.endswith("fine\n$")


# --- the policy's own shell -------------------------------------------------------------------------------------------


_ENDS = {
    "exit\n": "[session ended, exit code 0]",
    "exit 7\n": "[session ended, exit code 7]",
    "C-d": "[session ended, exit code 0]",
    "kill -9 $$\n": "[session ended]",
    "tmux kill-server\n": "[session ended]",
    "exec true\n": "[session ended, exit code 0]",
}


@ON_DOCKER_TOO
async def test_an_ended_session_is_an_outcome(sandbox: Sandbox) -> None:
    for keystrokes, header in _ENDS.items():
        terminal = await open_session(sandbox)
        turn = await enter(terminal, keystrokes, "echo never\n")
        assert (turn.ended, turn.waits[-1]) == (True, "ended"), keystrokes
        assert turn.text.splitlines()[0] == header, keystrokes
        assert "Pane is dead" not in turn.text
        again = await enter(terminal, "ls\n")
        assert (again.ended, again.waits) == (True, ("ended",)), keystrokes
        await terminal.close()


@pytest.mark.local
@pytest.mark.parametrize("keystrokes", ["kill -9 -1\n", "rm -f /usr/bin/*\n", "rm -rf --no-preserve-root /usr /run\n"])
async def test_wrecking_the_sandbox_ends_the_session(local: LocalSandbox, keystrokes: str) -> None:
    terminal = await open_session(local)
    turn = await enter(terminal, keystrokes, "echo never\n")
    assert (turn.ended, turn.waits[-1]) == (True, "ended")
    await terminal.close()


async def test_the_socket_survives_a_swept_tmp(terminal: Terminal) -> None:
    turn = await enter(terminal, "rm -rf /tmp/* /tmp/.[!.]* /run/* /var/tmp/*; echo swept\n")
    assert turn.text.endswith("\nswept\n$")
    assert (await enter(terminal, "echo alive\n")).text == "$ echo alive\nalive\n$"


_SETTINGS = (
    "set -o noclobber",
    "set -u",
    "unset PROMPT_COMMAND",
    "exec bash",
    "shopt -s extdebug",
    "cd /; PS1='\\w> '",
)


async def test_settings_of_the_policy_do_no_harm(sandbox: Sandbox) -> None:
    for setting in _SETTINGS:
        terminal = await open_session(sandbox)
        await enter(terminal, f"{setting}\n", wait_sec=1.0)
        for word in ("one", "two"):
            assert f"\n{word}\n" in (await enter(terminal, f"echo {word}\n", wait_sec=2.0)).text, setting
        await terminal.close()


async def test_the_users_prompt_command_still_runs_and_sees_the_exit_code(sandbox: Sandbox) -> None:
    await sandbox.exec("cp ~/.bashrc ~/.bashrc.old; echo 'PROMPT_COMMAND=\"LAST=\\$?\"; ALIAS=yes' >>~/.bashrc")
    try:
        terminal = await open_session(sandbox)
        await enter(terminal, "(exit 9)\n")
        assert (await enter(terminal, "echo $LAST $ALIAS\n")).text == "$ echo $LAST $ALIAS\n9 yes\n$"
        await terminal.close()
    finally:
        await sandbox.exec("mv ~/.bashrc.old ~/.bashrc")


@ON_DOCKER_TOO
async def test_a_plain_user_has_a_terminal(sandbox: Sandbox) -> None:
    terminal = await open_session(sandbox, user="agent")
    assert (await enter(terminal, "whoami; echo ~\n")).text == "$ whoami; echo ~\nagent\n/home/agent\n$"
    assert (await enter(terminal, "cat >/dev/null <<X\n" + "y\n" * 2000 + "X\n", "echo $?\n")).text.endswith("\n0\n$")
    await terminal.close()


# --- the end ----------------------------------------------------------------------------------------------------------


@ON_DOCKER_TOO
async def test_closing_stops_what_the_policy_started(sandbox: Sandbox) -> None:
    terminal = await open_session(sandbox)
    await enter(
        terminal,
        "nohup sleep 1001 >/dev/null 2>&1 &\n",
        "setsid sleep 1002 & disown -a\n",
        "(setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1003; done' &)\n",
        "exec 5>&1; sleep 1004\n",
        wait_sec=1.0,
    )
    await read(sandbox, "until [ $(pgrep -c -f 'sleep 100[1-4]$') = 4 ]; do sleep 0.05; done")
    directory = await read(sandbox, "ls -dt /run/.terminal-* | head -n 1")
    await terminal.close()
    await terminal.close()
    assert await read(sandbox, f"pgrep -fa 'sleep 100[1-4]$|{directory}/[s]ocket'; ls -d {directory} 2>/dev/null") == ""


@ON_DOCKER_TOO
async def test_closing_works_without_the_sessions_files(sandbox: Sandbox) -> None:
    terminal = await open_session(sandbox)
    await enter(terminal, "nohup sleep 1005 >/dev/null 2>&1 &\n", "rm -rf /run/.terminal-*\n", wait_sec=30.0)
    await read(sandbox, "until [ $(pgrep -c -f 'sleep 100[5]$') = 1 ]; do sleep 0.05; done")
    await terminal.close()
    assert await read(sandbox, "pgrep -fa 'sleep 100[5]$|[.]terminal-'") == ""


async def test_two_terminals_do_not_meddle(sandbox: Sandbox) -> None:
    one, two = [await open_session(sandbox) for _ in range(2)]
    async with asyncio.TaskGroup() as group:
        first = group.create_task(enter(one, "sleep 0.2; echo first\n"))
        second = group.create_task(enter(two, "sleep 0.1; echo second\n"))
    assert first.result().text.endswith("\nfirst\n$")
    assert second.result().text.endswith("\nsecond\n$")
    await one.close()
    assert (await enter(two, "echo alive\n")).text.endswith("\nalive\n$")
    await two.close()


async def test_keys_can_be_read_as_terminus_2_has_them_read(sandbox: Sandbox) -> None:
    terminal = await open_session(sandbox, keys="harbor")
    turn = await enter(terminal, "echo 'a;b' \"$HOME\" é one;", "Enter")
    assert "\na;b /root é one\n" in turn.text, "tmux takes a final semicolon for its own"
    turn = await enter(terminal, "echo ", "0x41", "Enter")
    assert "\nA\n" in turn.text, "a hexadecimal number is a character"
    turn = await enter(terminal, "echo one\necho two\n")
    assert "\none\n" in turn.text
    assert "\ntwo\n" in turn.text
    assert (await enter(terminal, "sleep 30\n", wait_sec=0.5)).waits == ("deadline",)
    assert (await enter(terminal, "C-c")).waits == ("prompt",)
    await terminal.close()


@ON_DOCKER_TOO
@pytest.mark.parametrize(("program", "words"), [("tmux", "no tmux"), ("bash", "no bash")])
async def test_a_missing_program_that_can_not_be_brought_along_is_named(
    sandbox: Sandbox, program: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = "sh printf rm rmdir" if program == "bash" else "bash sh printf rm rmdir"
    links = f"mkdir -p /srv/{program}; for p in {there}; do ln -sf $(which $p) /srv/{program}; done"

    def without(run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        def run_without(command: str, **kwargs: Any) -> Awaitable[Any]:
            return run(f"{links}; PATH=/srv/{program}; {command}", **kwargs)

        return run_without

    for name in {"exec", "exec_pipes"} & set(dir(sandbox)):
        monkeypatch.setattr(sandbox, name, without(getattr(sandbox, name)))
    with pytest.raises(TerminalStartError, match=words) as caught:
        await open_session(sandbox)
    advice = str(caught.value).partition("apt-get install -y ")[2]
    assert program in advice.split("`")[0].split()
    monkeypatch.undo()
    assert await read(sandbox, "ls -d /run/.term* 2>/dev/null") == ""


@ON_DOCKER_TOO
async def test_a_shell_that_ends_at_once_is_no_terminal(sandbox: Sandbox) -> None:
    await sandbox.exec("cp ~/.bashrc ~/.bashrc.old; echo 'echo broken; exit 1' >>~/.bashrc")
    try:
        # The last output of bash is not asserted: tmux can lose the output of a process that ends at once.
        with pytest.raises(TerminalStartError, match=r"~/.bashrc may exit"):
            await open_session(sandbox)
    finally:
        await sandbox.exec("mv ~/.bashrc.old ~/.bashrc")
    assert await read(sandbox, "pgrep -x tmux; ls -d /run/.term* 2>/dev/null") == ""


@pytest.mark.docker
async def test_a_lost_container_is_an_error(tmp_path: Path) -> None:
    require_engine("docker")
    name = start_container(tmp_path)
    try:
        terminal = await open_terminal(Container(name, tmp_path), TerminalConfig())
    finally:
        remove_container(name)
    with pytest.raises(SandboxLostError, match=name):
        await enter(terminal, "ls\n")


@pytest.mark.local
async def test_a_lost_local_sandbox_is_an_error(local: LocalSandbox) -> None:
    terminal = await open_session(local)
    await local.stop(delete=True)
    with pytest.raises(SandboxLostError):
        await enter(terminal, "ls\n")
    with pytest.raises(SandboxLostError):
        await terminal.close()
    await terminal.close()


async def test_a_hung_exec_is_a_timeout(local: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = await open_terminal(local, TerminalConfig(transport="portable"))
    run = local.exec

    async def hang(command: str, **kwargs: Any) -> Any:
        return await run("sleep 100", timeout_sec=1)

    with monkeypatch.context() as patch:
        patch.setattr(local, "exec", hang)
        with pytest.raises(SandboxTimeoutError, match="run a terminal step"):
            await enter(terminal, "ls\n")
    await terminal.close()
