"""A run as one HTML file: result, curves, batches and every episode turn by turn. It needs no network and no server.

Text of terminals and policies is data in the page, never markup: it is in a JSON block with escaped ``<``, the script
inserts it as text only, and the page's content security policy allows only the script with the given hash.
"""

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from harbor_gym._runtime.files import named_file, replace_text
from harbor_gym.errors import UsageError, printable
from harbor_gym.report.evaluation import evaluation_facts, failures, read_evaluation
from harbor_gym.report.live import outcomes, phases
from harbor_gym.report.metrics import METRICS_NAME, REWARD_KEYS, TURNS_KEYS, distinct_names, read_metrics, run_config
from harbor_gym.report.summaries import Chosen, choose_episodes, summarize_episode
from harbor_gym.report.svg import chart
from harbor_gym.types import EndReason

PAGE_NAME = "report.html"
MAX_EPISODES = 400
"""Default limit of episodes on a page."""

MAX_BYTES = 64 << 20
"""Default limit of text and recordings on a page, in bytes; a browser still opens it quickly."""

MAX_RUNS = 2
"""Most runs on a page."""

SCRIPTS = ("player.js", "elements.js", "list.js", "detail.js", "page.js")
_FAILURE_TITLES = ("failure", "reason", "episodes", "which")
_BATCH_TITLES = ("batch", "reward", "turns", "episodes", "tokens sampled", "seconds", "of these", "ended")


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

    failures: Sequence[Sequence[str]] = ()
    """Rows of the table of an evaluation's failures."""

    batches: Sequence[Sequence[str]] = ()
    """Rows of the table of a training run's batches."""


def write_page(
    run_dir: Path | Sequence[Path],
    path: Path | None = None,
    *,
    max_episodes: int = MAX_EPISODES,
    max_bytes: int = MAX_BYTES,
) -> Page:
    """Write the page of a run, or of two side by side. An existing page is replaced atomically.

    Args:
        run_dir: The folder of a run, finished or not, of an evaluation, or of another recipe of the cookbook.
        path: The file to write; None is ``report.html`` in the (first) run's folder.
        max_episodes: Most episodes of each run; a larger run is sampled evenly over its batches.
        max_bytes: Most text and recordings of each run, in bytes.

    Raises:
        UsageError: A folder has neither metrics nor transcripts, there are more than two, or ``path`` is no file.
    """
    folders = [run_dir] if isinstance(run_dir, Path) else list(run_dir)
    require_shown_runs(folders)
    chosen = [choose_episodes(folder, most=max_episodes, max_bytes=max_bytes) for folder in folders]
    for folder, found in zip(folders, chosen, strict=True):
        if not found.found and not read_metrics(folder / METRICS_NAME):
            why = (
                f"it has neither {METRICS_NAME} with a batch nor transcripts" if folder.is_dir() else "it is no folder"
            )
            raise UsageError(f"{folder} is no training run: {why}: name the folder of a run or an evaluation")
    path = folders[0] / PAGE_NAME if path is None else named_file(path)
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
        raise UsageError(f"the page shows one run, or two side by side; got {len(folders)}")


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
        head_of(folder, name, listed, episodes=_episodes(found))
        for name, folder, listed, found in zip(names, folders, summaries, chosen, strict=True)
    ]
    return render(data={"runs": runs}, heads=heads, curves=run_curves(folders))


def head_of(folder: Path, name: str, summaries: Sequence[Mapping[str, Any]], **more: str) -> Head:
    """Return the part of a page above a run's episodes.

    Args:
        folder: The run's folder.
        name: The run's name on the page.
        summaries: Summaries of its episodes.
        more: Further facts by title.
    """
    records = read_metrics(folder / METRICS_NAME)
    evaluation = read_evaluation(folder)
    facts = _facts(folder, records) if evaluation is None else evaluation_facts(evaluation)
    failed = [] if evaluation is None else failures(evaluation, summaries)
    return Head(name, {**facts, "dropped": _dropped(summaries), **more}, failed, [_batch(record) for record in records])


def render(
    *,
    data: Mapping[str, Any],
    heads: Sequence[Head],
    curves: Sequence[str] = (),
    pictures: Sequence[str] = (),
    is_live: bool = False,
) -> str:
    """Return the page's HTML.

    Args:
        data: The script's data, for JSON.
        heads: The head of each run.
        curves: Inline SVG drawings.
        pictures: URLs of drawings at the live server.
        is_live: Whether the script may send requests to the page's server.
    """
    style, script = _static("page.css"), "".join(map(_static, SCRIPTS))
    live = "; connect-src 'self'; img-src 'self'" if is_live else ""
    # Every value is escaped except those that the template marks as safe: our own files, drawings and JSON.
    template = Environment(
        autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True, finalize=_shown
    ).from_string(_static("page.html.jinja"))
    return template.render(
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'{live}; base-uri 'none'",
        name=" and ".join(head.name for head in heads),
        style=style,
        script=script,
        heads=heads,
        curves=curves,
        pictures=pictures,
        batch_titles=_BATCH_TITLES,
        failure_titles=_FAILURE_TITLES,
        data=_data(data),
    )


def _shown(value: Any) -> Any:
    return printable(value) if type(value) is str else value  # not what the template marks as safe


def run_curves(folders: Sequence[Path]) -> list[str]:
    """Return an SVG for reward and one for turns, each with a line for every run that has them."""
    runs = [read_metrics(folder / METRICS_NAME) for folder in folders]
    names = distinct_names(folders)
    drawings: list[str] = []
    for keys, label, top in ((REWARD_KEYS, "total reward", 1.0), (TURNS_KEYS, "turns per episode", 0.0)):
        lines = [(name, _points(records, keys)) for name, records in zip(names, runs, strict=True)]
        if any(points for _, points in lines):
            drawings.append(chart([line for line in lines if line[1]], label=label, top=top))
    return drawings


def _points(records: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[tuple[int, float]]:
    key = next((key for key in keys if any(key in record for record in records)), None)
    return [(record["step"], float(record[key])) for record in records if key in record]


def _links(run_dir: Path, path: Path) -> str | None:
    """Return the relative path from the page's folder to the run's transcripts; None if there is none."""
    try:
        return Path(os.path.relpath(run_dir.resolve() / "transcripts", path.resolve().parent)).as_posix()
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


def _facts(run_dir: Path, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    config = run_config(run_dir)
    return {
        "model": Path(str(config["model_name"])).name if "model_name" in config else None,
        "learning rate": config.get("learning_rate"),
        "loss": config.get("loss_fn"),
        "LoRA rank": config.get("lora_rank"),
        "batches": len(records) or None,
    }


def _dropped(summaries: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the number of dropped episodes and their tasks; None if there are none."""
    dropped = Counter(str(episode["task"]) for episode in summaries if episode["end_reason"] == EndReason.DROPPED)
    played = Counter(str(episode["task"]) for episode in summaries)
    tasks = ", ".join(f"{task} {count} of {played[task]}" for task, count in dropped.most_common())
    return f"{dropped.total()} of {len(summaries)}: {tasks}" if dropped else None


def _episodes(chosen: Chosen) -> str:
    shown = len(chosen.episodes)
    left_out = f" of {chosen.found}; {chosen.found - shown} left out of this page" if chosen.found > shown else ""
    return f"{shown}{left_out}" + (f"; can't be read: {', '.join(chosen.unreadable)}" if chosen.unreadable else "")


def _batch(record: dict[str, Any]) -> tuple[str, ...]:
    def number(keys: Sequence[str], form: str) -> str:
        value = next((record[key] for key in keys if key in record), None)
        return "-" if value is None else format(value, form)

    return (
        str(record["step"] + 1),
        number(REWARD_KEYS, ".3f"),
        number(TURNS_KEYS, ".2f"),
        number(("env/all/total_episodes",), ".0f"),
        number(("env/all/total_ac_tokens",), ".0f"),
        number(("time/total",), ".1f"),
        ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases(record).items()),
        ", ".join(f"{name} {share:.0%}" for name, share in outcomes(record).items()),
    )
