"""A run as one HTML file: curves, batches and every episode turn by turn. It needs no network and no server.

What terminals and policies wrote is data in it, never markup: it lies in a JSON block whose ``<`` are escaped, the
script writes it as text only, and the page's own policy runs no other script than the one whose hash it names.
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

from jinja2 import Environment, StrictUndefined

from harbor_gym._runtime.files import replace_text
from harbor_gym.errors import UsageError
from harbor_gym.report.live import outcomes, phases
from harbor_gym.report.metrics import METRICS_NAME, REWARD_KEYS, TURNS_KEYS, read_metrics, run_config
from harbor_gym.report.summaries import Chosen, choose_episodes, summarize_episode
from harbor_gym.report.svg import curve

PAGE_NAME = "report.html"
MAX_EPISODES = 400
"""Episodes on a page, by default."""

MAX_BYTES = 64 << 20
"""Text and recordings on a page, in bytes: what a browser still opens quickly."""

SCRIPTS = ("player.js", "elements.js", "list.js", "detail.js", "page.js")
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


def write_page(
    run_dir: Path, path: Path | None = None, *, max_episodes: int = MAX_EPISODES, max_bytes: int = MAX_BYTES
) -> Page:
    """Write the page of a run; an existing one is replaced when the new one is whole.

    Args:
        run_dir: The run's folder, also of an unfinished run, or of another recipe of the cookbook.
        path: The file to write; None is ``report.html`` in the run's folder.
        max_episodes: Episodes to put into it; where there are more, every batch gives some.
        max_bytes: Text and recordings to put into it.

    Raises:
        UsageError: The folder has neither metrics nor transcripts.
    """
    records = read_metrics(run_dir / METRICS_NAME)
    chosen = choose_episodes(run_dir, most=max_episodes, max_bytes=max_bytes)
    if not records and not chosen.found:
        raise UsageError(f"{run_dir} is no training run: it has neither {METRICS_NAME} with a batch nor transcripts")
    path = path or run_dir / PAGE_NAME
    replace_text(path, _document(run_dir, path, records, chosen))
    return Page(path, len(chosen.episodes), chosen.found, chosen.unreadable)


def _document(run_dir: Path, path: Path, records: Sequence[dict[str, Any]], chosen: Chosen) -> str:
    places = _links(run_dir, path)
    data = {
        "runs": [{"name": run_dir.resolve().name, "files": places, "list": [*map(summarize_episode, chosen.episodes)]}],
        "episodes": {episode["name"]: episode for episode in chosen.episodes},
    }
    return render(
        run_dir.resolve().name,
        data=data,
        facts=_facts(run_dir, records, chosen),
        curves=_curves(records),
        batches=[_batch(record) for record in records],
    )


def render(
    name: str,
    *,
    data: Mapping[str, Any],
    facts: Mapping[str, Any],
    curves: Sequence[str] = (),
    batches: Sequence[Sequence[str]] = (),
    pictures: Sequence[str] = (),
    is_live: bool = False,
) -> str:
    """Return the page's HTML.

    Args:
        name: The page's title.
        data: What the script gets.
        facts: Title → fact, above everything; None is left out.
        curves: Drawings of ours.
        batches: Rows of the table of batches.
        pictures: Addresses of drawings that the server has.
        is_live: Whether the script may ask the server that the page came from.
    """
    style, script = _static("page.css"), "".join(map(_static, SCRIPTS))
    live = "; connect-src 'self'; img-src 'self'" if is_live else ""
    # Whatever is filled in is escaped, but what the template names as safe: our own files, drawings and JSON.
    template = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True).from_string(
        _static("page.html.jinja")
    )
    return template.render(
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'{live}; base-uri 'none'",
        name=name,
        style=style,
        script=script,
        facts=facts,
        curves=curves,
        pictures=pictures,
        batch_titles=_BATCH_TITLES,
        batches=batches,
        data=_data(data),
    )


def run_curves(run_dir: Path) -> list[str]:
    """Return the drawings of a run's curves."""
    return _curves(read_metrics(run_dir / METRICS_NAME))


def _links(run_dir: Path, path: Path) -> str | None:
    """Return how the page's folder reaches the run's transcripts; None where no relative address does."""
    try:
        return Path(os.path.relpath(run_dir.resolve() / "transcripts", path.resolve().parent)).as_posix()
    except ValueError:
        return None


def _static(name: str) -> str:
    return resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(data: Mapping[str, Any]) -> str:
    """Return JSON that can't end the block it lies in."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII: no lone surrogate, no U+2028
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _facts(run_dir: Path, records: Sequence[dict[str, Any]], chosen: Chosen) -> dict[str, Any]:
    config = run_config(run_dir)
    return {
        "model": Path(str(config["model_name"])).name if "model_name" in config else None,
        "learning rate": config.get("learning_rate"),
        "loss": config.get("loss_fn"),
        "LoRA rank": config.get("lora_rank"),
        "batches": len(records) or None,
        "episodes": _episodes(chosen),
    }


def _episodes(chosen: Chosen) -> str:
    shown = len(chosen.episodes)
    left_out = f" of {chosen.found}; {chosen.found - shown} left out of this page" if chosen.found > shown else ""
    return f"{shown}{left_out}" + (f"; can't be read: {', '.join(chosen.unreadable)}" if chosen.unreadable else "")


def _curves(records: Sequence[dict[str, Any]]) -> list[str]:
    drawings: list[str] = []
    for keys, label, top in ((REWARD_KEYS, "total reward", 1.0), (TURNS_KEYS, "turns per episode", 0.0)):
        key = next((key for key in keys if any(key in record for record in records)), None)
        if key is not None:
            points = [(record["step"], float(record[key])) for record in records if key in record]
            drawings.append(curve(points, label=label, top=top))
    return drawings


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
