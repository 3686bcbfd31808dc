"""``make test`` runs the list in tests/short.txt: each entry exists, and none is marked as slow."""

import ast

import pytest

from tests.helpers.paths import ROOT

LISTED = (ROOT / "tests" / "short.txt").read_text().split()


@pytest.mark.parametrize("entry", LISTED)
def test_each_entry_is_there_and_is_run(entry: str) -> None:
    path, _, name = entry.partition("::")
    assert (ROOT / path).exists()
    if name:
        module = ast.parse((ROOT / path).read_text()).body
        tests = [node for node in module if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        (test,) = (test for test in tests if test.name == name)
        marks = [*test.decorator_list, *(node for node in module if "pytestmark" in ast.dump(node))]
        assert not any("attr='slow'" in ast.dump(mark) for mark in marks)
