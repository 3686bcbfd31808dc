"""libtmux as the oracle: its reading of the session, and its keys, must agree with our terminal."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

import libtmux
import pytest

from harbor_gym.sandboxes.supervisor import own_ids
from harbor_gym.terminal import Terminal, TerminalTurn, open_terminal
from harbor_gym.terminal.recording import CastRecorder
from harbor_gym.types import Command
from tests.benchmarks.steps import TRANSPORTS, terminal_config
from tests.helpers.engines import require_engine
from tests.helpers.recordings import replay
from tests.helpers.sandboxes.terminal_environments import LocalSandbox, start_local

pytestmark = pytest.mark.local

_COLUMNS, _ROWS = 100, 30
_LONG_SEC = 60.0
"""A ceiling that a passing test never reaches."""

CASES = {
    "ls": "ls /",
    "nothing": "true",
    "a line of several rows": "printf '%0350d\\n' 7",
    "a line as wide as the pane": f"printf '%0{_COLUMNS}d\\n' 7",
    "a typed line of several rows": f"echo {'x' * 250}",
    "wide characters": "printf '漢字かな交じり文🎉 é\\n'",
    "wide characters over the edge": f"printf '%{_COLUMNS - 1}s漢字\\n' .",
    "blank lines": "printf '\\n\\none\\n\\n'",
    "trailing blanks": "printf 'one   \\ntwo\\t\\n'",
    "a screenful": f"seq {_ROWS - 2}",
    "more than a screenful": f"seq {_ROWS * 3}",
    "10 000 lines": "seq 10000",
    "carriage returns": "printf 'one\\rtwo\\nthree\\n'",
    "colours": "printf '\\033[31mred\\033[0m plain\\n'",
    "no newline at the end": "printf half",
}


class Oracle:
    """A terminal's tmux session through libtmux, over the server's own socket."""

    def __init__(self, socket: Path) -> None:
        (session,) = libtmux.Server(socket_path=socket).sessions
        pane = session.active_pane
        assert pane is not None
        self._pane = pane

    async def ask(self, *variables: str) -> list[str]:
        """Return tmux variables of the pane."""
        template = " ".join(f"#{{{variable}}}" for variable in variables)
        (answer,) = (await asyncio.to_thread(self._pane.cmd, "display-message", "-p", template)).stdout
        return answer.split(" ")

    async def count(self, variable: str) -> int:
        return int((await self.ask(variable))[0])

    async def screen(self, *, joined: bool = True) -> list[str]:
        return await self._capture(None, joined=joined)

    async def everything(self, *, joined: bool = True) -> list[str]:
        return await self._capture("-", joined=joined)

    async def enter(self, text: str) -> None:
        await asyncio.to_thread(self._pane.send_keys, text, literal=True)

    async def press(self, key: str) -> None:
        await asyncio.to_thread(self._pane.send_keys, key, enter=False)

    async def wait_for(self, is_there: Callable[[list[str]], bool]) -> None:
        """Poll the screen: only the oracle may wait so, for nothing reports when a command is done."""
        deadline = time.monotonic() + _LONG_SEC
        while not is_there(screen := await self.screen()):
            assert time.monotonic() < deadline, screen
            await asyncio.sleep(0.02)

    async def _capture(self, start: str | None, *, joined: bool) -> list[str]:
        lines = await asyncio.to_thread(
            lambda: self._pane.capture_pane(start="-" if start else None, join_wrapped=joined)
        )
        trimmed = [line.rstrip() for line in lines or []]
        while trimmed and not trimmed[-1]:
            trimmed.pop()
        return trimmed


@dataclass
class Pair:
    """One session, seen from both sides."""

    terminal: Terminal
    oracle: Oracle

    async def enter(self, *keystrokes: str) -> TerminalTurn:
        return await self.terminal.run([Command(keys, _LONG_SEC) for keys in keystrokes])

    async def look(self) -> list[str]:
        return (await self.terminal.run([])).text.split("\n")


@pytest.fixture
async def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[LocalSandbox]:
    require_engine("local")
    # tmux serves clients of its own user only, as this process is where a sandbox has no ids of its own.
    monkeypatch.setattr(own_ids, "refusal", lambda: "for a client outside")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")  # without UTF-8 the tmux client that libtmux runs would print underscores
    sandbox = await start_local(tmp_path / "environment")
    yield sandbox
    await sandbox.stop(delete=True)


@pytest.fixture(params=TRANSPORTS)
async def pair(request: pytest.FixtureRequest, sandbox: LocalSandbox) -> AsyncGenerator[Pair]:
    config = terminal_config(request.param, columns=_COLUMNS, rows=_ROWS, max_observation_bytes=1_000_000)
    terminal = await open_terminal(sandbox, config)
    turn = await terminal.run([])
    assert (turn.text, turn.transport) == ("$", request.param)
    yield Pair(terminal, Oracle(await find_socket(sandbox)))
    await terminal.close()


async def find_socket(sandbox: LocalSandbox) -> Path:
    """Return a path of this machine to the socket of the only tmux server in the sandbox."""
    read = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | sed -n 's/^TMUX=//p' | head -n 1"
    inside = ((await sandbox.exec(read)).stdout or "").split(",")[0]
    assert inside, "no process in the sandbox runs in tmux"
    return await asyncio.to_thread(_from_outside, inside)


def _from_outside(socket: str) -> Path:
    """Find the socket through the root of one of the sandbox's processes: its directory's name is random."""
    for root in Path("/proc").glob("[0-9]*/root"):
        with contextlib.suppress(OSError):  # a process that has ended, or whose root may not be entered
            if (path := Path(f"{root}{socket}")).exists():
                return path
    raise AssertionError(f"no process of this machine sees {socket}")


@pytest.mark.parametrize("command", CASES.values(), ids=CASES)
async def test_what_we_report_is_what_libtmux_sees(pair: Pair, command: str) -> None:
    turn = await pair.enter(f"{command}\n")
    ours, screen = turn.text.split("\n"), await pair.oracle.screen()
    assert turn.waits == ("prompt",)
    # A line that begins above the screen is there in part only.
    whole = min(len(ours), len(screen) - (len(ours) > len(screen)))
    assert whole >= 2
    assert ours[-whole:] == screen[-whole:]
    rows = await pair.oracle.screen(joined=False)
    cursor_x, cursor_y = map(int, await pair.oracle.ask("cursor_x", "cursor_y"))
    assert (cursor_y, cursor_x) == (len(rows) - 1, len(ours[-1]) + 1)


@pytest.mark.parametrize("command", CASES.values(), ids=CASES)
async def test_what_libtmux_types_is_what_we_report(pair: Pair, command: str) -> None:
    # The second command's prompt proves that the first one is done, for any output.
    await pair.oracle.enter(command)
    await pair.oracle.enter("echo the$((1))end")
    await pair.oracle.wait_for(lambda screen: screen[-2:] == ["the1end", "$"])
    truth = await pair.oracle.everything()
    history, cursor_y = map(int, await pair.oracle.ask("history_size", "cursor_y"))
    rows = await pair.oracle.everything(joined=False)
    ours = await pair.look()
    assert ours == truth
    assert history + cursor_y + 1 == len(rows)


async def test_the_history_counts_the_lines_that_we_report(pair: Pair) -> None:
    await pair.oracle.enter("seq 10000")
    await pair.oracle.wait_for(lambda screen: screen[-2:] == ["10000", "$"])
    history, cursor_y = map(int, await pair.oracle.ask("history_size", "cursor_y"))
    ours = await pair.look()
    assert ours == ["$ seq 10000", *map(str, range(1, 10_001)), "$"]
    assert history + cursor_y + 1 == len(ours)


async def test_nothing_is_reported_twice(pair: Pair) -> None:
    for number in range(1, 4):
        await pair.oracle.enter(f"seq {number}000 {number}049")
        await pair.oracle.wait_for(lambda screen, last=f"{number}049": screen[-2:] == [last, "$"])
        assert (await pair.look())[1:] == [*map(str, range(number * 1000, number * 1000 + 50)), "$"]
    assert await pair.look() == ["$"]


async def test_the_pane_has_the_size_that_was_asked_for(pair: Pair) -> None:
    assert await pair.oracle.ask("pane_width", "pane_height") == [str(_COLUMNS), str(_ROWS)]


async def test_clear_leaves_what_libtmux_sees(pair: Pair) -> None:
    await pair.enter("seq 50\n")
    turn = await pair.enter("clear\n")
    assert await pair.oracle.screen() == ["$"]
    assert turn.text.split("\n")[-1:] == ["$"]
    await pair.oracle.enter("clear; echo the$((1))end")
    await pair.oracle.wait_for(lambda screen: screen[-2:] == ["the1end", "$"])
    assert (await pair.look())[-2:] == await pair.oracle.screen()


async def test_an_editor_shows_both_the_same_screen(pair: Pair) -> None:
    turn = await pair.enter("vi /tmp/note\n")
    assert turn.waits == ("fullscreen",)
    assert await pair.oracle.ask("alternate_on") == ["1"]
    assert turn.text.split("\n") == ["[full-screen program]", *await pair.oracle.screen()]

    turn = await pair.enter("i漢字 and more")
    screen = await pair.oracle.screen()
    assert screen[0] == "漢字 and more"
    assert turn.text.split("\n") == ["[full-screen program]", *screen]

    await pair.oracle.press("Escape")
    await pair.oracle.enter("otyped by libtmux")
    await pair.oracle.wait_for(lambda screen: screen[1] == "typed by libtmux")
    assert (await pair.look()) == await pair.oracle.screen()

    turn = await pair.enter("Escape", ":wq\n")
    assert await pair.oracle.ask("alternate_on") == ["0"]
    assert turn.text.split("\n")[-1:] == (await pair.oracle.screen())[-1:] == ["$"]
    assert (await pair.enter("cat /tmp/note\n")).text == "$ cat /tmp/note\n漢字 and more\ntyped by libtmux\n\n$"


async def test_a_command_that_libtmux_interrupts_is_over_for_us(pair: Pair) -> None:
    assert (await pair.terminal.run([Command("sleep 1000\n", 0.1)])).waits == ("deadline",)
    await pair.oracle.press("C-c")
    await pair.oracle.wait_for(lambda screen: screen[-1] == "$")
    assert (await pair.look())[-2:] == (await pair.oracle.screen())[-2:] == ["^C", "$"]
    assert (await pair.enter("echo $?\n")).text == "$ echo $?\n130\n$"


async def test_keys_of_both_meet_in_one_line(pair: Pair) -> None:
    await pair.enter("echo ours-")
    await pair.oracle.press("and-theirs")
    await pair.oracle.wait_for(lambda screen: screen == ["$ echo ours-and-theirs"])
    turn = await pair.enter("\n")
    assert turn.text == "$ echo ours-and-theirs\nours-and-theirs\n$"
    assert turn.text.split("\n") == await pair.oracle.screen()


# pyte puts a wide character that does not fit any more into the last column, where tmux wraps it.
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"wide characters over the edge"}))
async def test_a_recording_shows_the_screen_that_libtmux_sees(pair: Pair, tmp_path: Path, name: str) -> None:
    path = tmp_path / "episode.cast"
    with CastRecorder(path, columns=_COLUMNS, rows=_ROWS, title="oracle") as recorder:
        recorder.turn(0, "", "$", 0.0)
        for number, keystrokes in enumerate(["echo before\n", f"{CASES[name]}\n", "echo after\n"], 1):
            recorder.turn(number, keystrokes, (await pair.enter(keystrokes)).text, float(number))
            assert replay(path) == await pair.oracle.screen(joined=False)


async def test_a_recording_follows_an_editor(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "episode.cast"
    with CastRecorder(path, columns=_COLUMNS, rows=_ROWS, title="oracle") as recorder:
        for number, keystrokes in enumerate(["seq 3\n", "vi /tmp/note\n", "i漢字", "C-c", ":q!\n", "ls /\n"]):
            recorder.turn(number, keystrokes, (await pair.enter(keystrokes)).text, float(number))
            assert replay(path) == await pair.oracle.screen(joined=False), keystrokes
