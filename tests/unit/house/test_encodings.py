"""Text is UTF-8 in any locale, and programs get an environment without Python's paths.

Ruff's PLW1514 finds the same calls on files, where it knows that the receiver is a path.
"""

import ast

import pytest

from tests.helpers.paths import ROOT

# The program's own environment has two variables.
SUPERVISOR = ROOT / "harbor_gym/sandboxes/supervisor/program"
SOURCES = sorted(file for folder in ("harbor_gym", "recipes") for file in (ROOT / folder).rglob("*.py"))
OPENS_TEXT = ("read_text", "write_text")
DECODES = {"text", "universal_newlines"}


def calls(source: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]


def in_the_locale(source: str) -> list[str]:
    """Return the calls that leave the encoding to the locale."""
    found = [
        call
        for call in calls(source)
        if (isinstance(call.func, ast.Attribute) and call.func.attr in OPENS_TEXT)
        or DECODES & {word.arg for word in call.keywords}
        if "encoding" not in {word.arg for word in call.keywords}
    ]
    return [f"line {call.lineno}: {ast.unparse(call)}" for call in found if not is_no_file(call)]


def is_no_file(call: ast.Call) -> bool:
    """Return whether `text=` is a text, as a record's is, and not a question."""
    return not isinstance(call.func, ast.Attribute) or (
        call.func.attr not in (*OPENS_TEXT, "run", "Popen", "check_output", "check_call")
    )


def hands_on_all_variables(source: str) -> list[str]:
    """Return where `{**os.environ, …}` stands, but in an update of the process's own environment."""
    updates = [call for call in calls(source) if ast.unparse(call.func) == "os.environ.update"]
    own = [ast.unparse(argument) for call in updates for argument in call.args]
    return [
        f"line {node.lineno}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Dict) and ast.unparse(node) not in own
        for key, value in zip(node.keys, node.values, strict=True)
        if key is None and ast.unparse(value) == "os.environ"
    ]


def test_no_text_is_left_to_the_locale() -> None:
    left = {str(file.relative_to(ROOT)): in_the_locale(file.read_text(encoding="utf-8")) for file in SOURCES}
    assert {file: lines for file, lines in left.items() if lines} == {}


@pytest.mark.parametrize("source", ["file.read_text()", "file.write_text('a')", "subprocess.run(argv, text=True)"])
def test_what_is_left_to_the_locale_is_found(source: str) -> None:
    assert in_the_locale(source)


def test_no_program_gets_all_of_the_callers_variables() -> None:
    sources = [file for file in SOURCES if not file.is_relative_to(SUPERVISOR)]
    left = {str(file.relative_to(ROOT)): hands_on_all_variables(file.read_text(encoding="utf-8")) for file in sources}
    assert {file: lines for file, lines in left.items() if lines} == {}
