"""Recordings: readable line by line at any moment, true to the screen, and never in the way of an episode."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym.config import TerminalConfig
from harbor_gym.terminal import open_terminal
from harbor_gym.terminal.recording import CAST_VERSION, CastRecorder
from harbor_gym.types import Command
from tests.helpers.engines import require_engine
from tests.helpers.recordings import read, replay
from tests.helpers.sandboxes.terminal_environments import start_local

COLUMNS, ROWS = 40, 6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "episode.cast"


def start(path: Path) -> CastRecorder:
    return CastRecorder(path, columns=COLUMNS, rows=ROWS, title="test/task")


def record(path: Path, *turns: tuple[str, str]) -> None:
    with start(path) as recorder:
        for index, (keystrokes, text) in enumerate(turns):
            recorder.turn(index, keystrokes, text, index * 0.5)


def test_the_header_has_what_players_need(path: Path) -> None:
    record(path)
    header, events = read(path)
    assert events == []
    assert (header["version"], header["width"], header["height"]) == (CAST_VERSION, COLUMNS, ROWS)
    assert header["title"] == "test/task"
    assert isinstance(header["timestamp"], int)


def test_each_turn_has_a_marker_its_keys_and_its_output(path: Path) -> None:
    record(path, ("", "$"), ("ls /srv\n", "$ ls /srv\na  b\n$"), ("false\n", "[exit code 1]\n$ false\n$"))
    _, events = read(path)
    assert events == [
        [0.0, "m", "0:"],
        [0.0, "o", "$"],
        [0.5, "m", "1: ls /srv"],
        [0.5, "i", "ls /srv\n"],
        [0.5, "o", " ls /srv\r\na  b\r\n$"],
        [1.0, "m", "2: false [exit code 1]"],
        [1.0, "i", "false\n"],
        [1.0, "o", " false\r\n$"],
    ]


def test_a_turn_without_news_is_a_marker(path: Path) -> None:
    record(path, ("", "$"), ("", ""))
    assert read(path)[1][2:] == [[0.5, "m", "1:"]]


def test_a_long_label_is_cut(path: Path) -> None:
    record(path, ("echo " + "x" * 500 + "\n", "$"))
    label = read(path)[1][0][2]
    assert len(label) < 80
    assert label.endswith("x…")


def test_time_never_runs_backwards(path: Path) -> None:
    with start(path) as recorder:
        for index, at_sec in enumerate([0.0, 2.0, 1.0, float("nan"), float("inf"), 3.0]):
            recorder.turn(index, "x", f"{index}", at_sec)
    times = [event[0] for event in read(path)[1]]
    assert times == [0.0, 0.0, 0.0, *[2.0] * 12, 3.0, 3.0, 3.0]


SHELL = [("", "$"), ("seq 4\n", "$ seq 4\n1\n2\n3\n4\n$")]
SCREENS: dict[str, tuple[list[tuple[str, str]], list[str]]] = {
    "the shell scrolls": ([*SHELL, ("echo x\n", "$ echo x\nx\n$")], ["2", "3", "4", "$ echo x", "x", "$"]),
    "a long line wraps": ([("", "$"), ("", "$ " + "x" * 50)], ["$ " + "x" * 38, "x" * 12]),
    "a long line goes on": (
        [("", "$"), ("", "$ " + "x" * 50), ("", "$ " + "x" * 55)],
        ["$ " + "x" * 38, "x" * 17],
    ),
    "wide characters": ([("", "$"), ("", "$ echo 漢字\n漢字\n$")], ["$ echo 漢字", "漢字", "$"]),
    "a screen cleared": ([*SHELL, ("clear\n", "# ")], ["#"]),
    "output after a deadline": (
        [("", "$"), ("x\n", "[still running after 1.0 s]\n$ x"), ("", "late\n$")],
        ["$ x", "late", "$"],
    ),
    "input that a program waits for": (
        [("", "$"), ("cat\n", "[waiting for input]\n$ cat"), ("a\n", "[waiting for input]\na\na")],
        ["$ cat", "a", "a"],
    ),
    "an editor": ([*SHELL, ("vi\n", "[full-screen program]\ntext\n~\n~")], ["text", "~", "~"]),
    "an editor again": (
        [("vi\n", "[full-screen program]\ntext\n~\n~"), ("dd", "[full-screen program]\n~")],
        ["~"],
    ),
    "back from an editor": (
        [("", "$"), ("vi\n", "[full-screen program]\ntext\n~"), (":q\n", "$ vi\n$")],
        ["$ vi", "$"],
    ),
    "back from an editor, nothing new": (
        [("", "$"), ("vi\n", "[full-screen program]\ntext\n~"), (":q\n", "")],
        ["$"],
    ),
}


@pytest.mark.parametrize(("turns", "expected"), SCREENS.values(), ids=SCREENS)
def test_a_player_shows_the_screen(path: Path, turns: list[tuple[str, str]], expected: list[str]) -> None:
    record(path, *turns)
    assert replay(path) == expected


@given(st.lists(st.tuples(st.text(), st.text(), st.floats()), max_size=5))
def test_any_text_makes_a_readable_recording(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[str, str, float]]
) -> None:
    path = tmp_path_factory.mktemp("cast") / "any.cast"
    with start(path) as recorder:
        for index, (keystrokes, text, at_sec) in enumerate(turns):
            recorder.turn(index, keystrokes, text, at_sec)
    _, events = read(path)
    times = [event[0] for event in events]
    assert times == sorted(times)
    assert [event[2].split(":")[0] for event in events if event[1] == "m"] == [str(i) for i in range(len(turns))]
    assert not any("\x1b" in data.replace("\x1b[H\x1b[2J", "") for _, kind, data in events if kind in "mo")
    replay(path)


def test_odd_keystrokes_are_kept_readable(path: Path) -> None:
    record(path, ("a\ud800\x1b[31m\n", "\x1b[31mred\x07"))
    _, events = read(path)
    assert events == [[0.0, "m", "0: a?[31m"], [0.0, "i", "a?\x1b[31m\n"], [0.0, "o", "[31mred"]]
    path.read_text(encoding="utf-8").encode()


def test_nothing_is_lost_when_the_process_is_killed(path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys; from harbor_gym.terminal.recording import CastRecorder\n"
        "recorder = CastRecorder(pathlib.Path(sys.argv[1]), columns=80, rows=24, title='t')\n"
        "[recorder.turn(i, 'ls\\n', f'$ ls\\n{i}\\n$', float(i)) for i in range(3)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes().endswith(b"\n")
    assert [event[2] for event in read(path)[1] if event[1] == "m"] == ["0: ls", "1: ls", "2: ls"]


def test_a_full_disk_ends_the_recording_and_nothing_else(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = start(path)
    recorder.turn(0, "", "$", 0.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, hard))
        recorder.turn(1, "", "$ " + "x" * 200, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    recorder.turn(2, "", "$", 2.0)
    assert [event[1] for event in read(path)[1]] == ["m", "o"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    recorder.close()


def open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_closing_twice_is_fine_and_leaves_no_descriptor(path: Path) -> None:
    before = open_files()
    recorder = start(path)
    recorder.close()
    recorder.close()
    recorder.turn(0, "", "$", 0.0)
    assert open_files() == before
    assert read(path)[1] == []


def test_an_old_recording_is_replaced(path: Path) -> None:
    record(path, ("", "$"))
    record(path)
    assert read(path)[1] == []


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        start(tmp_path / "file" / "episode.cast")


@pytest.mark.local
@pytest.mark.parametrize("transport", ["portable", "persistent"])
async def test_a_player_shows_what_the_terminal_showed(tmp_path: Path, nothing_left: None, transport: str) -> None:
    require_engine("local")
    sandbox = await start_local(tmp_path / "environment")
    config = TerminalConfig.model_validate({"transport": transport, "columns": 80, "rows": 24})
    terminal = await open_terminal(sandbox, config)
    path = tmp_path / "episode.cast"
    try:
        with CastRecorder(path, columns=80, rows=24, title="test/task") as recorder:
            for index, keystrokes in enumerate(_KEYSTROKES):
                turn = await terminal.run([Command(keystrokes, 2.0)])
                recorder.turn(index, keystrokes, turn.text, float(index), shown=turn.shown)
                if keystrokes == "yes\n":  # Its output does not stand still for a second read.
                    continue
                screen = await terminal.screen()
                assert screen is not None
                assert "\n".join(replay(path)) == screen.text, f"after {keystrokes!r}"
        assert path.stat().st_size < 200_000
    finally:
        await terminal.close()
        await sandbox.stop(delete=True)


_KEYSTROKES = (
    "echo hello\n",
    "clear\n",
    "seq 10\n",
    "seq 10000\n",
    f"echo {'x' * 200}\n",
    "echo 漢字 🎉 é\n",
    "printf '\\033[5;10Hhere\\033[31m'; sleep 0.2\n",
    "clear; seq 30; printf '\\033[H\\033[2J'; echo rewritten\n",
    "vi /etc/passwd\n",
    "G",
    ":q\n",
    "seq 100 | less\n",
    "q",
    "yes\n",
    "C-c",
    "reset\n",
    "python3 -q\n",
    "print('a\\nb')\n",
    "C-d",
)
