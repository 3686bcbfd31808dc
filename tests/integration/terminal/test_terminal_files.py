"""The terminal where its files find no room, or are removed: no session ends by that, and no line is lost."""

import re
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from harbor_gym.config import TerminalConfig
from harbor_gym.terminal import Terminal, open_terminal
from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.terminal_environments import (
    KINDS,
    ON_DOCKER_TOO,
    Sandbox,
    Transport,
    enter,
    running_container,
    running_sandbox,
    start_local,
)

_FILL = "cat /dev/zero >/run/fill 2>/dev/null; cat /dev/zero >/tmp/fill 2>/dev/null; true"
"""Fills the disk of the session's files, and that of temporary files."""

_CLEAN = "rm -f /run/fill /tmp/fill; mkdir -p /tmp; rm -rf /srv/* /run/.terminal-*"


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    small = [word for place in ("/run", "/tmp") for word in ("--tmpfs", f"{place}:rw,size=512k,mode=1777")]
    with running_container(tmp_path_factory.mktemp("image"), *small) as name:
        yield name


@pytest.fixture(params=KINDS[:1])
async def sandbox(
    request: pytest.FixtureRequest, tmp_path: Path, transport: Transport, nothing_left: None
) -> AsyncGenerator[Sandbox]:
    async with running_sandbox(request, tmp_path, clean=_CLEAN, transport=transport, storage_mb=64) as entered:
        yield entered


async def open_session(sandbox: Sandbox, **settings: int) -> Terminal:
    return await open_terminal(sandbox, TerminalConfig.model_validate({"transport": sandbox.transport, **settings}))


@pytest.fixture
async def terminal(sandbox: Sandbox) -> AsyncGenerator[Terminal]:
    opened = await open_session(sandbox)
    yield opened
    await opened.close()


def numbers(first: int, last: int) -> str:
    return "\n".join(map(str, range(first, last + 1)))


@ON_DOCKER_TOO
async def test_no_line_is_lost(sandbox: Sandbox) -> None:
    terminal = await open_session(sandbox, max_observation_bytes=1_000_000)
    turn = await enter(terminal, _FILL + "\n")
    assert (turn.ended, turn.waits) == (False, ("prompt",))
    for last in (3, 30, 300, 3000, 9000):
        turn = await enter(terminal, f"seq {last}\n")
        assert (turn.ended, turn.waits) == (False, ("prompt",))
        assert turn.text == f"$ seq {last}\n{numbers(1, last)}\n$"
        assert turn.shown[-2:] == (str(last), "$")
    await terminal.close()


async def test_what_an_observation_leaves_out_is_counted(terminal: Terminal) -> None:
    await enter(terminal, _FILL + "\n")
    turn = await enter(terminal, "seq 10000 17999\n")
    head, marker, tail = re.split(r"\n\[(.*) omitted ...]\n", turn.text)
    missing = 8000 - (head + "\n" + tail).count("\n") + 1
    assert marker == f"... {missing} lines ({6 * missing} bytes)"
    assert (head[:29], tail[-14:]) == ("$ seq 10000 17999\n10000\n10001", "\n17998\n17999\n$")


async def test_long_keystrokes_are_typed(sandbox: Sandbox, terminal: Terminal) -> None:
    await enter(terminal, _FILL + "\n")
    text = f"{'x' * 59}\n" * 100
    turn = await enter(terminal, f"wc -c <<'END' | cat\n{text}END\n")
    assert (turn.ended, turn.waits) == (False, ("prompt",))
    assert turn.text.endswith("\n6000\n$")


async def test_keystrokes_that_find_no_room_are_not_typed_in_part(sandbox: Sandbox, terminal: Terminal) -> None:
    await enter(terminal, _FILL + "\n")
    turn = await enter(terminal, "echo before\n", f"{':' * 200_000}\n", "echo never\n")
    assert (turn.ended, turn.waits) == (False, ("prompt", "prompt", "prompt"))
    assert turn.text.startswith("[nothing was typed: ")
    assert turn.text.endswith("$ echo before\nbefore\n$")
    assert (await enter(terminal, "echo after\n")).text == "$ echo after\nafter\n$"


async def test_a_later_question_at_an_interpreters_prompt_is_in_time(terminal: Terminal) -> None:
    """Text that the script splits in bash needs no file."""
    await enter(terminal, _FILL + "\n")
    assert (await enter(terminal, "python3 -q\n")).waits == ("tty_read",)
    turn = await enter(terminal, "import subprocess; p = subprocess.Popen(['sleep', '600'])\n", "1 + 1\n")
    assert turn.waits == ("tty_read", "tty_read")
    assert (await enter(terminal, "p.kill(); exit()\n")).waits == ("prompt",)


@ON_DOCKER_TOO
async def test_what_a_killed_step_noted_is_found(sandbox: Sandbox, terminal: Terminal) -> None:
    await enter(terminal, _FILL + "\n")
    for number in range(3):
        await sandbox.exec("pkill -KILL -f '[s]tep serve'")
        assert (await enter(terminal, f"echo {number}\n")).text == f"$ echo {number}\n{number}\n$"


@ON_DOCKER_TOO
async def test_a_session_opens_where_there_is_room(sandbox: Sandbox) -> None:
    await sandbox.exec(_FILL)
    terminal = await open_session(sandbox)
    assert (await enter(terminal, "echo one\n")).text == "$ echo one\none\n$"
    await terminal.close()


# --- removed files ----------------------------------------------------------------------------------------------------

_REMOVALS = {
    "its directory": "rm -rf /run/.terminal-*",
    "its files": "rm -rf /run/.terminal-*/*",
    "its socket": "rm -f /run/.terminal-*/socket",
    "its script": "rm -f /run/.terminal-*/step",
    "the directory of temporary files": "cp -a /tmp /srv/tmp; find /tmp -delete 2>/dev/null",
    "the directory that it stands in": "mkdir /srv/d; cd /srv/d; rm -rf /srv/d",
}


async def test_a_session_outlives_what_it_removed(sandbox: Sandbox) -> None:
    for removal, command in _REMOVALS.items():
        terminal = await open_session(sandbox)
        turn = await enter(terminal, f"{command}; echo removed\n", "seq 30\n")
        assert (turn.ended, turn.waits) == (False, ("prompt", "prompt")), removal
        assert turn.text.endswith(f"; echo removed\nremoved\n$ seq 30\n{numbers(1, 30)}\n$"), removal
        await _goes_on(sandbox, terminal)
        await terminal.close()
        await sandbox.exec(_CLEAN)


async def test_a_session_outlives_what_is_removed_behind_its_back(sandbox: Sandbox) -> None:
    for removal in ("its directory", "its files", "its socket", "its script"):
        terminal = await open_session(sandbox)
        await sandbox.exec(_REMOVALS[removal])
        await _goes_on(sandbox, terminal)
        await terminal.close()
        await sandbox.exec(_CLEAN)


async def _goes_on(sandbox: Sandbox, terminal: Terminal) -> None:
    """A step works, and one of another process, which finds all in the files, and one that pastes."""
    assert (await enter(terminal, "echo one\n")).text.endswith("$ echo one\none\n$")
    await sandbox.exec("pkill -KILL -f '[s]tep serve'")
    for word in ("two", "three"):
        turn = await enter(terminal, f"echo {word}\n")
        assert (turn.ended, turn.text) == (False, f"$ echo {word}\n{word}\n$")
    assert turn.transport == sandbox.transport
    turn = await enter(terminal, "wc -c <<'END'\n" + f"{'x' * 59}\n" * 40 + "END\n")
    assert turn.text.endswith("\n2400\n$")


@pytest.mark.local
async def test_the_last_output_of_a_session_that_removed_all_is_kept(tmp_path: Path, nothing_left: None) -> None:
    require_engine("local")
    sandbox = await start_local(tmp_path / "environment")
    sandbox.transport = "persistent"
    terminal = await open_session(sandbox)
    turn = await enter(terminal, "rm -rf --no-preserve-root /usr /run; echo last words\n", "echo never\n")
    assert (turn.ended, turn.waits) == (True, ("prompt", "ended"))
    assert turn.text.startswith("[session ended]\n$ rm -rf")
    assert "\nlast words\n$" in turn.text
    await terminal.close()
    await sandbox.stop(delete=True)
