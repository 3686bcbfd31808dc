"""Play a task that seems sound twice more: without trying, and with every test runner failing."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.checking.audit.contents import TaskContents
from harbor_gym.checking.audit.kinds import finding
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.play import Played, Work, play
from harbor_gym.checking.verdict import SOUND, UNSOLVED, TaskCheck, Verdict
from harbor_gym.errors import HarborGymError, SandboxLostError
from harbor_gym.tasks.receipts import Evidence, Finding

if TYPE_CHECKING:
    from harbor_gym.episode import AgentPhase, Episode

_TIMEOUT_SEC = 60
_END = "harbor-gym-probe-ended"
_MOST_PATHS = 100
_PATH = re.compile(r"(?<![\w.~/:$}-])/[A-Za-z0-9_][\w.+@-]*(?:/[\w.+@-]+)*")
_NOT_THE_WORK = (
    "/tests",
    "/logs",
    "/solution",
    "/proc",
    "/sys",
    "/dev",
    "/bin",
    "/usr/bin",
    "/usr/sbin",
    "/sbin",
    "/lib",
)
_QUOTED = re.compile(r"`([^`\n]{1,200})`|\"([^\"\n]{1,200})\"|```\w*\n(.*?)```", re.DOTALL)
_RUNNERS = (
    "python python3 python3.10 python3.11 python3.12 python3.13 pytest py.test uv uvx "
    "node npm npx go cargo java mvn ruby perl make"
)
_HALF = 0.5


async def find_by_probes(task_dir: Path, check: TaskCheck, plan: CheckPlan) -> AsyncIterator[Finding]:
    """Yield what two more episodes show, of a task whose check found neither an error nor a reward for nothing.

    A probe that leaves no verdict finds nothing: a test runner that fails may leave none.

    Args:
        task_dir: The task's directory.
        check: The result of its check.
        plan: How it was checked.
    """
    if check.verdict not in SOUND:
        return
    untrying = await asyncio.to_thread(untrying_script, TaskContents(task_dir))
    played = await _reward(task_dir, _agent(untrying), plan)
    if played is not None:
        message = f"empty files and the instruction's quotations earn {played.reward:g}"
        yield finding("verdict/untrying-paid", message, [_evidence(untrying, played)])
    played = await _reward(task_dir, _agent(_failing_runners(), user="root"), plan)
    if played is not None:
        message = f"with nothing done and every interpreter failing, the verifier pays {played.reward:g}"
        yield finding("vacuous/runner-fails", message, [_evidence("every test runner exits with status 1", played)])


def untrying_script(contents: TaskContents) -> str:
    """Return commands that make, empty, each file that instruction or tests name, and print what is quoted."""
    texts = [contents.instruction, *(file.text for file in contents.below("tests"))]
    named = dict.fromkeys(path.rstrip(".") for text in texts for path in _PATH.findall(text))
    paths = [path for path in named if not path.startswith(_NOT_THE_WORK)][:_MOST_PATHS]
    quoted = [next(filter(None, groups)) for groups in _QUOTED.findall(contents.instruction)]
    return "\n".join((*_touches(paths), *(f"printf '%s\\n' {shlex.quote(text)}" for text in quoted)))


def _touches(paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        word = shlex.quote(path)
        is_folder = any(other != path and other.startswith(f"{path}/") for other in paths)
        yield f"mkdir -p {word}" if is_folder else f'[ -e {word} ] || {{ mkdir -p "$(dirname {word})" && : > {word}; }}'


def _failing_runners() -> str:
    return (
        f"for name in {_RUNNERS}; do\n"
        '    for place in $(type -ap "$name"); do\n'
        '        rm -f "$place" && printf \'#!/bin/sh\\nexit 1\\n\' > "$place" && chmod 755 "$place"\n'
        "    done\n"
        "done"
    )


def _agent(script: str, user: str | None = None) -> Work:
    command = f"bash -c {shlex.quote(script)} </dev/null >/dev/null 2>&1; echo {_END}"

    async def work(_episode: Episode, phase: AgentPhase) -> None:
        from harbor_gym.episode.episode import run_in_phase

        as_user = phase.user if user is None else user
        ran = phase.environment.exec(command, user=as_user, timeout_sec=_TIMEOUT_SEC)
        result = await run_in_phase(phase, ran)
        if _END not in (result.stdout or ""):
            raise SandboxLostError(f"the probe's commands did not run: {(result.stderr or '').strip()}")

    return work


async def _reward(task_dir: Path, work: Work, plan: CheckPlan) -> Played | None:
    """Return the played episode if it was paid."""
    try:
        played = await play(task_dir, work, plan, verify_paths="off", ambiguous_failures="infrastructure")
    except HarborGymError:
        return None
    return played if played.reward > UNSOLVED else None


def _evidence(script: str, played: Played) -> Evidence:
    return Evidence(text=f"{script[:250]}\n{played.output[-240:]}".strip(), reward=played.reward)


async def find_slow(task_dir: Path, check: TaskCheck) -> AsyncIterator[Finding]:
    """Yield the phases of the solution's episode that took more than half of the task's limit."""
    from harbor_gym.episode.task import load_task, phase_timeout_sec

    if check.phases is None or check.verdict is Verdict.ERROR or not check.has_solution:
        return
    task = await load_task(task_dir)
    if task.config.steps:
        return  # their limits are each step's, and their times are sums
    limits = {"agent": phase_timeout_sec(task), "verify": task.config.verifier.timeout_sec}
    for phase, seconds in (("agent", check.phases.agent), ("verify", check.phases.verify)):
        limit = limits[phase]
        if limit is not None and seconds > _HALF * limit:
            message = f"the solution's {phase} phase takes {seconds:.0f} s of {limit:g} s"
            yield finding("flaky/slow", message)
