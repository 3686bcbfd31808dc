"""Check one task, or several at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harbor_gym.checking.forging import forger, trick_names
from harbor_gym.checking.oracle import do_nothing, has_solution, oracle
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.play import Played, RefusedError, Work, last_lines, play
from harbor_gym.checking.trials import run_plain_oracle
from harbor_gym.checking.verdict import SOLVED, UNSOLVED, TaskCheck, Verdict
from harbor_gym.errors import HarborGymError

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
        self._keys: set[str] = set()

    async def run(self) -> TaskCheck:
        try:
            await self._run()
        except HarborGymError as exc:
            self._note(
                error=f"{self._doing}: {' '.join(str(exc).split())}",
                refused=isinstance(exc, RefusedError),
                output=last_lines(exc.evidence.get("verifier_output", "")),
            )
        return self._found

    async def _run(self) -> None:
        from harbor_gym.episode.task import load_task

        await load_task(self._path)
        self._note(has_solution=has_solution(self._path))
        if self._found.has_solution:
            await self._run_oracle()
            await self._compare_plain_trial()
        for _ in self._runs("nop"):
            played = await self._play(do_nothing)
            self._note(nop=(*self._found.nop, played.reward), phases=self._found.phases or played.phases)
        if self._plan.forge and self._found.verdict is not Verdict.UNSOLVED:
            await self._forge()

    def _note(self, **found: Any) -> None:
        self._found = replace(self._found, **found)

    def _runs(self, agent: str) -> Iterator[None]:
        for run in range(1, self._plan.repeat + 1):
            self._doing = agent if run == 1 else f"{agent}, run {run}"
            yield

    async def _play(self, work: Work, *, keep_processes: bool | None = None) -> Played:
        played = await play(self._path, work, self._plan, keep_processes=keep_processes)
        self._keys |= played.keys
        self._note(image_substitutions=played.image_substitutions)
        return played

    async def _run_oracle(self) -> None:
        for _ in self._runs("oracle"):
            played = await self._play(oracle(self._path))
            self._note(
                oracle=(*self._found.oracle, played.reward),
                phases=played.phases,
                stopped_processes=played.stopped_processes,
                output=self._found.output if played.reward == SOLVED else played.output,
            )

    async def _compare_plain_trial(self) -> None:
        """Grade the solution as Harbor alone does; where that differs, find out whether its processes are why."""
        self._doing = "oracle, as a plain trial"
        plain = await run_plain_oracle(self._path, self._plan)
        self._note(plain=plain)
        if plain not in self._found.oracle:
            self._doing = "oracle, its processes kept"
            kept = await self._play(oracle(self._path), keep_processes=True)
            self._note(kept=kept.reward)

    async def _forge(self) -> None:
        """Play all tricks together; if that pays, each one alone, to name those that do."""
        self._doing = "forging"
        forged = await self._forge_by(trick_names())
        self._note(forged=forged)
        if forged in (UNSOLVED, *self._found.nop):
            return
        for trick in trick_names():
            self._doing = f"forging, {trick} alone"
            if await self._forge_by([trick]) == forged:
                self._note(tricks=(*self._found.tricks, trick))

    async def _forge_by(self, tricks: Sequence[str]) -> float:
        return (await self._play(forger(tricks, self._keys))).reward
