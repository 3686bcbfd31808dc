"""Programs that rule the screen or ask for a secret: the observation after each step."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harbor_gym.config import TerminalConfig
from harbor_gym.terminal import open_terminal
from tests.helpers.sandboxes.terminal_environments import (
    Container,
    LocalSandbox,
    enter,
    running_container,
)


@pytest.fixture(params=["portable", "persistent"])
async def config(request: pytest.FixtureRequest) -> TerminalConfig:
    return TerminalConfig(transport=request.param)


@pytest.fixture(scope="module")
def container_name(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_container(tmp_path_factory.mktemp("image")) as name:
        # Without a network Docker leaves the container's own name out, and sudo complains.
        subprocess.run(["docker", "exec", name, "sh", "-c", "echo 127.0.0.1 $(hostname) >>/etc/hosts"], check=True)
        yield name


@pytest.fixture
def container(container_name: str, tmp_path: Path) -> Container:
    return Container(container_name, tmp_path)


@pytest.mark.local
async def test_nano_opens_edits_saves_and_exits(sandbox: LocalSandbox, config: TerminalConfig) -> None:
    terminal = await open_terminal(sandbox, config)
    await terminal.run([])
    turn = await enter(terminal, "nano /srv/note\n")
    assert turn.waits == ("fullscreen",)
    header, title, *_, keys, more_keys = turn.text.splitlines()
    assert header == "[full-screen program]"
    assert re.fullmatch(r"  GNU nano [\d.]+ +/srv/note", title)
    assert keys.startswith("^G Help")
    assert more_keys.startswith("^X Exit")
    turn = await enter(terminal, "hello\nworld")
    assert turn.text.splitlines()[2:4] == ["hello", "world"]
    assert turn.text.splitlines()[1].endswith("/srv/note *")
    turn = await enter(terminal, "C-o")
    assert "File Name to Write: /srv/note" in turn.text
    turn = await enter(terminal, "Enter")
    assert "[ Wrote 2 lines ]" in turn.text
    turn = await enter(terminal, "C-x", "cat /srv/note\n")
    assert (turn.waits, turn.text) == (("prompt", "prompt"), "$ nano /srv/note\n$ cat /srv/note\nhello\nworld\n$")
    await terminal.close()


@pytest.mark.local
async def test_top_shows_its_table_and_quits(sandbox: LocalSandbox, config: TerminalConfig) -> None:
    terminal = await open_terminal(sandbox, config)
    await terminal.run([])
    turn = await enter(terminal, "top\n", wait_sec=2.0)
    lines = [line for line in turn.text.splitlines() if line]
    assert lines[0] == "[waiting for input]", "top does not take the alternate screen"
    assert any(re.match(r"top - \d\d:\d\d:\d\d up ", line) for line in lines)
    (table,) = (index for index, line in enumerate(lines) if line.split()[:2] == ["PID", "USER"])
    assert any(line.split()[1] == "root" and line.endswith(" top") for line in lines[table + 1 :])
    turn = await enter(terminal, "q")
    assert (turn.waits, turn.text.splitlines()[-1]) == (("prompt",), "$")
    assert (await enter(terminal, "echo after\n")).text == "$ echo after\nafter\n$"
    await terminal.close()


@pytest.mark.docker
async def test_sudo_asks_for_a_password(container: Container, config: TerminalConfig) -> None:
    terminal = await open_terminal(container, config, user="agent")
    await terminal.run([])
    turn = await enter(terminal, "sudo -k id -un\n")
    assert turn.waits == ("tty_read",)
    assert turn.text == "[waiting for input]\n$ sudo -k id -un\n[sudo] password for agent:"
    turn = await enter(terminal, "secret\n")
    assert (turn.waits, turn.text) == (("prompt",), "[sudo] password for agent:\nroot\n$")
    turn = await enter(terminal, "sudo -k sleep 0.5\n", "secret\n")
    assert turn.waits == ("tty_read", "prompt"), "a program that sudo started is waited for"
    turn = await enter(terminal, "sudo -k id -un\n", "C-c")
    assert turn.waits == ("tty_read", "prompt")
    assert "a password is required" in turn.text
    await terminal.close()
