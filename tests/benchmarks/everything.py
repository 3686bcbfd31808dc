"""Every benchmark of one kind of sandbox in one report, with the machine that it ran on."""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from harbor_gym.errors import HarborGymError
from tests.benchmarks.machine import describe_machine, load
from tests.helpers.paths import ROOT

FORMAT = 1
"""Version of the report."""

_MOST_AT_ONCE = 64
_SHOWN_CHARS = 2000


def bench_everything(
    sandbox: str, *, scale: int, on_progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run ``step``, ``reset``, ``episode``, ``concurrency``, ``vector`` and ``gateway``, one after the other.

    Each is a process of its own, so that none is measured beside another one's leftovers. Blocks.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name.
        scale: Repetitions of a step; the other benchmarks' sizes go with it.
        on_progress: Receives the name of each benchmark that begins.

    Returns:
        Each benchmark's report by its name, beside ``format``, ``machine``, ``env``, ``day``, and the machine's
        ``load`` before and after, of other programs.

    Raises:
        HarborGymError: A benchmark failed, or one of its results was wrong.
    """
    before, reports = load(), dict[str, Any]()
    for name, arguments in _commands(sandbox, scale).items():
        on_progress(name)
        reports[name] = _run(name, arguments)
    return {
        "format": FORMAT,
        "env": sandbox,
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": dataclasses.asdict(describe_machine()),
        "load": {"before": before, "after": load()},
        **reports,
    }


def _commands(sandbox: str, scale: int) -> dict[str, Sequence[str]]:
    env, repeat, many = ("--env", sandbox), ("--repeat", str(scale)), str(min(6 * scale, _MOST_AT_ONCE))
    return {
        "step": (*env, *repeat),
        "reset": (*env, *repeat, "--at-once", "8"),
        "episode": (*env, "--episodes", many),
        "concurrency": (*env, "--terminals", many),
        "vector": (*env, *repeat, "--num-envs", many),
        "gateway": ("--sessions", many),
    }


def _run(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks", name, *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr or done.stdout).strip()[-_SHOWN_CHARS:]
        raise HarborGymError(f"bench {name} ended with exit code {done.returncode}: {why}")
    return json.loads(done.stdout)
