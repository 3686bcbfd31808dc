"""Every class that a docstring names under ``Raises:`` exists."""

import ast
import builtins
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.paths import ROOT

_SECTION = re.compile(r"^Raises:\n((?:    .*\n|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^    ([\w.]+(?:(?:, | and | or )[\w.]+)*):", re.MULTILINE)


@functools.cache
def _modules() -> dict[Path, ast.Module]:
    paths = sorted((ROOT / "harbor_gym").rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def _classes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


@functools.cache
def _known() -> set[str]:
    return {name for tree in _modules().values() for name in _classes(tree)} | set(dir(builtins))


def names_raised(docstring: str) -> list[str]:
    """Return the names of a docstring's ``Raises:`` section."""
    section = _SECTION.search(f"{inspect.cleandoc(docstring)}\n")
    return (
        [name for entry in _ENTRY.findall(section[1]) for name in re.split(r", | and | or ", entry)] if section else []
    )


def exists(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    return name in _known() or (
        module in sys.stdlib_module_names and hasattr(importlib.import_module(module), attribute)
    )


def _named(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from names_raised(ast.get_docstring(node) or "")


def test_the_section_is_read() -> None:
    docstring = """Do it.

    Args:
        one: A thing.

    Raises:
        FoundingError: Nothing was made,
            or it was: both.
        OSError, asyncio.TimeoutError: It took too long.
    """
    assert names_raised(docstring) == ["FoundingError", "OSError", "asyncio.TimeoutError"]


def test_every_class_exists() -> None:
    assert not exists("FoundingError")
    named = [(path.relative_to(ROOT), name) for path, tree in _modules().items() for name in _named(tree)]
    assert len(named) > 500
    assert [(str(path), name) for path, name in named if not exists(name)] == []
