"""Progress: bars on a terminal, plain lines elsewhere; help that shows whole flags; commands made late."""

import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym._runtime.console import under_way
from harbor_gym._runtime.console.progress import shown_by, ticking
from harbor_gym.cli.main import app
from harbor_gym.cli.progress import PlainProgress, RichProgress, progress
from tests.helpers.sandboxes.fake_episodes import fake_config


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


async def test_a_terminal_shows_what_each_episode_under_way_does(tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with progress(console) as shown:
        async with AsyncTerminalGymEnv(fake_config(tmp_path / "task")) as env:
            await env.reset()
            await env.step([("ls\n", 0.0)])
            (line,) = map(str, under_way.under_way())
            assert re.fullmatch(r"task: turn 2, waiting for the model for \d+ s", line)
            shown.bar("episodes", 0, 2)
            await env.finish()
            assert under_way.under_way() == []
    assert "task: turn 2, waiting for the model for " in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())


def test_many_episodes_under_way_are_shown_in_part_and_none_that_nobody_holds() -> None:
    out = io.StringIO()
    owners = [io.StringIO() for _ in range(10)]
    for number in range(10):
        under_way.note(owners[number], f"episode {number}", "being graded")
    with progress(Console(file=out, force_terminal=True, width=100)) as shown:
        shown.bar("episodes", 0, 10)
    assert "episode 0: being graded for 0 s" in out.getvalue()
    assert "and 2 more episodes" in out.getvalue()
    assert "episode 9" not in out.getvalue()
    under_way.note(owners[0], "episode 0", None)
    owners.clear()
    assert under_way.under_way() == []


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


@pytest.mark.parametrize("command", [*COMMANDS, "server install", "nemo-gym init"])
@pytest.mark.parametrize("flag", ["-h", "--help", "--help-all"])
def test_help_shows_whole_flags_on_80_columns(command: str, flag: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), flag], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    if flag == "--help-all" and command not in ("train", "eval", "openenv"):
        assert done.exit_code == 2, "it explains every option by --help"
        return
    assert done.exit_code == 0, done.stderr
    assert "…-" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    flags = re.findall(r"^  (--?[a-z-]+)", done.stdout, re.MULTILINE)
    assert "-h" in flags
    joined = " ".join(done.stdout.split())
    assert "\\[" not in joined, "an escape that only rich would read"
    assert not re.search(r"\[default: [^]]*\] \[default", joined), "two defaults of one flag"
    assert "<_" not in joined, "a private name for a type"
    headings = [line for line in done.stdout.splitlines() if line.endswith(":") and line[0] != " "]
    if command == "train" and flag == "--help-all":
        assert "--max-consecutive-parse-failures" in flags
        assert headings[:5] == ["Arguments:", "Common:", "What to train on:", "How to train:", "Rollouts:"]
    elif command == "train":
        assert headings == ["Arguments:", "Common:", "Options:", "More, explained by --help-all:"]


@pytest.mark.parametrize("command", ["train", "eval", "openenv"])
def test_the_short_help_explains_the_common_flags_and_names_every_other(command: str) -> None:
    def shown(flag: str) -> str:
        return CliRunner().invoke(app, [command, flag], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout

    short, whole = shown("--help"), shown("--help-all")
    explained = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", whole, re.MULTILINE))
    assert "More" not in whole
    assert len(explained) > 40
    assert [name for name in explained if not re.search(rf"{name}(?![a-z-])", short)] == []
    assert len(short.splitlines()) * 2 < len(whole.splitlines())


@pytest.mark.parametrize("group", ["server", "cache", "sif", "nemo-gym"])
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
    ("words", "expected"),
    [
        ("harbor-gym tr", "train"),
        ("harbor-gym train --learning-r", "--learning-rate"),
        ("harbor-gym play task:dev", "task:devops_task"),
        ("harbor-gym eval task : dev", "devops_task"),  # as bash splits it
        ("harbor-gym check --env appt", "apptainer"),
        ("harbor-gym train --agent terminus", "terminus-2"),
        ("harbor-gym report run", "runs/one"),
        ("harbor-gym eval --run run", "runs/one"),
    ],
)
def test_the_shell_completes_commands_flags_and_their_values(words: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "runs/one").mkdir(parents=True)
    (tmp_path / "runs/one/run.json").write_text("{}")
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
        env={**os.environ, **environment},
        cwd=tmp_path,
    )
    assert expected in done.stdout.split(), done


@pytest.mark.parametrize("words", [["demo", "--env", "fake"], ["check"], ["eval", "--help"], ["train", "--help"]])
def test_a_command_that_loads_for_long_says_so(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harbor_gym.cli.shared.SLOW_SEC", 0)
    monkeypatch.setattr("harbor_gym.cli.shared._is_watched", lambda: True)
    shown: list[tuple[str, bool]] = []
    with shown_by(lambda phase, _done, total, _detail: shown.append((phase, total is None))):
        CliRunner().invoke(app, words)
    assert [is_going_on for phase, is_going_on in shown if phase == "loading"] == [True, False]
