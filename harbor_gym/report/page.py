"""A run as one HTML file: result, tasks, curves and every episode turn by turn. It needs no network and no server.

Text of terminals and policies is data in the page, never markup: it is in a JSON block with escaped ``<``, the script
inserts it as text only, and the page's content security policy allows only the script with the given hash.
"""

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined

from harbor_gym._runtime.files import StrPath, named_file, replace_text
from harbor_gym.errors import UsageError, printable
from harbor_gym.report.evaluation import evaluation_facts, evaluation_provenance, read_evaluation
from harbor_gym.report.metrics import (
    METRICS_NAME,
    REWARD_KEYS,
    TURNS_KEYS,
    distinct_names,
    further_metrics,
    metric_points,
    read_metrics,
)
from harbor_gym.report.results import Failure, TaskRow, dropped, failures, task_rows
from harbor_gym.report.summaries import Chosen, choose_episodes, summarize_episode
from harbor_gym.report.svg import chart
from harbor_gym.report.training import BATCH_TITLES, batch_row, training_facts, training_provenance

PAGE_NAME = "report.html"
MAX_EPISODES = 400
"""Default limit of episodes on a page."""

MAX_BYTES = 64 << 20
"""Default limit of text and recordings on a page, in bytes; a browser still opens it quickly."""

MAX_RUNS = 6
"""Most runs on a page."""

SCRIPTS = ("theme.js", "player.js", "elements.js", "list.js", "detail.js", "page.js")
_MOST_CHARTS = 120
"""Most further metrics that are drawn; their names in alphabetical order."""


@dataclass(frozen=True)
class Page:
    """A page that was written."""

    path: Path
    """The file."""

    shown: int
    """Episodes in it."""

    found: int
    """Episodes in the run's folder."""

    unreadable: tuple[str, ...] = ()
    """Names of the episodes in it whose transcripts can't be read."""


@dataclass(frozen=True)
class Head:
    """The part of a page above the episodes of one run."""

    name: str
    """The run's name on the page."""

    facts: Mapping[str, Any]
    """Title → fact; facts that are None are not shown."""

    provenance: Mapping[str, Any]
    """Likewise: with what the run was made."""

    tasks: Mapping[str, TaskRow]
    """Task → its results."""

    failures: Sequence[Failure]
    """Its failures by reason."""

    batches: Sequence[Sequence[str]] = ()
    """Rows of the table of a training run's batches."""


@dataclass(frozen=True)
class Curves:
    """The charts of a page, as SVG: one for each quantity, with a line for each run."""

    main: Sequence[str]
    """Those of the reward and of the turns."""

    further: Sequence[str]
    """Those of the other metrics."""

    left_out: int
    """Further metrics that have no chart, since there are too many."""


def write_page(
    run_dir: StrPath | Sequence[StrPath],
    path: StrPath | None = None,
    *,
    max_episodes: int = MAX_EPISODES,
    max_bytes: int = MAX_BYTES,
) -> Page:
    """Write the page of a run, or of several that are compared. An existing page is replaced atomically.

    Args:
        run_dir: The folder of a run, finished or not, of an evaluation, or of another recipe of the cookbook.
        path: The file to write; None is ``report.html`` in the (first) run's folder.
        max_episodes: Most episodes of each run; a larger run is sampled evenly over its batches.
        max_bytes: Most text and recordings of each run, in bytes.

    Raises:
        UsageError: A folder has neither metrics nor transcripts, there are more than :data:`MAX_RUNS`, or ``path`` is
            no file.
    """
    folders = [Path(each) for each in ([run_dir] if isinstance(run_dir, str | os.PathLike) else run_dir)]
    require_shown_runs(folders)
    chosen = [choose_episodes(folder, most=max_episodes, max_bytes=max_bytes) for folder in folders]
    for folder, found in zip(folders, chosen, strict=True):
        if not found.found and not read_metrics(folder / METRICS_NAME):
            why = (
                f"it has neither {METRICS_NAME} with a batch nor transcripts" if folder.is_dir() else "it is no folder"
            )
            raise UsageError(f"{folder} is no training run: {why}: name the folder of a run or an evaluation")
    path = folders[0] / PAGE_NAME if path is None else named_file(Path(path))
    replace_text(path, _document(folders, path, chosen))
    return Page(
        path,
        shown=sum(len(found.episodes) for found in chosen),
        found=sum(found.found for found in chosen),
        unreadable=tuple(name for found in chosen for name in found.unreadable),
    )


def require_shown_runs(folders: Sequence[Path]) -> None:
    """Raise a :class:`UsageError` if a page can't show this number of runs."""
    if not 1 <= len(folders) <= MAX_RUNS:
        raise UsageError(f"a page shows 1 to {MAX_RUNS} runs, got {len(folders)}: name fewer")


def _document(folders: Sequence[Path], path: Path, chosen: Sequence[Chosen]) -> str:
    names = distinct_names(folders)
    summaries = [[*map(summarize_episode, found.episodes)] for found in chosen]
    runs = [
        {
            "name": name,
            "files": _links(folder, path),
            "place": folder.resolve().name,
            "list": listed,
            "episodes": {episode["name"]: episode for episode in found.episodes},
        }
        for name, folder, listed, found in zip(names, folders, summaries, chosen, strict=True)
    ]
    heads = [
        head_of(folder, name, listed, place=place, episodes=_episodes(found))
        for place, (name, folder, listed, found) in enumerate(zip(names, folders, summaries, chosen, strict=True))
    ]
    return render(data={"runs": runs}, heads=heads, curves=run_curves(folders))


def head_of(folder: Path, name: str, summaries: Sequence[Mapping[str, Any]], *, place: int, **more: str) -> Head:
    """Return the part of a page above a run's episodes.

    Args:
        folder: The run's folder.
        name: The run's name on the page.
        summaries: Summaries of its episodes.
        place: Its number among the page's runs, from 0.
        more: Further facts by title.
    """
    records = read_metrics(folder / METRICS_NAME)
    evaluation = read_evaluation(folder)
    facts, provenance = (
        (training_facts(folder, records), training_provenance(folder))
        if evaluation is None
        else (evaluation_facts(evaluation), evaluation_provenance(evaluation))
    )
    return Head(
        name,
        {**facts, "dropped": dropped(summaries), **more},
        provenance,
        task_rows(evaluation or {}, summaries, place=place),
        failures(evaluation or {}, summaries, place=place),
        [batch_row(record) for record in records],
    )


def render(*, data: Mapping[str, Any], heads: Sequence[Head], curves: Curves, is_live: bool = False) -> str:
    """Return the page's HTML.

    Args:
        data: The script's data, for JSON.
        heads: The head of each run.
        curves: The runs' charts.
        is_live: Whether the script may send requests to the page's server.
    """
    return fill(
        "page.html.jinja",
        SCRIPTS,
        is_live=is_live,
        name=" and ".join(head.name for head in heads),
        heads=heads,
        tasks=_compared([head.tasks for head in heads]),
        curves=curves,
        batch_titles=BATCH_TITLES,
        data=_data(data),
    )


def _compared(runs: Sequence[Mapping[str, TaskRow]]) -> list[tuple[str, list[TaskRow | None], float | None]]:
    """Return for each task its results in each run, and the second's mean reward less the first's if there are two.

    Tasks whose rewards differ most come first.
    """
    rows: list[tuple[str, list[TaskRow | None], float | None]] = []
    for name in dict.fromkeys(name for run in runs for name in run):
        found = [run.get(name) for run in runs]
        rewards = [None if row is None else row.reward for row in found]
        first, second = rewards if len(rewards) == 2 else (None, None)
        rows.append((name, found, None if first is None or second is None else second - first))
    return sorted(rows, key=lambda row: -abs(row[2] or 0.0))


def fill(template: str, scripts: Sequence[str], *, is_live: bool, **values: Any) -> str:
    """Return the HTML of one of the templates, which runs only these scripts.

    Args:
        template: Its name among the static files.
        scripts: Names of its scripts there.
        is_live: Whether they may send requests to the page's server.
        values: What the template shows.
    """
    style, script = _static("page.css"), "".join(map(_static, scripts))
    live = "; connect-src 'self'" if is_live else ""
    # Every value is escaped except those that the template marks as safe: our own files, drawings and JSON.
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        finalize=_shown,
        loader=FunctionLoader(_static),
    )
    return environment.get_template(template).render(
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'{live}; base-uri 'none'",
        style=style,
        script=script,
        **values,
    )


def _shown(value: Any) -> Any:
    return printable(value) if type(value) is str else value  # not what the template marks as safe


def run_curves(folders: Sequence[Path]) -> Curves:
    """Return the charts of runs, each with a line for every run that has the quantity."""
    runs = [read_metrics(folder / METRICS_NAME) for folder in folders]
    names = distinct_names(folders)

    def drawn(keys: Sequence[str], label: str, top: float = 0.0) -> list[str]:
        points = [metric_points(records, keys) for records in runs]
        lines = [(place, name, line) for place, (name, line) in enumerate(zip(names, points, strict=True)) if line]
        return [chart(lines, label=label, top=top)] if lines else []

    further = further_metrics(runs)
    return Curves(
        [*drawn(REWARD_KEYS, "total reward", 1.0), *drawn(TURNS_KEYS, "turns per episode")],
        [svg for key in further[:_MOST_CHARTS] for svg in drawn((key,), key)],
        max(0, len(further) - _MOST_CHARTS),
    )


def _links(run_dir: Path, path: Path) -> str | None:
    """Return the relative address from the page's folder to the run's transcripts; None if there is none."""
    try:
        return quote(Path(os.path.relpath(run_dir.resolve() / "transcripts", path.resolve().parent)).as_posix())
    except ValueError:
        return None


def _static(name: str) -> str:
    return resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(data: Mapping[str, Any]) -> str:
    """Return JSON that can't close its HTML element."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII: no lone surrogate, no U+2028
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _episodes(chosen: Chosen) -> str:
    shown = len(chosen.episodes)
    left_out = f" of {chosen.found}; {chosen.found - shown} left out of this page" if chosen.found > shown else ""
    return f"{shown}{left_out}" + (f"; can't be read: {', '.join(chosen.unreadable)}" if chosen.unreadable else "")
