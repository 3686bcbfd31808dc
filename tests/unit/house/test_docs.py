"""README and pages: short, without dead links, and every code block in them works as described."""

import ast
import importlib
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from harbor_gym.cli.lazy import LAZY
from harbor_gym.cli.main import app
from harbor_gym.testing import check_env
from tests.benchmarks.__main__ import benchmarks
from tests.helpers import doc_blocks
from tests.helpers.doc_blocks import BLOCK, PAGES
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import FAKE

RUN_BY = {
    "README-1": "tests/unit/house/test_docs.py",
    "agents-1": "tests/integration/gateway/test_docs.py",
    "agents-2": "tests/integration/gateway/test_docs.py",
    "copies-1": "tests/unit/house/test_docs.py",
    "engines-1": "tests/integration/training/test_transformers_sampler.py",
    "engines-2": "tests/integration/training/test_transformers_sampler.py",
    "evaluation-1": "tests/unit/report/test_frame.py",
    "loop-1": "tests/integration/training/test_loop_page.py",
    "loop-2": "tests/integration/training/test_loop_page.py",
    "openenv-1": "tests/integration/adapters/test_openenv_server.py",
    "openenv-2": "tests/integration/adapters/test_openenv_server.py",
    "quick-start-1": "tests/unit/house/test_docs.py",
    "quick-start-2": "tests/unit/house/test_docs.py",
    "sandbox-authors-1": "tests/unit/testing/test_pytest_plugin.py",
    "sandbox-authors-2": "tests/unit/testing/test_pytest_plugin.py",
    "training-1": "tests/unit/house/test_docs.py",
    "trl-1": "tests/integration/training/trl/test_gpu_blocks.py",
    "trl-2": "tests/unit/adapters/test_trl_spec.py",
    "trl-3": "tests/integration/training/trl/test_gpu_blocks.py",
}
"""The test file that runs each Python block."""

MADE_WITH_THE_SITE = {"commands.md"}
"""Pages that .ci/docs/hooks.py adds."""

_INDENTED = re.compile(r"(?:^(?: {4}.*)?\n)+", re.MULTILINE)
_OURS = re.compile(r"harbor-gym |make bench ")


def blocks(language: str) -> list[Any]:
    """Return every fenced block of a language as a parameter."""
    return [pytest.param(text, id=name) for name, text in doc_blocks.blocks(language)]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every command line in a text, without comments and with broken lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and "=" in words[0]:
            words.pop(0)
        if words:
            yield words


def harbor_gym_lines() -> list[Any]:
    """Return every command line of ours, in fenced and in indented blocks."""
    lines: dict[str, list[str]] = {}
    for page in PAGES:
        text = page.read_text()
        fenced = [block for name, block in BLOCK.findall(text) if name in ("shell", "bash", "sh")]
        indented = [match[0] for match in _INDENTED.finditer(BLOCK.sub("", text)) if _OURS.search(match[0])]
        for block in (*fenced, *indented):
            for words in commands(block):
                if words[:2] == ["make", "bench"]:
                    words[1:] = ["bench", *shlex.split(words[2].removeprefix("ARGS="))]
                if words[0] == "harbor-gym" or words[:2] == ["make", "bench"]:
                    lines.setdefault(" ".join(words), words)
    return [pytest.param(words, id=line) for line, words in lines.items()]


def test_the_readme_is_one_page() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 90
    assert max(map(len, lines)) <= 125


def test_the_figures_of_the_benchmarks_stand_on_their_page_alone() -> None:
    """Pages of a benchmark of their own, and the records of decisions, have theirs: docs/benchmarks.md names them."""
    own = ("benchmarks.md", "apptainer.md", "scale.md")
    pages = [page for page in PAGES if page.name not in own and page.parent.name != "decisions"]
    lines = [(page.name, line) for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    figure = re.compile(r"(?=.*(?:`ls`|first prompt))(?=.*\b\d+(?:\.\d+)? ?(?:ms|s|milliseconds|seconds)\b)")
    assert [line for line in lines if figure.match(line[1])] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not re.match(r"https?://", target) and target not in MADE_WITH_THE_SITE:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


_PLACE = re.compile(r"`((?:harbor_gym|tests)/[\w./-]+)(?:::([\w.]+))?`")


def _names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{prefix}{node.name}.")
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize(("path", "name"), _PLACE.findall((ROOT / "docs/develop.md").read_text(encoding="utf-8")))
def test_every_place_that_the_page_for_developers_names_is_there(path: str, name: str) -> None:
    assert (ROOT / path).exists(), f"{path} is not there"
    if name:
        assert name in set(_names(ast.parse((ROOT / path).read_text(encoding="utf-8")).body)), f"{path} has no {name}"


def test_every_test_that_the_page_on_security_names_is_there() -> None:
    holds = (ROOT / "docs/security.md").read_text(encoding="utf-8").partition("## What holds")[2]
    cells = [row.split(" | ")[-1] for row in holds.partition("\n## ")[0].splitlines() if row.startswith("| ")]
    named = set(re.findall(r"`(\w+(?:\.py)?)…?`", " ".join(cells)))
    files = [path for folder in ("tests", "harbor_gym") for path in (ROOT / folder).rglob("*.py")]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files)
    there = {path.name for path in files} | set(re.findall(r"\w+", sources))
    missing = {name for name in named - there if not re.search(rf"def (?:test_)?{name}", sources)}
    assert (len(named) > 40, missing) == (True, set())


_IN_A_CHECKOUT = re.compile(
    r"`make [a-z]|^    make |recipes/|\.ci/|tests/(unit|contract|integration)|tasks/[a-z]+_task\b", re.MULTILINE
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_checkout_alone_has_is_said_to_be_there(page: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"))
    assert "--task-dir tasks/" not in text
    if page.name != "develop.md" and page.parent.name != "decisions":
        assert "checkout" in text or not _IN_A_CHECKOUT.search(text)


def test_every_page_is_in_the_sites_navigation() -> None:
    text = re.sub(r"!!python/name:\S+", "''", (ROOT / "mkdocs.yml").read_text())

    def paths(item: Any) -> Iterator[str]:
        if isinstance(item, str):
            yield item
        else:
            for value in item.values() if isinstance(item, dict) else item:  # pyright: ignore[reportUnknownVariableType]
                yield from paths(value)

    listed = set(paths(yaml.safe_load(text)["nav"]))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]} | MADE_WITH_THE_SITE


@pytest.mark.parametrize("words", harbor_gym_lines())
def test_every_command_line_is_one_that_the_program_takes(words: list[str], tmp_path: Path) -> None:
    program, name, *arguments = words
    command: Any = get_command(LAZY[name].app() if name in LAZY else app if program == "harbor-gym" else benchmarks)
    if program == "harbor-gym" and name not in LAZY:
        command = command.commands[name]
    while hasattr(command, "commands") and arguments:
        command, arguments = command.commands[arguments[0]], arguments[1:]
    flags = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in arguments if re.match(r"--?[a-z]", word)]
    unknown = [flag for flag in given if flag not in {*flags, "--help", "-h"}]
    assert not unknown or command.context_settings.get("ignore_unknown_options"), f"{name} takes no {unknown}"


@pytest.mark.parametrize("text", blocks("python"))
def test_every_python_block_imports_what_there_is_and_calls_it_with_arguments_that_it_takes(text: str) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(text, "block", "exec", ast.PyCF_ONLY_AST | flags)
    assert isinstance(tree, ast.Module)
    imported: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and re.match(r"(harbor_gym|harbor|trl)\b", node.module):
            if node.module.startswith("trl"):
                pytest.importorskip("trl", reason='pip install "harbor-gym[trl]"')
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
                imported[alias.asname or alias.name] = getattr(module, alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported:
            parameters = inspect.signature(imported[node.func.id]).parameters
            named = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
            takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
            assert takes_any or named <= set(parameters), f"{node.func.id} takes no {named - set(parameters)}"


def test_every_python_block_is_run_by_a_test() -> None:
    found = {block.id for block in blocks("python")}
    assert found == set(RUN_BY)
    for file in set(RUN_BY.values()):
        names = [page.name for page in PAGES if any(RUN_BY.get(f"{page.stem}-{n}") == file for n in range(1, 9))]
        for name in names:
            assert name in (ROOT / file).read_text(), f"{file} does not read {name}"


def test_every_block_of_data_is_well_formed() -> None:
    readers = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
    found = [(block, read) for language, read in readers.items() for block in blocks(language)]
    assert found
    for block, read in found:
        assert read(block.values[0]), block.id


def block_with(page: str, words: str) -> str:
    (found,) = (text for name, text in BLOCK.findall((ROOT / page).read_text()) if name == "python" and words in text)
    return found


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", "gym.make"),
        ("docs/guide/quick-start.md", "gym.make"),
        ("docs/guide/quick-start.md", "AsyncTerminalGymEnv"),
        ("docs/guide/copies.md", "fork"),
    ],
)
@pytest.mark.parametrize("sandbox", ["fake", pytest.param("local", marks=[pytest.mark.local, pytest.mark.slow])])
def test_the_first_blocks_run(page: str, words: str, sandbox: str) -> None:
    text = block_with(page, words)
    assert 'task_dir="task:devops_task"' in text
    if sandbox == "fake":
        text = text.replace('task_dir="task:devops_task"', f'task_dir="task:devops_task", sandbox="{FAKE}"')
    exec(compile(text, page, "exec"), {"__name__": "block"})


async def test_the_example_of_shaping_keeps_the_contract() -> None:
    block: dict[str, Any] = {}
    exec(compile(block_with("docs/training.md", "StepCost"), "training", "exec"), block)
    (await check_env(block["make_env"])).raise_for_failures()
