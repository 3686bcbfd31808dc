"""Check one task, or several at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.checking.forging import forge_reward, trick_names
from harbor_gym.checking.trials import Agent, RefusedError, run_agent
from harbor_gym.checking.verdict import UNSOLVED, CheckPlan, TaskCheck
from harbor_gym.errors import HarborGymError, TaskError

if TYPE_CHECKING:
    from harbor_gym.task_sources import SourcedTask


async def check_tasks(
    tasks: Sequence[Path | SourcedTask],
    plan: CheckPlan,
    *,
    concurrency: int = 1,
    on_checked: Callable[[TaskCheck], None] = lambda _: None,
) -> list[TaskCheck]:
    """Check tasks, some at the same time, and return the verdicts in the tasks' order.

    Args:
        tasks: Task directories, or tasks as :func:`harbor_gym.task_sources.resolve_tasks` returns them.
        plan: How to check each.
        concurrency: How many tasks to check at once; the trials of one task follow one another.
        on_checked: Called with each verdict as soon as it is there.
    """
    slots = asyncio.Semaphore(concurrency)

    async def check(task: Path | SourcedTask) -> TaskCheck:
        async with slots:
            checked = await check_task(task, plan)
        on_checked(checked)
        return checked

    async with asyncio.TaskGroup() as group:
        checks = [group.create_task(check(task), name=f"harbor-gym-check-{task.name}") for task in tasks]
    return [check.result() for check in checks]


async def check_task(task: Path | SourcedTask, plan: CheckPlan) -> TaskCheck:
    """Run the oracle, an agent that does nothing, and one that forges the reward.

    Never raises for what is wrong with the task or the sandbox: that is the verdict's ``error``.

    Args:
        task: The task's directory, or a task that says where it came from.
        plan: The sandbox, the number of runs, and whether to forge.
    """
    started = time.monotonic()
    check = await _Check(task, plan).run()
    return replace(check, seconds=time.monotonic() - started)


class _Check:
    """One task's check in the making: what was found before a failure is kept."""

    def __init__(self, task: Path | SourcedTask, plan: CheckPlan) -> None:
        self._plan = plan
        if isinstance(task, Path):
            self._found = TaskCheck(task=task.name, path=task)
        else:
            self._found = TaskCheck(task=task.name, path=task.path, source=task.source, commit=task.commit)
        self._path = self._found.path
        self._doing = "task"

    async def run(self) -> TaskCheck:
        try:
            await self._require_well_formed()
            await self._run_agent("oracle")
            await self._run_agent("nop")
            if self._plan.forge:
                await self._forge()
        except HarborGymError as exc:
            error = f"{self._doing}: {' '.join(str(exc).split())}"
            return replace(self._found, error=error, refused=isinstance(exc, RefusedError))
        return self._found

    async def _require_well_formed(self) -> None:
        from harbor_gym.episode.task import load_task

        await load_task(self._path)
        if not _has_solution(self._path):
            raise TaskError(f"task directory {self._path} has no solution/ that the oracle could run")

    async def _run_agent(self, agent: Agent) -> None:
        for run in range(1, self._plan.repeat + 1):
            self._doing = agent if run == 1 else f"{agent}, run {run}"
            reward, phases = await run_agent(self._path, agent, self._plan)
            if agent == "oracle":
                self._found = replace(self._found, oracle=(*self._found.oracle, reward), phases=phases)
            else:
                self._found = replace(self._found, nop=(*self._found.nop, reward))

    async def _forge(self) -> None:
        """Play all tricks together; if that pays, each one alone, to name those that do."""
        self._doing = "forging"
        forged = await forge_reward(self._path, trick_names(), self._plan)
        self._found = replace(self._found, forged=forged)
        if forged in (UNSOLVED, *self._found.nop):
            return
        for trick in trick_names():
            self._doing = f"forging, {trick} alone"
            if await forge_reward(self._path, [trick], self._plan) == forged:
                self._found = replace(self._found, tricks=(*self._found.tricks, trick))


def _has_solution(task_dir: Path) -> bool:
    """Tell whether the task brings a solution that the oracle could run."""
    return (task_dir / "solution").is_dir() or any(task_dir.glob("steps/*/solution"))
