"""Audit the tasks of a set, some at the same time, and keep a receipt of each."""

from __future__ import annotations

import asyncio
import importlib.metadata
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harbor_gym import __version__
from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.checking.audit.contents import TaskContents
from harbor_gym.checking.audit.episodes import find_in_runs
from harbor_gym.checking.audit.hygiene import find_hygiene
from harbor_gym.checking.audit.kinds import at, finding
from harbor_gym.checking.audit.leaks import find_leaks
from harbor_gym.checking.audit.probes import find_by_probes, find_slow
from harbor_gym.checking.audit.rebuild import find_by_rebuild
from harbor_gym.checking.audit.regrades import Graded, counts_of, find_in_grades, grade_sample
from harbor_gym.checking.audit.sets import Likeness, compare, likeness
from harbor_gym.checking.audit.vacuous import find_vacuous
from harbor_gym.checking.audit.vary import conditions_of, find_by_conditions
from harbor_gym.checking.audit.verdicts import find_in_check
from harbor_gym.checking.checks import check_task
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.verdict import SOLVED, TaskCheck
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import SandboxError, SandboxLostError, TaskError, UsageError
from harbor_gym.tasks import SourcedTask
from harbor_gym.tasks.receipts import Finding, Receipt, read_receipts

DETECTORS = 4
"""Raised when a detector changes, so that tasks are judged again."""


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """The settings of an audit."""

    folder: StrPath
    """Where the receipts are kept; those that are there are not made again."""

    check: CheckPlan | None
    """How to play each task; None reads the files alone."""

    sandbox: str | None = None
    """The sandbox's name, for the receipts."""

    vary: bool = True
    """Whether a sound task is played under other conditions, too."""

    rebuild: bool = False
    """Whether the image of a task that was played is built once more and compared; for ``local`` sandboxes."""

    jobs: int = 2
    """Tasks audited at the same time."""

    task_timeout_sec: float | None = 3600.0
    """Seconds for all trials of one task. A task that takes longer has no verdict."""

    executor: Executor | None = None
    """Judges the tasks, such as :func:`harbor_gym.cluster.open_executor`'s; None judges them in this process."""

    fresh: bool = False
    """Judge every task, also with a receipt."""

    runs: Sequence[StrPath] = ()
    """Folders of training runs and evaluations whose stored episodes are read, too."""

    sample: int = 0
    """How many of these episodes are replayed and graded anew, in the view that they had and in the other one."""

    seed: int = 0
    """Draws them."""


@dataclass(slots=True)
class Audit:
    """The result of an audit, as far as it has got."""

    receipts: list[Receipt] = field(default_factory=list[Receipt])
    """One for each task, in the tasks' order."""

    kept: int = 0
    """How many of them were there already."""


async def audit_tasks(
    tasks: Sequence[SourcedTask],
    plan: AuditPlan,
    *,
    on_kept: Callable[[int], None] = lambda _: None,
    on_judged: Callable[[Receipt], None] = lambda _: None,
    on_graded: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Audit tasks and write their receipts. An interrupted audit goes on where it was.

    Args:
        tasks: Tasks as :func:`harbor_gym.tasks.resolve_tasks` returns them.
        plan: What to do with each, and where to keep the receipts.
        on_kept: Called once with the number of tasks that have a receipt already.
        on_judged: Called with each new receipt as soon as its task is judged.
        on_graded: Called with the number of episodes that were graded anew, and of those that are to be.

    Raises:
        UsageError: A receipt of the folder can't be read, or a run has no transcript.
        OSError: A receipt can't be written.
        SandboxLostError: A process of an executor of processes was killed.
    """
    known = {} if plan.fresh else _known(plan)
    kept = [known.get((task.name, task.digest)) for task in tasks]
    audit = Audit(kept=sum(receipt is not None for receipt in kept))
    on_kept(audit.kept)
    results: dict[str, Receipt] = {receipt.task: receipt for receipt in kept if receipt is not None}
    likenesses: dict[str, Likeness] = {}
    slots = asyncio.Semaphore(plan.jobs)

    async def judge(task: SourcedTask) -> None:
        async with slots:
            if task.name in results:
                contents = TaskContents(task.path)
                likenesses[task.name] = await asyncio.to_thread(likeness, contents, task.path.name)
                return
            judging = _judge(task, plan) if plan.executor is None else _judge_by(plan.executor, task, plan)
            receipt, like = await judging
            likenesses[task.name] = like
            receipt.write(plan.folder)
            results[task.name] = receipt
        on_judged(receipt)

    async with task_group() as group:
        for task in tasks:
            group.create_task(judge(task), name="harbor-gym-audit")
    among = await asyncio.to_thread(compare, {task.name: likenesses[task.name] for task in tasks})
    played = await asyncio.to_thread(find_in_runs, plan.runs, tasks)
    graded = await _grade(plan, tasks, results, on_graded)
    for task in tasks:
        receipt, grades = results[task.name], graded.get(task.name, ())
        own = (one for one in receipt.findings if not one.is_of_the_set)
        found = [*own, *among.get(task.name, ()), *played.get(task.name, ()), *find_in_grades(grades)]
        new = {"findings": _sorted(found), "episodes": counts_of(grades) if grades else None}
        if new != {name: getattr(receipt, name) for name in new}:
            receipt = receipt.model_copy(update=new)
            receipt.write(plan.folder)
        audit.receipts.append(receipt)
    return audit


async def _grade(
    plan: AuditPlan,
    tasks: Sequence[SourcedTask],
    receipts: Mapping[str, Receipt],
    on_graded: Callable[[int, int], None],
) -> Mapping[str, Sequence[Graded]]:
    if not plan.runs or not plan.sample:
        return {}
    return await grade_sample(
        plan.runs,
        tasks,
        {name: receipt.view for name, receipt in receipts.items()},
        sample=plan.sample,
        seed=plan.seed,
        jobs=plan.jobs,
        timeout_sec=plan.task_timeout_sec,
        on_graded=on_graded,
    )


def _known(plan: AuditPlan) -> dict[tuple[str, str], Receipt]:
    """Return the receipts that need not be made again, by the task's name and digest."""
    try:
        found = read_receipts(plan.folder)
    except UsageError:
        if Path(plan.folder, "receipts").is_dir():
            raise
        return {}
    wanted = (_versions(), plan.sandbox, _settings(plan))
    return {
        (receipt.task, receipt.digest): receipt
        for receipts in found.values()
        for receipt in receipts
        if (receipt.versions, receipt.sandbox, receipt.settings) == wanted
        and not any(one.kind == "verdict/sandbox-failed" for one in receipt.findings)
    }


def _versions() -> dict[str, str]:
    return {"harbor_gym": __version__, "harbor": importlib.metadata.version("harbor"), "detectors": str(DETECTORS)}


def _settings(plan: AuditPlan) -> dict[str, Any]:
    if (check := plan.check) is None:
        return {}
    function = check.reward_function
    return {
        "repeat": check.repeat,
        "forge": check.try_exploits,
        "vary": list(conditions_of(check.environment)) if plan.vary else [],
        "rebuild": plan.rebuild,
        "reward_key": check.reward_key,
        "reward_function": function if function is None or isinstance(function, str) else repr(function),
        "verify_paths": check.verify_paths
        if isinstance(check.verify_paths, str)
        else list(map(str, check.verify_paths)),
    }


async def _judge(task: SourcedTask, plan: AuditPlan) -> tuple[Receipt, Likeness]:
    """Judge one task: whatever it does costs its own verdict alone."""
    began = time.monotonic()
    static, like = await read_task(task.path)
    durations = {"static": round(time.monotonic() - began, 3)}
    verdict: str | None = None
    view: tuple[str, ...] = ()
    is_unusable = any(one.kind in ("task/malformed", "task/no-verifier") for one in static)
    if plan.check is not None and not is_unusable:
        checked, found = await _check(task, plan, plan.check)
        static += found
        if checked is not None:
            verdict = checked.verdict.value
            if checked.pristine is not None and checked.pristine.oracle == SOLVED:
                view = checked.pristine.paths
            durations |= _durations(checked)
    receipt = Receipt(
        task=task.name,
        path=str(task.path),
        source=task.source,
        commit=task.commit,
        digest=task.digest,
        versions=_versions(),
        sandbox=plan.sandbox,
        settings=_settings(plan),
        judged_at=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict,
        view=view,
        findings=_sorted(static),
        durations=durations,
    )
    return receipt, like


async def _judge_by(executor: Executor, task: SourcedTask, plan: AuditPlan) -> tuple[Receipt, Likeness]:
    """Judge one task by a call of an executor, which may lose its worker."""
    config = TerminalEnvConfig(task_dir=task.path)  # Ray's executor brings a configuration's task to the node
    sent = replace(plan, executor=None)
    try:
        return await asyncio.wrap_future(executor.submit(_judge_there, config, task, sent))
    except BrokenExecutor as exc:  # of processes, which end together
        raise SandboxLostError(
            f"a process that judged tasks was killed, perhaps while it judged {task.name}: is there enough memory? "
            "The same command goes on where the audit was"
        ) from exc
    except SandboxError as exc:
        receipt, like = await _judge(task, replace(sent, check=None))
        lost = finding("verdict/sandbox-failed", f"{type(exc).__name__}: {' '.join(str(exc).split())}")
        known = {"sandbox": plan.sandbox, "settings": _settings(plan), "findings": _sorted([*receipt.findings, lost])}
        return receipt.model_copy(update=known), like


def _judge_there(config: TerminalEnvConfig, task: SourcedTask, plan: AuditPlan) -> tuple[Receipt, Likeness]:
    """Judge a task in an executor's worker, where the configuration names its directory."""
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("audit"), ignore_cleanup_errors=True) as trials:
        check = None if plan.check is None else replace(plan.check, trials_dir=trials)
        receipt, like = asyncio.run(_judge(replace(task, path=config.task_dir), replace(plan, check=check)))
    return receipt.model_copy(update={"path": str(task.path)}), like


async def read_task(task_dir: Path) -> tuple[list[Finding], Likeness]:
    """Return what a task's files show, without a sandbox, and what to compare the task with others by."""
    findings, like = await asyncio.to_thread(_read, task_dir)
    return [*findings, *await _load(task_dir)], like


def _read(task_dir: Path) -> tuple[list[Finding], Likeness]:
    """Return what a task's files show."""
    contents = TaskContents(task_dir)
    findings: list[Finding] = []
    tests = contents.below("tests")
    verifiers = "\n".join(file.text for file in contents.files if not file.file.startswith(("solution/", "README")))
    if not any(file.text.strip() for file in tests) and not _has_own_image(task_dir):
        findings.append(finding("task/no-verifier", "tests/ has no file that grades", [at("tests")]))
    elif "reward" not in verifiers and "/logs/verifier" not in verifiers:
        findings.append(finding("task/no-verifier", "no file of tests/ writes a reward", [at(tests[0].file)]))
    if not contents.instruction.strip():
        findings.append(finding("task/malformed", "instruction.md is missing or empty", [at("instruction.md")]))
    for find in (find_leaks, find_vacuous, find_hygiene):
        findings += find(contents)
    return findings, likeness(contents, task_dir.name)


def _has_own_image(task_dir: Path) -> bool:
    """Return whether the verifier's files may be in an image of its own."""
    return any((folder / "Dockerfile").is_file() for folder in (task_dir / "tests", *task_dir.glob("steps/*/tests")))


async def _load(task_dir: Path) -> list[Finding]:
    """Return why Harbor or this package can't use a task."""
    from harbor_gym.episode.task import load_task

    try:
        await load_task(task_dir)
    except TaskError as exc:
        lacks_tests = "tests/" in str(exc) or "test.sh" in str(exc)
        return [
            finding(
                "task/no-verifier" if lacks_tests else "task/malformed", " ".join(str(exc).split()), [at("task.toml")]
            )
        ]
    return []


async def _check(task: SourcedTask, audit: AuditPlan, plan: CheckPlan) -> tuple[TaskCheck | None, list[Finding]]:
    """Play all trials. A task that does not let them end has no check, and a finding that says so."""
    limit = asyncio.timeout(audit.task_timeout_sec)
    checked: TaskCheck | None = None
    found: list[Finding] = []
    try:
        async with limit:
            checked = await check_task(task, plan)
            found += find_in_check(checked)
            found += [one async for one in find_slow(task.path, checked)]
            async for one in find_by_probes(task.path, checked, plan):
                found.append(one)
            if audit.vary:
                async for one in find_by_conditions(task.path, checked, plan):
                    found.append(one)
            if audit.rebuild and checked.phases is not None:
                found += await find_by_rebuild(task.path, plan)
    except TimeoutError as exc:
        is_over = limit.expired()
        kind = "verdict/too-long" if is_over else "verdict/sandbox-failed"
        message = f"its trials have not ended after {audit.task_timeout_sec:g} s" if is_over else f"TimeoutError: {exc}"
        found.append(finding(kind, message))
    except UsageError:
        raise  # the audit's own: a setting of all tasks is wrong
    except Exception as exc:  # The boundary to one task: the others are judged whatever it does.
        found.append(finding("verdict/sandbox-failed", f"{type(exc).__name__}: {' '.join(str(exc).split())}"))
    return checked, found


def _durations(check: TaskCheck) -> dict[str, float]:
    phases = check.phases
    times: Mapping[str, float] = (
        {}
        if phases is None
        else {"start": phases.start, "agent": phases.agent, "verify": phases.verify, "stop": phases.stop}
    )
    return {name: round(seconds, 3) for name, seconds in {"check": check.seconds, **times}.items()}


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda one: (one.severity.rank, one.kind)))
