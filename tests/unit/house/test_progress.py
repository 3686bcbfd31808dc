"""Progress: bars on a terminal, plain lines elsewhere; help that shows whole flags; commands made late."""

import io
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from harbor_gym._runtime.console.progress import shown_by, ticking
from harbor_gym.cli.main import app
from harbor_gym.cli.progress import PlainProgress, RichProgress, progress


def test_plain_lines_come_for_every_tenth_and_without_colour() -> None:
    lines: list[str] = []
    shown = PlainProgress(lines.append)
    for done in range(1, 41):
        shown.bar("demonstrations", done, 40, f"loss {done}")
    assert len(lines) == 10
    assert lines[0] == "demonstrations 4/40  loss 4"
    assert lines[-1] == "demonstrations 40/40  loss 40"
    shown.line("ready")
    assert lines[-1] == "ready"
    assert "\x1b" not in "".join(lines)


def test_a_phase_of_unknown_length_is_a_line_at_once_one_now_and_then_and_its_end() -> None:
    lines: list[str] = []
    shown = PlainProgress(lines.append, every_sec=15)
    for seconds in (0, 1, 14, 15, 16, 29, 30):
        shown.bar("server", seconds, None, "of at most 300 s")
    shown.bar("server", 1, 1, "done after 31 s")
    assert lines == [
        "server  of at most 300 s",
        "server: 15 s  of at most 300 s",
        "server: 30 s  of at most 300 s",
        "server: done after 31 s",
    ]


def test_work_is_shown_at_once_then_again_and_again_and_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harbor_gym._runtime.console.progress._TICK_SEC", 0.001)
    lines: list[tuple[int | None, str]] = []
    is_shown_again = threading.Event()

    def bar(phase: str, _done: int, total: int | None, detail: str) -> None:
        assert phase == "an image"
        lines.append((total, detail))
        if lines.count((None, "STEP 2")) > 2:
            is_shown_again.set()

    with shown_by(bar), ticking("an image") as work:
        assert lines[0] == (None, "")
        work.tell("STEP 2")
        assert is_shown_again.wait(60)
    assert lines[-1][0] == 1
    assert lines[-1][1].startswith("done after ")
    with pytest.raises(ZeroDivisionError), shown_by(bar), ticking("an image"):
        _ = 1 // 0
    assert lines[-1][1].startswith("failed after ")


def test_one_piece_of_work_that_many_wait_for_is_shown_once_and_none_that_is_over_at_once() -> None:
    lines: list[str] = []
    with shown_by(lambda _phase, _done, _total, detail: lines.append(detail)):
        with ticking("an image", delay_sec=600), ticking("an image", delay_sec=600):
            pass
        assert not lines
        with ticking("an image", "not there", delay_sec=600) as work:
            with ticking("an image", delay_sec=600) as same:
                same.begin()
            work.begin()
            assert lines == ["not there"]
        assert lines == ["not there", "done after 0 s"]


def test_a_bar_of_unknown_length_ends_with_a_line_on_a_terminal() -> None:
    out = io.StringIO()
    with progress(Console(file=out, force_terminal=True, width=100)), ticking("an image"):
        pass
    assert "an image: done after 0 s" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())


def test_a_terminal_has_bars_and_lines_that_stay() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with progress(console) as shown:
        assert isinstance(shown, RichProgress)
        shown.bar("batches", 1, 5, "ETA 3 s")
        shown.line("batch 1/5 [reward]")
        shown.bar("batches", 5, 5)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "batch 1/5 [reward]" in text
    assert "1/5" in text
    assert "ETA 3 s" in text
    assert "batches 5/5" in text


def test_a_pipe_has_no_bars() -> None:
    with progress(Console(file=io.StringIO(), width=100)) as shown:
        assert isinstance(shown, PlainProgress)


COMMANDS = (
    "train",
    "eval",
    "openenv",
    "play",
    "plot",
    "sweep",
    "report",
    "watch",
    "check",
    "check-sandbox",
    "doctor",
    "reap",
)


@pytest.mark.parametrize("command", [*COMMANDS, "base", "bench step", "server install", "nemo-gym init"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_shows_whole_flags_on_80_columns(command: str, flag: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), flag], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert done.exit_code == 0, done.stderr
    assert "…-" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    flags = re.findall(r"^  (--?[a-z-]+)", done.stdout, re.MULTILINE)
    assert "-h" in flags
    joined = " ".join(done.stdout.split())
    assert "\\[" not in joined, "an escape that only rich would read"
    assert not re.search(r"\[default: [^]]*\] \[default", joined), "two defaults of one flag"
    assert "<_" not in joined, "a private name for a type"
    if command == "train":
        assert "--max-consecutive-parse-failures" in flags
        assert [line for line in done.stdout.splitlines() if line.endswith(":") and line[0] != " "][:3] == [
            "What to train on:",
            "How to train:",
            "Rollouts:",
        ]


@pytest.mark.parametrize("group", ["server", "cache", "sif", "bench", "nemo-gym"])
def test_the_list_of_a_groups_commands_has_whole_sentences(group: str) -> None:
    done = CliRunner().invoke(app, [group, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert done.exit_code == 0, done.stderr
    listed = done.stdout.partition("Commands:")[2]
    assert re.findall(r"^  [a-z]+  ", listed, re.MULTILINE)
    assert "..." not in listed
    assert max(map(len, listed.splitlines())) <= 80


def test_the_list_of_commands_costs_no_framework() -> None:
    code = "import sys; from harbor_gym.cli.main import app; app(['--help'], standalone_mode=False); "
    code += "print([name for name in ('pydantic', 'tinker', 'harbor') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(f"  {command} " in done.stdout for command in COMMANDS)
    assert "..." not in done.stdout.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "expected"), [("harbor-gym tr", "train"), ("harbor-gym train --learning-r", "--learning-rate")]
)
def test_the_shell_completes_commands_and_flags(words: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, Any] = {
        "_HARBOR_GYM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "from harbor_gym.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**__import__("os").environ, **environment},
    )
    assert expected in done.stdout.split(), done
