"""Grade a sample of a run's stored episodes anew: in the view that each had, and in the other one."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.checking.audit.episodes import names_here, read_transcripts
from harbor_gym.checking.audit.kinds import finding
from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.errors import HarborGymError
from harbor_gym.regrading import Regraded, regrade_episode
from harbor_gym.tasks import SourcedTask
from harbor_gym.tasks.receipts import EpisodeGrades, Evidence, Finding

SAMPLE = 20
"""Episodes that an audit grades anew."""

_SHOWN = 5
"""Episodes that a finding quotes."""


@dataclass(frozen=True, slots=True)
class Graded:
    """A stored episode and what other gradings of it say."""

    name: str
    """Its transcript, for people."""

    stored: float
    """The stored reward."""

    again: float | None
    """The reward of a replay that was graded in the same view; None if the episode can't be replayed."""

    shared: float | None = None
    """The reward where the verifier sees all of the policy's sandbox; None if it was not graded so."""

    pristine: float | None = None
    """The reward in a pristine view; None if it was not graded so."""

    @property
    def is_flaky(self) -> bool:
        """Whether two gradings in the same view differ."""
        return self.again is not None and self.again != self.stored

    @property
    def is_paid(self) -> bool:
        """Whether it is paid where the verifier sees all, and both views are known."""
        return not self.is_flaky and self.pristine is not None and self.shared is not None and self.shared > 0

    @property
    def is_forged(self) -> bool:
        """Whether it is paid, and a pristine view has another verdict."""
        return self.is_paid and self.pristine != self.shared


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored episode with a verdict."""

    run: Path
    path: Path
    reward: float
    settings: Mapping[str, Any]
    task: SourcedTask


async def grade_sample(
    runs: Sequence[StrPath],
    tasks: Sequence[SourcedTask],
    proposed: Mapping[str, Sequence[str]],
    *,
    sample: int,
    seed: int,
    jobs: int,
    timeout_sec: float | None,
    on_graded: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[Graded]]:
    """Draw stored episodes with a verdict, replay each in fresh sandboxes of its own kind, and grade it twice.

    Args:
        runs: Folders of training runs and evaluations.
        tasks: The tasks as :func:`harbor_gym.tasks.resolve_tasks` returns them; episodes of other files are left out.
        proposed: Name of a task → the paths of its pristine view where it declares none.
        sample: Episodes to draw.
        seed: Draws them.
        jobs: Episodes graded at the same time.
        timeout_sec: Seconds for both gradings of an episode, after which it counts as one that can't be replayed.
        on_graded: Called after each episode with the number of those that are done, and of all.

    Returns:
        The drawn episodes by the name of their task.

    Raises:
        UsageError: A folder has no transcript.
    """
    stored = await asyncio.to_thread(lambda: list(_with_verdict(runs, tasks)))
    drawn = random.Random(seed).sample(stored, min(sample, len(stored)))
    slots = asyncio.Semaphore(jobs)

    done = itertools.count(1)

    async def one(episode: _Stored) -> Graded:
        async with slots:
            try:
                async with asyncio.timeout(timeout_sec):
                    graded = await _grade(episode, proposed.get(episode.task.name, ()))
            except (TimeoutError, HarborGymError):
                graded = Graded(str(episode.path), episode.reward, None)
        on_graded(next(done), len(drawn))
        return graded

    async with task_group() as group:
        grading = [(episode.task.name, group.create_task(one(episode))) for episode in drawn]
    graded: dict[str, list[Graded]] = defaultdict(list)
    for task, result in grading:
        graded[task].append(result.result())
    return dict(graded)


def _with_verdict(runs: Sequence[StrPath], tasks: Sequence[SourcedTask]) -> Iterable[_Stored]:
    by_name = {task.name: task for task in tasks}
    for run in map(Path, runs):
        here = names_here(run, tasks)
        for path, _, document in read_transcripts(run):
            name = here.get(str(document.get("task") or path.parent.name))
            if name is not None and document.get("reward") is not None and not document.get("error"):
                yield _Stored(run, path, document["reward"], document.get("settings") or {}, by_name[name])


async def _grade(episode: _Stored, proposed: Sequence[str]) -> Graded:
    from harbor_gym.episode.task import declared_verify_paths, grades_in_shared_sandbox, load_task

    async def grade(view: VerifyPaths | None) -> Regraded:
        tasks = {Path(str(episode.settings.get("task_dir"))).name: episode.task.path}
        return await regrade_episode(episode.run, episode.path, tasks=tasks, verify_paths=view)

    name = str(episode.path)
    again = (await grade(None)).new
    if again is None:
        return Graded(name, episode.reward, None)
    task = await load_task(episode.task.path)
    declared, own = declared_verify_paths(task), episode.settings.get("verify_paths", "auto")
    is_pristine = declared is not None if own == "auto" else own != "off"
    other: VerifyPaths = "off" if is_pristine else declared or tuple(map(PurePosixPath, proposed))
    is_shared = any(grades_in_shared_sandbox(task, step) for step in task.config.steps or [None])
    in_other = (await grade(other)).new if other and is_shared else None
    shared, pristine = (in_other, again) if is_pristine else (again, in_other)
    return Graded(name, episode.reward, again, shared, pristine)


def counts_of(graded: Iterable[Graded]) -> EpisodeGrades:
    """Return how many of the episodes differ, and of how many."""
    graded = list(graded)
    return EpisodeGrades.of(
        sampled=len(graded),
        unreplayed=sum(one.again is None for one in graded),
        flaky=sum(one.is_flaky for one in graded),
        paid=sum(one.is_paid for one in graded),
        forged=sum(one.is_forged for one in graded),
    )


def find_in_grades(graded: Sequence[Graded]) -> Iterable[Finding]:
    """Yield what the gradings of one task's episodes show."""
    flaky, forged = [one for one in graded if one.is_flaky], [one for one in graded if one.is_forged]
    if flaky:
        number = sum(one.again is not None for one in graded)
        message = f"{len(flaky)} of {number} episodes have another verdict when they are graded again"
        yield finding("episodes/flaky", message, [_evidence(one, "graded again", one.again) for one in flaky[:_SHOWN]])
    if forged:
        number = sum(one.is_paid for one in graded)
        message = f"{len(forged)} of {number} paid episodes have another verdict in a pristine view"
        evidence = [_evidence(one, "in a pristine view", one.pristine) for one in forged[:_SHOWN]]
        yield finding("episodes/view-differs", message, evidence)


def _evidence(graded: Graded, where: str, reward: float | None) -> Evidence:
    return Evidence(episode=graded.name, text=f"the reward is {reward:g} {where}", reward=graded.stored)
