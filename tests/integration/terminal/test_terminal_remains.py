"""What a program that was killed leaves in the terminal, and lines that the terminal itself has no room for."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from harbor_gym.config import TerminalConfig
from harbor_gym.terminal import Terminal, open_terminal
from tests.helpers.sandboxes.terminal_environments import (
    KINDS,
    ON_DOCKER_TOO,
    Sandbox,
    Transport,
    enter,
    running_sandbox,
)

_PACKAGE = r"""
mkdir -p /tmp/{0}/DEBIAN
printf '%s\n' 'Package: {0}' 'Version: 1' 'Architecture: all' 'Maintainer: a <a@example.org>' 'Description: a test' \
    >/tmp/{0}/DEBIAN/control
printf '#!/bin/sh\n{1}\n' >/tmp/{0}/DEBIAN/postinst
chmod 755 /tmp/{0}/DEBIAN/postinst
dpkg-deb -b /tmp/{0} /tmp/{0}.deb
"""
_INTO_SCREEN = r"""sh -c 'printf "\033[?1049h"; echo in; kill -9 $$'"""


@pytest.fixture(params=KINDS[:1])
async def sandbox(
    request: pytest.FixtureRequest, tmp_path: Path, transport: Transport, nothing_left: None
) -> AsyncGenerator[Sandbox]:
    clean = "dpkg -P silent asks 2>/dev/null"
    async with running_sandbox(request, tmp_path, clean=clean, transport=transport) as entered:
        yield entered


@pytest.fixture
async def terminal(sandbox: Sandbox) -> AsyncGenerator[Terminal]:
    opened = await open_terminal(sandbox, TerminalConfig(transport=sandbox.transport, max_observation_bytes=30_000))
    assert (await opened.run([])).text == "$"
    yield opened
    await opened.close()


async def make_package(sandbox: Sandbox, name: str, script: str) -> None:
    assert (await sandbox.exec(_PACKAGE.format(name, script))).return_code == 0


@ON_DOCKER_TOO
async def test_apt_is_waited_for_while_a_script_of_a_package_is_silent(sandbox: Sandbox, terminal: Terminal) -> None:
    """apt is not dumpable then, holds the terminal raw around that of the script, and looks up often."""
    await make_package(sandbox, "silent", "sleep 1.7")
    await make_package(sandbox, "asks", r'printf "Really? "; read x; sleep 1.2; echo got:$x')
    turn = await enter(terminal, "apt-get install -y /tmp/silent.deb\n")
    assert turn.waits == ("prompt",)
    assert "\nSetting up silent" in turn.text
    assert (await enter(terminal, "echo next\n")).text == "$ echo next\nnext\n$"
    turn = await enter(terminal, "apt-get install -y /tmp/asks.deb\n")
    assert (turn.waits, turn.text.endswith("\nReally?")) == (("tty_read",), True)
    turn = await enter(terminal, "yes\n")
    assert turn.waits == ("prompt",)
    assert "\ngot:yes\n" in turn.text


@pytest.mark.parametrize(
    "program",
    [
        _INTO_SCREEN,
        # Origin mode and margins, characters that draw lines, no wrap, insertion.
        r"""sh -c 'printf "\033[3;7r\033[?6h\033(0\033[?7l\033[4h"; kill -9 $$'; clear""",
    ],
)
async def test_a_killed_program_leaves_the_terminal_as_it_was(program: str, terminal: Terminal) -> None:
    await enter(terminal, f"{program}\n")
    turn = await enter(terminal, "seq 200\n")
    assert turn.text == "$ seq 200\n" + "".join(f"{n}\n" for n in range(1, 201)) + "$"
    assert (await enter(terminal, f"echo {'x' * 200}\n")).text == f"$ echo {'x' * 200}\n{'x' * 200}\n$"


async def test_a_screen_that_a_program_left_is_left_at_the_prompt_with_what_stood_before_it(terminal: Terminal) -> None:
    turn = await enter(terminal, "echo before\n", f"{_INTO_SCREEN}\n")
    assert (turn.waits[-1], turn.exit_code, turn.shown[:2]) == ("prompt", 137, ("$ echo before", "before"))


@pytest.mark.parametrize("modes", ["-icrnl", "raw -echo"])
@pytest.mark.parametrize("start", ["sh", "exec sh"])
async def test_dash_answers_whatever_modes_a_program_has_left(start: str, modes: str, terminal: Terminal) -> None:
    assert (await enter(terminal, f"{start}\n")).waits == ("tty_read",)
    assert (await enter(terminal, f"stty {modes}\n")).waits == ("tty_read",)
    turn = await enter(terminal, "sleep 0.3; echo one\n")
    assert (turn.waits, turn.text.splitlines()[-3:]) == (("tty_read",), ["# sleep 0.3; echo one", "one", "#"])


@pytest.mark.parametrize("program", ["read -r x", "cat >/tmp/x", "sh"])
async def test_a_line_that_the_terminal_cuts_is_said_to_be(program: str, terminal: Terminal) -> None:
    note = "[a line was cut: of each line, 4095 bytes arrived"
    await enter(terminal, f"{program}\n")
    assert note not in (await enter(terminal, f": {'x' * 4093}\n")).text
    await enter(terminal, f"{program}\n" if program.startswith("read") else "\n")
    assert note in (await enter(terminal, f": {'x' * 4094}\n")).text


async def test_a_long_line_reaches_the_line_editor_whole(terminal: Terminal) -> None:
    turn = await enter(terminal, f"x={'x' * 6000}\n", "echo ${#x}\n")
    assert ("a line was cut" in turn.text, turn.text.endswith("\n6000\n$")) == (False, True)
