"""Recipes run in this process: what only a process of their own can show is tested in few of them."""

import functools
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType

from typer.testing import CliRunner, Result

from tests.helpers.paths import ROOT

RECIPES = ROOT / "recipes"
SECRETS = ("TINKER_API_KEY", "DAYTONA_API_KEY", "DAYTONA_JWT_TOKEN")


@functools.cache
def load_recipe(name: str) -> ModuleType:
    """Return a recipe as a module; its own end of a program does not run."""
    spec = importlib.util.spec_from_file_location(f"harbor_gym_recipe_{name}", RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(RECIPES))  # as for a script: it may import what lies beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(RECIPES))
    return module


def run_recipe(name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Result:
    """Run a recipe without anybody's keys; its output, errors and exit code are the result's."""
    return CliRunner().invoke(load_recipe(name).app, arguments, env={**dict.fromkeys(SECRETS), **(env or {})})


def expect_refused(done: Result, expected: str) -> None:
    """Expect one line on standard error, and exit code 2."""
    assert done.exit_code == 2, (done.stderr, done.exception)
    assert expected in done.stderr.lower() or expected in done.stderr
    assert done.stderr.count("\n") == 1
