"""Every command that takes a path to read says of a wrong one the mistake, the path, and the remedy, in one line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperArgument
from typer.testing import CliRunner

from harbor_gym.cli.main import LAZY, app
from harbor_gym.cli.plain_help import describe_parameter

WRITTEN = {
    "--output",
    "--parquet",
    "--keep",
    "--trials-dir",
    "--sweep-path",
    "name",
    "directory",
    "--log-path",
    "--recording-path",
}
"""Paths that a command makes or writes to; test_cli has those that can't be written."""

REST: dict[tuple[str, str], tuple[str, ...]] = {
    ("train", "--registry-path"): ("--task", "a@1"),
    ("eval", "--registry-path"): ("a@1",),
    ("check", "--registry-path"): ("--task", "a@1"),
    ("sif-build", "--registry-path"): ("a@1",),
    ("export", "run_dirs"): ("--output", "{path}-made"),
    ("regrade", "--task-dir"): ("a-run",),
    ("eval", "--run"): ("task:devops_task",),
    ("train", "--require-audit"): ("task:devops_task",),
    ("eval", "--require-audit"): ("task:devops_task",),
    ("audit", "--registry-path"): ("a@1",),
    ("audit", "--run"): ("task:devops_task",),
    ("nemo-gym-init", "--tasks"): ("{path}-made",),
}
"""A command's other arguments."""

ALLOWED = {("view", "folder"), ("nemo-gym-failures", "empty")}
"""A run that has written nothing yet is an empty folder or file: its page waits."""

ELSEWHERE = {"openenv"}
"""tests/unit/openenv has its certificates."""


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, inner in command.commands.items():
        late = typer.main.get_command(LAZY[name].app()) if name in LAZY and not words else inner
        yield from commands(late, (*words, name))


def paths_read() -> list[Any]:
    found: list[Any] = []
    for words, command in commands(typer.main.get_command(app)):
        for parameter in command.params:
            name = parameter.opts[0]
            is_path = "Path" in repr(parameter.type_descriptor.annotation)
            if is_path and name not in WRITTEN and words[0] not in ELSEWHERE:
                found.append(pytest.param(words, name, id="-".join([*words, name.strip("-")])))
    return found


def test_the_table_has_commands_of_each_kind() -> None:
    names = {parameter.id for parameter in paths_read()}
    assert {"animate-recording", "train-resume", "nemo-gym-failures-run", "check-paths", "play-from"} <= names


def test_values_are_named_in_one_style() -> None:
    """PATH for an argument, <kind> for an option."""
    wrong: list[str] = []
    for words, command in commands(typer.main.get_command(app)):
        context = typer.Context(command, info_name=" ".join(words))
        for parameter in command.get_params(context):
            described = describe_parameter(parameter, context)
            is_argument = isinstance(parameter, TyperArgument)
            pattern = r"[A-Z]+" if is_argument else r"(-\w, |--[\w-]+[, /]*)+( <[\w:/=|.-]+>)?"
            if described is not None and not re.fullmatch(pattern, described[1]):
                wrong.append(f"{' '.join(words)}: {described[1]}")
    assert wrong == []


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "binary"])
@pytest.mark.parametrize(("words", "name"), paths_read())
def test_a_wrong_path_is_one_line_with_what_on_what_and_what_to_do(
    tmp_path: Path, words: tuple[str, ...], name: str, kind: str
) -> None:
    command = "-".join(words)
    if (command, kind) in ALLOWED:
        pytest.skip("nothing in it is a run that has not begun")
    path = tmp_path / kind
    {
        "missing": lambda: None,
        "folder": path.mkdir,
        "empty": path.touch,
        "binary": lambda: path.write_bytes(bytes(range(256))),
    }[kind]()
    given = [name, str(path)] if name.startswith("-") else [str(path)]
    rest = [word.format(path=path) for word in REST.get((command, name), ())]
    done = CliRunner().invoke(app, [*words, *given, *rest])
    assert done.exit_code in (1, 2), done.output
    assert not done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(path) in done.stderr
    absent = rf"{re.escape(str(path))}( can't be read:)?( it)? (does not exist|is not there)"
    assert kind == "missing" or not re.search(absent, done.stderr), done.stderr
    assert not re.search(r"\[Errno|codec|unpack|Traceback|Error\(", done.stderr), done.stderr
