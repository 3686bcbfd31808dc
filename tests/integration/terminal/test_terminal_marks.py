"""The marks in the prompts: they change nothing for the shell, and where they fall silent the kernel speaks."""

import base64
import shlex
import textwrap
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, override

import pytest
from harbor.environments.base import ExecResult

from harbor_gym.config import TerminalConfig
from harbor_gym.terminal import Terminal, open, open_terminal
from harbor_gym.terminal.scripts import read_script
from tests.helpers.sandboxes.terminal_environments import (
    Container,
    LocalSandbox,
    enter,
    running_container,
)

pytestmark = pytest.mark.local


@pytest.fixture(params=["portable", "persistent"])
def config(request: pytest.FixtureRequest) -> TerminalConfig:
    return TerminalConfig(transport=request.param)


@pytest.fixture
async def terminal(sandbox: LocalSandbox, config: TerminalConfig) -> AsyncGenerator[Terminal]:
    opened = await open_terminal(sandbox, config)
    assert (await opened.run([])).text == "$"
    yield opened
    await opened.close()


async def put(sandbox: LocalSandbox, name: str, text: str) -> None:
    content = base64.b64encode(textwrap.dedent(text).encode()).decode()
    await sandbox.exec(f"echo {content} | base64 -d >/srv/{name}")


# --- the shell is as it was -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["test -f /nope && echo yes", "if false; then :; fi; [ -f /nope ] && :"])
async def test_a_list_that_fails_under_set_e_does_not_end_the_session(terminal: Terminal, failing: str) -> None:
    await enter(terminal, "set -e\n")
    turn = await enter(terminal, f"{failing}\n", "echo alive\n")
    assert (turn.ended, turn.waits) == (False, ("prompt", "prompt"))
    assert turn.text.endswith("\nalive\n$")


async def test_an_interrupt_under_set_e_does_not_end_the_session(terminal: Terminal) -> None:
    await enter(terminal, "set -e\n")
    turn = await enter(terminal, "echo half", "C-c", "echo alive\n")
    assert (turn.ended, turn.waits[1:]) == (False, ("prompt", "prompt"))
    assert turn.text.endswith("\nalive\n$")


async def test_traps_fire_for_the_policys_commands_alone(terminal: Terminal) -> None:
    await enter(terminal, "trap 'echo D' DEBUG\n")
    assert (await enter(terminal, "true\n")).text == "$ true\nD\n$"
    await enter(terminal, "trap - DEBUG; trap 'echo E' ERR\n")
    turn = await enter(terminal, "false\n")
    assert (turn.text, turn.exit_code) == ("[exit code 1]\n$ false\nE\n$", 1)
    assert (await enter(terminal, "true\n")).text == "$ true\n$"


async def test_tracing_shows_the_policys_commands_alone(terminal: Terminal) -> None:
    await enter(terminal, "set -x\n")
    turn = await enter(terminal, "false\n")
    assert (turn.text, turn.exit_code) == ("[exit code 1]\n$ false\n+ false\n$", 1)


@pytest.mark.parametrize(
    "setting",
    ["PS1='> '", "PROMPT_COMMAND=true", "unset PS0", "set -u; unset PS1; PS1='> '", ". ~/.bashrc", "set -o posix"],
)
async def test_prompts_that_the_policy_changes_report_the_exit_code(terminal: Terminal, setting: str) -> None:
    await enter(terminal, f"{setting}\n")
    turn = await enter(terminal, "(exit 7)\n")
    assert (turn.waits, turn.exit_code) == (("prompt",), 7)


@pytest.mark.parametrize(
    "setting", ["unset PROMPT_COMMAND; PS1='> '", "shopt -u promptvars; PS1='> '", "exec bash --norc"]
)
async def test_without_usable_marks_the_kernel_reports_it(terminal: Terminal, setting: str) -> None:
    await enter(terminal, f"{setting}\n")
    turn = await enter(terminal, "sleep 0.3; echo done\n")
    assert (turn.waits, turn.exit_code) == (("tty_read",), None)
    assert "\ndone\n" in turn.text


async def test_the_exit_code_is_the_one_before_the_prompts_own_commands(terminal: Terminal) -> None:
    await enter(terminal, "PS1='$(true)> '\n")
    assert (await enter(terminal, "(exit 9)\n")).exit_code == 9


# --- forged marks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mark", ["A B", "{nonce} 1 9 p 999", "{nonce} 1 p", "{nonce} x y p z", "{nonce} 1 99 p -1", "|||"]
)
async def test_a_bad_mark_is_no_exit_code(sandbox: LocalSandbox, terminal: Terminal, mark: str) -> None:
    nonce = "$(ls -d /run/.terminal-* | sed 's/.*-/@/')"
    text = mark.replace("{nonce}", nonce)
    turn = await enter(terminal, f'printf "\\033]7;{text}\\a"; sleep 0.5; exec sh\n', wait_sec=3.0)
    assert turn.exit_code is None
    assert (await enter(terminal, "echo on\n", wait_sec=3.0)).text.endswith("on\n#")


async def test_redefined_builtins_forge_nothing(terminal: Terminal) -> None:
    await enter(terminal, "printf() { echo X; }; echo() { builtin echo 'A B'; }\n")
    turn = await enter(terminal, "(exit 3)\n")
    assert (turn.waits, turn.exit_code) == (("prompt",), 3)


async def test_renaming_the_window_over_and_over_ends_no_wait_and_hides_no_prompt(terminal: Terminal) -> None:
    await enter(terminal, "while :; do printf '\\033kx\\033\\\\'; sleep 0.002; done &\n")
    for number in range(5):
        turn = await enter(terminal, f"sleep 0.2; (exit {number})\n")
        assert (turn.waits, turn.exit_code) == (("prompt",), number)


# --- readers ----------------------------------------------------------------------------------------------------------

_READERS = {
    "poll.py": """
        import select, sys, tty, termios
        before = termios.tcgetattr(0)
        tty.setcbreak(0)
        print("ready", flush=True)
        poll = select.poll()
        poll.register(0, select.POLLIN)
        while not poll.poll(100):
            pass
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    """,
    "several.py": """
        import os, select
        reading, writing = os.pipe()
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        poll.register(0, select.POLLIN)
        print("ready", flush=True)
        poll.poll()
    """,
    "loop.py": """
        import asyncio, sys
        async def main():
            ready = asyncio.Event()
            asyncio.get_running_loop().add_reader(0, ready.set)
            print("ready", flush=True)
            await ready.wait()
        asyncio.run(main())
    """,
    "thread.py": """
        import threading
        print("ready", flush=True)
        thread = threading.Thread(target=input)
        thread.start()
        thread.join()
    """,
}


@pytest.mark.parametrize("name", _READERS)
async def test_a_program_that_waits_for_input_in_its_own_way(
    sandbox: LocalSandbox, terminal: Terminal, name: str
) -> None:
    await put(sandbox, name, _READERS[name])
    turn = await enter(terminal, f"python3 {name}\n")
    assert turn.waits == ("tty_read",)
    assert turn.text.endswith("\nready")
    assert (await enter(terminal, "\n")).waits == ("prompt",)


async def test_another_users_shell_answers(terminal: Terminal) -> None:
    turn = await enter(terminal, "su agent\n")
    assert (turn.waits, turn.text) == (("tty_read",), "[waiting for input]\n$ su agent\n$")
    turn = await enter(terminal, "sleep 0.4; echo slept\n")
    assert (turn.waits, turn.text.splitlines()[-2:]) == (("tty_read",), ["slept", "$"])
    assert (await enter(terminal, "sleep 3\n", wait_sec=1.0)).waits == ("deadline",)
    await enter(terminal, "C-c", "exit\n")


@pytest.mark.parametrize("keystrokes", ["C-z", "C-\\"])
async def test_a_key_that_does_nothing_at_the_prompt_is_not_waited_for(terminal: Terminal, keystrokes: str) -> None:
    assert (await enter(terminal, keystrokes)).waits == ("tty_read",)


@pytest.mark.parametrize(
    "slow",
    ["cat | while read -r x; do sleep 0.6; echo $x$x; done", "tee /dev/null | (read -r x; sleep 0.6; echo $x$x; cat)"],
)
async def test_a_reader_before_a_slow_one_is_no_end(terminal: Terminal, slow: str) -> None:
    assert (await enter(terminal, f"{slow}\n")).waits == ("tty_read",)
    turn = await enter(terminal, "ab\n")
    assert (turn.waits, turn.text.splitlines()[-1]) == (("tty_read",), "abab")
    assert (await enter(terminal, "C-d")).waits == ("prompt",)


async def test_a_full_screen_that_nobody_reads_at_is_no_end(terminal: Terminal) -> None:
    turn = await enter(terminal, "tput smcup; echo one; sleep 0.8; tput rmcup\n")
    assert turn.waits == ("prompt",)
    turn = await enter(terminal, "(sleep 0.8; seq 100) | less\n")
    assert turn.text.startswith("[full-screen program]\n1\n2\n")
    assert (await enter(terminal, "q")).waits == ("prompt",)


async def test_an_editors_filter_is_waited_for(terminal: Terminal) -> None:
    await enter(terminal, "seq 3 >/srv/note; vi /srv/note\n")
    turn = await enter(terminal, ":%!sleep 0.8; seq 7 9\n")
    assert turn.text.startswith("[full-screen program]\n7\n8\n9\n")
    await enter(terminal, ":q!\n")


# --- keys typed ahead -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keystrokes", "shown"),
    [
        ("read -r X; echo got:$X\nanswer\n", "got:answer"),
        ("read -rs X; echo got:$X\nsecret\n", "got:secret"),
        ("head -n 2 | tac\nx\ny\n", "y"),
        ("python3 -c 'print(input() + input())'\nx\ny\n", "xy"),
    ],
)
async def test_answers_typed_ahead_are_read(terminal: Terminal, keystrokes: str, shown: str) -> None:
    turn = await enter(terminal, keystrokes)
    assert turn.waits == ("prompt",)
    assert shown in turn.text.splitlines()


async def test_lines_in_a_full_screen_program_end_as_with_enter(sandbox: LocalSandbox, terminal: Terminal) -> None:
    await enter(terminal, "nano /srv/note\n", "one\ntwo\nthree")
    await enter(terminal, "C-o", "Enter", "C-x")
    assert ((await sandbox.exec("cat /srv/note")).stdout or "").split() == ["one", "two", "three"]


# --- without the kernel -----------------------------------------------------------------------------------------------


class Masked(Container):
    """A container in whose sessions nothing is to be seen of processes, as some hosts have it."""

    @override
    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        return await super().exec(_mask(command), *args, **kwargs)

    @override
    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        return super().exec_argv(_mask(command), user=user)


def _mask(command: str) -> str:
    return f"exec unshare --mount bash -c {shlex.quote(f'mount -t tmpfs none /proc; {command}')}"


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = ("--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined")
    with running_container(tmp_path_factory.mktemp("image"), *options) as name:
        yield name


@pytest.fixture
async def masked(container: str, tmp_path: Path, config: TerminalConfig) -> AsyncGenerator[Terminal]:
    terminal = await open_terminal(Masked(container, tmp_path), config)
    assert (await enter(terminal, "ls /proc\n")).text.endswith("$ ls /proc\n$")
    yield terminal
    await terminal.close()


@pytest.mark.docker
async def test_prompts_are_found_without_the_kernels_word(masked: Terminal) -> None:
    for number in range(3):
        turn = await enter(masked, f"sleep 0.2; (exit {number})\n")
        assert (turn.waits, turn.exit_code) == (("prompt",), number)
    turn = await enter(masked, "echo one\nsleep 0.2; echo two\n")
    assert (turn.waits, turn.text.splitlines()[-2:]) == (("prompt",), ["two", "$"])
    assert (await enter(masked, "echo 'a\n")).waits == ("tty_read",)
    assert (await enter(masked, "b'\n")).text == "> b'\na\nb\n$"
    assert (await enter(masked, "sleep 9\n", wait_sec=1.0)).waits == ("deadline",)
    assert (await enter(masked, "C-c")).waits == ("prompt",)
    assert (await enter(masked, "exit 3\n")).text == "[session ended, exit code 3]\n$ exit 3\nexit"


@pytest.mark.docker
async def test_editors_and_interpreters_are_found_without_the_kernels_word(masked: Terminal) -> None:
    assert (await enter(masked, "vi /srv/note\n")).waits == ("fullscreen",)
    assert (await enter(masked, ":q\n")).waits == ("prompt",)
    assert (await enter(masked, "python3 -q\n")).waits == ("tty_read",)
    turn = await enter(masked, "import time; time.sleep(0.5); print(2)\n")
    assert (turn.waits, turn.text.splitlines()[-2:]) == (("tty_read",), ["2", ">>>"])
    assert (await enter(masked, "exit()\n")).waits == ("prompt",)


MASKS = {"system calls": ("/syscall", "/nothing"), "processes": ("/proc/", "/proc/nothing/")}
"""Files that a host may keep from the step script: another process's system call (Yama), or all of /proc (others)."""


@pytest.fixture(params=MASKS)
async def blind(
    request: pytest.FixtureRequest, sandbox: LocalSandbox, config: TerminalConfig, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Terminal]:
    path, masked = MASKS[request.param]

    def read_masked(name: str) -> str:
        return read_script(name).replace(path, masked) if name == "step" else read_script(name)

    assert path in read_script("step")
    monkeypatch.setattr(open, "read_script", read_masked)
    terminal = await open_terminal(sandbox, config)
    await terminal.run([])
    yield terminal
    await terminal.close()


async def test_prompts_and_editors_are_found_on_a_host_that_reports_less(blind: Terminal) -> None:
    for number in range(3):
        turn = await enter(blind, f"sleep 0.2; (exit {number})\n")
        assert (turn.waits, turn.exit_code) == (("prompt",), number)
    assert (await enter(blind, "echo one\nsleep 0.2; echo two\n")).text.endswith("\ntwo\n$")
    assert (await enter(blind, "echo par")).waits == ("tty_read",)
    assert (await enter(blind, "t\n")).text.endswith("\npart\n$")
    assert (await enter(blind, "vi /srv/note\n", ":q\n")).waits == ("fullscreen", "prompt")
    assert (await enter(blind, "python3 -q\n")).waits == ("tty_read",)
    turn = await enter(blind, "import time; time.sleep(0.5); print(2)\n")
    assert (turn.waits, turn.text.splitlines()[-2:]) == (("tty_read",), ["2", ">>>"])
    assert (await enter(blind, "exit()\n")).waits == ("prompt",)
    assert (await enter(blind, "sleep 9\n", wait_sec=1.0)).waits == ("deadline",)
    assert (await enter(blind, "C-c")).waits == ("prompt",)
    assert (await enter(blind, "exit 3\n")).text.startswith("[session ended, exit code 3]\n")


@pytest.mark.parametrize("blind", ["system calls"], indirect=True)
async def test_questions_are_found_by_where_a_program_sleeps(blind: Terminal) -> None:
    assert (await enter(blind, "cat\n", "text\n", "C-d")).waits == ("tty_read", "tty_read", "prompt")
    assert (await enter(blind, "sleep 0.4; read -rp '? ' X\n", "y\n")).waits == ("tty_read", "prompt")
    assert (await enter(blind, "sh\n", "sleep 0.5; echo slept\n", "exit\n")).waits == ("tty_read", "tty_read", "prompt")
