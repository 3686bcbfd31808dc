"""The runs and evaluations in a folder, for the page that lists them."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harbor_gym.report.evaluation import evaluated_model, read_evaluation
from harbor_gym.report.metrics import METRICS_NAME, REWARD_KEYS, metric_points, model_of, read_metrics, run_config
from harbor_gym.report.page import MAX_RUNS, fill
from harbor_gym.transcripts import JOURNAL_NAME, RESULT_NAME

_MARKS = (METRICS_NAME, RESULT_NAME, JOURNAL_NAME, "run.json", "transcripts")
"""Files and a folder of which a run has at least one; their times say when it changed."""

_DEPTH = 2
"""A sweep's runs are one folder below it."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A row of the list."""

    name: str
    """The run's folder, from the listed one."""

    folder: Path
    kind: str
    """``training``, ``evaluation``, or ``episodes`` where only transcripts are there."""

    model: str
    amount: str
    """How much has been played or trained."""

    measure: str
    """What ``value`` is; empty without one."""

    value: float | None
    low: float | None
    """The interval of ``value``; None where none is known."""

    high: float | None
    changed: float
    """Seconds since the epoch."""

    @property
    def address(self) -> str:
        """The run's page, from the list's."""
        return f"view/{quote(self.name, safe='')}/"

    @property
    def figure(self) -> str:
        """The value with its interval, as text."""
        if self.value is None:
            return ""
        interval = "" if self.low is None or self.high is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}{interval}"

    @property
    def when(self) -> str:
        """The local time of the last change."""
        return f"{datetime.fromtimestamp(self.changed):%Y-%m-%d %H:%M}"


class Catalog:
    """The runs in a folder. A run that did not change is not read again.

    Args:
        folder: The folder; it may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, ListedRun] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[ListedRun]:
        """Return the runs, the last changed first."""
        with self._lock:
            found = dict(_changes(self.folder, _DEPTH))
            self._known = {
                folder: known
                if (known := self._known.get(folder)) is not None and known.changed == changed
                else _read(folder, self._name(folder), changed)
                for folder, changed in found.items()
            }
            return sorted(self._known.values(), key=lambda run: (-run.changed, run.name))

    def folder_of(self, name: str) -> Path | None:
        """Return the folder of a run by its name in the list; None if there is no such run."""
        named = {run.name: run.folder for run in self._known.values()}
        if name not in named:  # it may be new
            named = {run.name: run.folder for run in self.runs()}
        return named.get(name)

    def _name(self, folder: Path) -> str:
        return folder.name if folder == self.folder else folder.relative_to(self.folder).as_posix()

    def page(self) -> str:
        """Return the HTML of the list."""
        runs = self.runs()
        state = hashlib.sha256(repr(runs).encode()).hexdigest()
        name = self.folder.name or str(self.folder)
        return fill(
            "index.html.jinja", ("theme.js", "index.js"), is_live=True, name=name, runs=runs, state=state, most=MAX_RUNS
        )


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run or an evaluation, finished or not."""
    return _changed(folder) is not None


def _changes(folder: Path, depth: int) -> Iterator[tuple[Path, float]]:
    """Yield the folder if it is a run, else the runs in it and below, and when each changed."""
    if (changed := _changed(folder)) is not None:
        yield folder, changed
        return
    with contextlib.suppress(OSError):
        for below in folder.iterdir() if depth else ():
            if below.is_dir() and not below.is_symlink():
                yield from _changes(below, depth - 1)


def _changed(folder: Path) -> float | None:
    """Return when a run last changed; None if the folder is no run's."""
    times: list[float] = []
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            times.append((folder / mark).stat().st_mtime)
    return max(times, default=None)


def _read(folder: Path, name: str, changed: float) -> ListedRun:
    evaluation = read_evaluation(folder)
    if evaluation is not None:
        return _evaluation(folder, name, changed, evaluation)
    records, config = read_metrics(folder / METRICS_NAME), run_config(folder)
    is_training = bool(records or config)
    rewards = [value for _, value in metric_points(records[-1:], REWARD_KEYS)]
    return ListedRun(
        name,
        folder,
        "training" if is_training else "episodes",
        model_of(config) or "",
        f"{len(records)} batches" if is_training else f"{_count(folder)} episodes",
        "reward" if rewards else "",
        rewards[0] if rewards else None,
        None,
        None,
        changed,
    )


def _evaluation(folder: Path, name: str, changed: float, evaluation: dict[str, Any]) -> ListedRun:
    overall = evaluation.get("overall") or {}
    passed = (overall.get("pass_at") or {}).get("1") or {}
    played = overall["episodes"] if "episodes" in overall else _count(folder)
    return ListedRun(
        name,
        folder,
        "evaluation",
        evaluated_model(evaluation.get("settings") or {}) or "",
        f"{played} episodes" + ("" if overall else ", not finished"),
        "pass@1" if passed else "",
        passed.get("value"),
        passed.get("low"),
        passed.get("high"),
        changed,
    )


def _count(folder: Path) -> int:
    return sum(1 for _ in (folder / "transcripts").rglob("*.json"))
