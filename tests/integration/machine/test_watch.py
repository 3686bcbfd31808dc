"""``harbor-gym watch``: recordings that grow, shown by a real tmux."""

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import libtmux
import pytest
from typer.testing import CliRunner

from harbor_gym.cli.main import app
from harbor_gym.errors import MissingDependencyError, UsageError
from harbor_gym.report.watch import attach_argv, newest, open_watch
from tests.helpers.engines import require_engine
from tests.helpers.patience import PATIENCE_SEC, wait_until


def record(path: Path, *outputs: str) -> None:
    """Begin a recording, or go on with one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        if not file.tell():
            file.write(json.dumps({"version": 2, "width": 80, "height": 24}) + "\n")
        for output in outputs:
            file.write(json.dumps([0.1, "o", output]) + "\n" + json.dumps([0.1, "m", "turn"]) + "\n")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[libtmux.Session]:
    require_engine("local")
    opened = open_watch(tmp_path, panes=2)
    yield opened
    opened.server.kill()


def test_each_episode_is_shown_in_its_pane_as_it_grows(session: libtmux.Session, tmp_path: Path) -> None:
    first, second = session.active_window.panes
    wait_until(lambda: "no recording yet" in "".join(first.capture_pane()))
    even, odd = (tmp_path / "transcripts" / "batch_0000" / "g" / f"episode_{n}.cast" for n in (2, 3))
    record(even, "even begins\r\n")
    record(odd, "odd begins\r\n")
    wait_until(lambda: "even begins" in first.capture_pane() and "odd begins" in second.capture_pane())
    record(even, "even goes on\r\n")
    wait_until(lambda: first.capture_pane()[:2] == ["even begins", "even goes on"])
    assert "even" not in "".join(second.capture_pane())
    later = even.with_name("episode_4.cast")
    record(later, "the next one\r\n")
    os.utime(even, (1, 1))
    wait_until(lambda: first.capture_pane()[0] == "the next one")


def test_a_line_that_is_no_event_is_passed_over(session: libtmux.Session, tmp_path: Path) -> None:
    pane = session.active_window.panes[0]
    path = tmp_path / "episode_0.cast"
    path.write_text('\0 not json\n[1, "o", 7]\n{}\n')
    record(path, "still here\r\n")
    wait_until(lambda: "still here" in pane.capture_pane())


def test_the_newest_of_a_pane_is_chosen(tmp_path: Path) -> None:
    assert newest(tmp_path, 0, 2) is None
    for number, changed in ((0, 30), (2, 10), (1, 99)):
        record(tmp_path / f"episode_{number}.cast", "x")
        os.utime(tmp_path / f"episode_{number}.cast", (changed, changed))
    assert newest(tmp_path, 0, 2) == tmp_path / "episode_0.cast"
    assert newest(tmp_path, 1, 2) == tmp_path / "episode_1.cast"


def test_misuse_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="folder of a run"):
        open_watch(tmp_path / "nothing")
    assert attach_argv(tmp_path)[:2] == ["tmux", "-L"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="apt-get install tmux"):
        open_watch(tmp_path)


@pytest.mark.parametrize("finished", ["training", "evaluation", "evaluation that goes on"])
def test_a_finished_run_is_told_of_and_starts_nothing(
    finished: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []

    def start(run_dir: Path, *, panes: int) -> None:
        assert panes == 4
        started.append(run_dir)

    monkeypatch.setattr("harbor_gym.report.watch.open_watch", start)
    recording = tmp_path / "transcripts/test/batch_0000/task/episode_001.cast"
    record(recording, "hello\r\n")
    if finished == "training":
        (tmp_path / "checkpoints.jsonl").write_text('{"name": "final", "batch": 4, "final": true}\n', encoding="utf-8")
    else:
        (tmp_path / "eval.json").write_text("{}", encoding="utf-8")
        later = (tmp_path / "eval.json").stat().st_mtime + (5 if finished == "evaluation that goes on" else -5)
        os.utime(recording, (later, later))
    done = CliRunner().invoke(app, ["watch", str(tmp_path), "--detach"])
    assert done.exit_code == 0
    if finished == "evaluation that goes on":
        assert started == [tmp_path]
        return
    assert not started
    assert done.stdout == (
        f"{tmp_path} is finished, and nothing of it is played any more: harbor-gym view {tmp_path}\n"
    )


def is_running(run_dir: Path) -> bool:
    socket = attach_argv(run_dir)[2]
    return subprocess.run(["tmux", "-L", socket, "ls"], capture_output=True, check=False).returncode == 0


def test_without_a_terminal_nothing_is_started(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert done.exit_code == 2
    assert "--detach" in done.stderr
    assert not is_running(tmp_path)


def test_leaving_it_leaves_nothing_running(tmp_path: Path) -> None:
    require_engine("local")
    record(tmp_path / "50%" / "episode_0.cast", "hello there\r\n")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 200, 0, 0))
    argv = [sys.executable, "-m", "harbor_gym", "watch", str(tmp_path / "50%")]
    process = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    seen = b""
    while not all(word in seen for word in (b"hello there", b"episode_0.cast", b"50%", b"C-b d: end")):
        seen += os.read(ours, 65536)
    os.write(ours, b"\x02d")
    with contextlib.suppress(OSError):  # a terminal whose last user is gone
        while os.read(ours, 65536):
            pass
    os.close(ours)
    assert process.wait(PATIENCE_SEC) == 0
    assert not is_running(tmp_path / "50%")
