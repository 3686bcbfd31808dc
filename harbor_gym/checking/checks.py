"""Check one task, or several at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.harbor_versions import lint
from harbor_gym.checking.carrying import candidates, what_remains
from harbor_gym.checking.oracle import Oracle, do_nothing, has_solution
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.play import Played, Work, last_lines, play
from harbor_gym.checking.reward_hacking import run_exploit
from harbor_gym.checking.trials import run_plain_oracle
from harbor_gym.checking.verdict import SOLVED, SOUND, UNSOLVED, PristineCheck, TaskCheck, Verdict
from harbor_gym.config import AmbiguousFailures
from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.errors import HarborGymError, SandboxError, TaskUnsupportedError, TerminalError, VerifierError
from harbor_gym.tasks.oddities import find_oddities

if TYPE_CHECKING:
    from harbor.models.task.task import Task

    from harbor_gym.tasks import SourcedTask


async def check_tasks(
    tasks: Sequence[StrPath | SourcedTask],
    plan: CheckPlan,
    *,
    concurrency: int = 1,
    on_checked: Callable[[TaskCheck], None] = lambda _: None,
) -> list[TaskCheck]:
    """Check tasks, some at the same time, and return the verdicts in the tasks' order.

    Args:
        tasks: Task directories, or tasks as :func:`harbor_gym.tasks.resolve_tasks` returns them.
        plan: How to check each.
        concurrency: How many tasks to check at once; the trials of one task follow one another.
        on_checked: Called with each verdict as soon as it is known.
    """
    slots = asyncio.Semaphore(concurrency)

    async def check(task: StrPath | SourcedTask) -> TaskCheck:
        async with slots:
            checked = await check_task(task, plan)
        on_checked(checked)
        return checked

    async with asyncio.TaskGroup() as group:
        checks = [group.create_task(check(task), name="harbor-gym-check") for task in tasks]
    return [check.result() for check in checks]


async def check_task(task: StrPath | SourcedTask, plan: CheckPlan) -> TaskCheck:
    """Run the oracle, an agent that does nothing, and one that forges the reward.

    A failure of the task or the sandbox is not raised: it is the verdict's ``error``.

    Args:
        task: The task's directory, or a task with its source.
        plan: The sandbox, the number of runs, and whether to forge.
    """
    started = time.monotonic()
    check = await _Check(task, plan).run()
    return replace(check, seconds=time.monotonic() - started)


class _Check:
    """One task's check while it runs: a later failure keeps the earlier findings."""

    def __init__(self, task: StrPath | SourcedTask, plan: CheckPlan) -> None:
        self._plan = plan
        if isinstance(task, str | os.PathLike):
            self._found = TaskCheck(task=Path(task).name, path=Path(task))
        else:
            self._found = TaskCheck(task=task.name, path=task.path, source=task.source, commit=task.commit)
        self._path = self._found.path
        self._doing = "task"
        self._keys: set[str] = set()
        self._written: set[PurePosixPath] = set()
        self._supports_view = False

    async def run(self) -> TaskCheck:
        self._note(lint=await asyncio.to_thread(lint, self._path))
        try:
            await self._run()
        except HarborGymError as exc:
            self._note(
                error=f"{self._doing}: {' '.join(str(exc).split())}",
                refused=isinstance(exc, TaskUnsupportedError),
                is_lost=isinstance(exc, SandboxError | TerminalError),
                output=last_lines(exc.diagnostics.get("verifier_output", "")),
            )
        return self._found

    async def _run(self) -> None:
        from harbor_gym.episode.task import load_task

        task = await load_task(self._path)
        self._note(has_solution=has_solution(self._path), oddities=await asyncio.to_thread(find_oddities, self._path))
        if self._found.has_solution:
            await self._run_oracle()
            await self._compare_plain_trial()
        for _ in self._runs("nop"):
            played = await self._play(do_nothing)
            self._note(
                nop=(*self._found.nop, played.reward),
                phases=self._found.phases or played.phases,
                nop_output=self._found.nop_output if played.reward == UNSOLVED else played.output,
            )
        if self._found.verdict is Verdict.UNSOLVED:
            return
        if self._plan.try_exploits:
            self._doing = "reward hacking"
            hostile = partial(self._play, ambiguous_failures="zero")
            forged = await run_exploit(hostile, self._keys, (UNSOLVED, *self._found.nop), together=self._play)
            self._note(forged=forged.reward, tricks=forged.tricks, voided=forged.voided)
        may_view = self._supports_view or isinstance(self._plan.verify_paths, tuple)  # which a sandbox may refuse
        if may_view and self._found.verdict in SOUND:
            await self._check_view(task)

    async def _check_view(self, task: Task) -> None:
        from harbor_gym.episode.task import declared_verify_paths, grades_in_shared_sandbox

        if not any(grades_in_shared_sandbox(task, step) for step in task.config.steps or [None]):
            return
        asked = declared_verify_paths(task) if self._plan.verify_paths == "auto" else self._plan.verify_paths
        if asked == "off":
            return
        for carried in [asked] if asked is not None else candidates(self._written):
            pristine = PristineCheck(tuple(map(str, carried)), is_asked=asked is not None)
            pristine = await self._grade_in_view(pristine, carried)
            if pristine is not None:
                self._note(pristine=replace(pristine, remains=tuple(what_remains(self._path, carried))))
                return

    async def _grade_in_view(self, pristine: PristineCheck, carried: tuple[PurePosixPath, ...]) -> PristineCheck | None:
        """Grade the solution, doing nothing and reward hacking in a view; None if proposed paths do not suffice."""
        play = partial(self._play, verify_paths=carried)
        self._doing = f"oracle, in the pristine view of {', '.join(pristine.paths)}"
        if self._found.has_solution:
            try:
                played = await play(Oracle(self._path))
                pristine = replace(pristine, oracle=played.reward, stopped_processes=played.stopped_processes)
            except VerifierError:
                if pristine.is_asked:
                    raise
                return None
        if pristine.verdict is Verdict.UNSOLVED:
            return pristine if pristine.is_asked else None
        self._doing = "nop, in the pristine view"
        pristine = replace(pristine, nop=(await play(do_nothing)).reward)
        if self._plan.try_exploits:
            self._doing = "reward hacking, in the pristine view"
            hostile = partial(play, ambiguous_failures="zero")
            honest = (UNSOLVED, pristine.nop or UNSOLVED)
            forged = await run_exploit(hostile, self._keys, honest, together=play)
            pristine = replace(pristine, forged=forged.reward, tricks=forged.tricks)
            self._note(voided=tuple(sorted({*self._found.voided, *forged.voided})))
        return pristine

    def _note(self, **found: Any) -> None:
        self._found = replace(self._found, **found)

    def _runs(self, agent: str) -> Iterator[None]:
        for run in range(1, self._plan.repeat + 1):
            self._doing = agent if run == 1 else f"{agent}, run {run}"
            yield

    async def _play(
        self,
        work: Work,
        *,
        verify_paths: VerifyPaths = "off",
        ambiguous_failures: AmbiguousFailures = "infrastructure",
    ) -> Played:
        played = await play(
            self._path,
            work,
            self._plan,
            verify_paths=verify_paths,
            ambiguous_failures=ambiguous_failures,
        )
        self._keys |= played.keys
        self._supports_view = played.supports_view
        self._note(services=played.services)
        return played

    async def _run_oracle(self) -> None:
        for _ in self._runs("oracle"):
            solution = Oracle(self._path)
            played = await self._play(solution)
            self._written |= solution.written
            self._note(
                oracle=(*self._found.oracle, played.reward),
                phases=played.phases,
                output=self._found.output if played.reward == SOLVED else played.output,
                solved_output=played.output if played.reward == SOLVED else self._found.solved_output,
            )

    async def _compare_plain_trial(self) -> None:
        """Grade the solution as Harbor alone does."""
        self._doing = "oracle, as a plain trial"
        plain, output = await run_plain_oracle(self._path, self._plan)
        self._note(plain=plain, output=self._found.output or ("" if plain == SOLVED else output))
