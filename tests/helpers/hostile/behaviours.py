"""Modules of functions that each check one behaviour of a local sandbox: run as pytest's cases, or as a program."""

import asyncio
import inspect
import json
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from types import FunctionType

from harbor_gym.sandboxes.local.environment import LocalEnvironment
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.rootless import run_rootless
from tests.helpers.sandboxes.local import make_sandbox, running

Behaviour = Callable[[LocalEnvironment, Path], Awaitable[None]]


def behaviours_of(module: Mapping[str, object]) -> tuple[Behaviour, ...]:
    """Return the public coroutine functions of a module, from its ``globals()``."""
    return tuple(
        found
        for name, found in list(module.items())
        if isinstance(found, FunctionType)
        and inspect.iscoroutinefunction(found)
        and not name.startswith("_")
        and found.__module__ == module["__name__"]
    )


def run_as_program(behaviours: Collection[Behaviour]) -> None:
    """Run them, or those that the arguments name, each in a sandbox of its own, and print the failures as JSON."""
    named = sys.argv[1:]
    chosen = [behaviour for behaviour in behaviours if not named or behaviour.__name__ in named]
    json.dump({"run": len(chosen), "failures": asyncio.run(_run(chosen))}, sys.stdout)


async def _run(behaviours: Collection[Behaviour]) -> dict[str, str]:
    failures: dict[str, str] = {}
    for behaviour in behaviours:
        with tempfile.TemporaryDirectory() as folder:
            try:
                async with running(make_sandbox(Path(folder) / "sandbox")) as sandbox:
                    await sandbox.clean_up(
                        "baseline", {}, timeout_sec=PATIENCE_SEC
                    )  # commands are the policy's from here on
                    await behaviour(sandbox, Path(folder))
            except BaseException:
                failures[behaviour.__name__] = traceback.format_exc()
    return failures


async def expect_all_pass_as_rootless_user(module: str, count: int) -> None:
    """Run a module as a program of an ordinary user; ``count`` behaviours must run, and none fail."""
    done = await run_rootless("-m", module)
    assert json.loads(done.stdout) == {"run": count, "failures": {}}, done.stdout + done.stderr
