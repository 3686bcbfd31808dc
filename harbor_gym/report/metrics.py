"""Read the metrics files of training runs, as tinker-cookbook's RL loop writes them."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbor_gym._runtime.files import StrPath, replace_text
from harbor_gym._runtime.json_files import object_or_empty
from harbor_gym.errors import UsageError

METRICS_NAME = "metrics.jsonl"
REWARD_KEYS = ("env/all/reward/total", "reward/total", "env/all/reward", "reward")
"""Names of the metric for a batch's mean total reward, in order of preference."""

TURNS_KEYS = ("env/all/turns_per_episode", "turns_per_episode")
"""Names of the metric for a batch's turns per episode, in order of preference."""

_BATCH_KEYS = (*REWARD_KEYS, "progress/done_frac")
_SHOWN_KEYS = 12


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the training batches' records in the order of writing, including repeated batches.

    Args:
        path: The file; if it does not exist, there are no records. Incomplete lines are skipped.
    """
    if not path.is_file():
        return []
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        with contextlib.suppress(json.JSONDecodeError):
            record = json.loads(line) if line.endswith("\n") else None
            if isinstance(record, dict) and any(key in record for key in _BATCH_KEYS):
                records.append({**record, "step": int(record.get("step", record.get("progress/batch", len(records))))})
    return records


def read_metrics(path: StrPath) -> list[dict[str, Any]]:
    """Return one record per training batch, by step. Of a batch that a resumed run repeated, the last one counts.

    Args:
        path: The cookbook's ``metrics.jsonl``; if it does not exist, there are no records.
    """
    latest = {record["step"]: record for record in read_records(Path(path))}
    return [latest[step] for step in sorted(latest)]


def metric_points(records: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[tuple[int, float]]:
    """Return batch and value of a metric, for the batches that have it.

    Args:
        records: What :func:`read_metrics` returned.
        keys: Names of the metric, in order of preference.
    """
    key = next((key for key in keys if any(key in record for record in records)), "")
    return [(record["step"], float(record[key])) for record in records if isinstance(record.get(key), int | float)]


def further_metrics(runs: Iterable[Sequence[dict[str, Any]]]) -> list[str]:
    """Return the names of all metrics of runs but reward, turns and the batch's number, in alphabetical order.

    Args:
        runs: For each run, what :func:`read_metrics` returned.
    """
    values = {
        key: value
        for records in runs
        for record in records
        for key, value in record.items()
        if isinstance(value, int | float)
    }
    return sorted(values.keys() - {"step", "progress/batch", *REWARD_KEYS, *TURNS_KEYS})


def forget_batches(run_dir: StrPath, *, first: int) -> None:
    """Remove batch ``first`` and all later ones from a run's folder, so that a resumed run can repeat them.

    Their metrics, timings and transcripts are removed; checkpoints stay, and the cookbook overwrites its other files.

    Args:
        run_dir: The run's folder.
        first: The batch at which the run continues, counted from 0 as in its metrics.
    """
    run_dir = Path(run_dir)
    for name in (METRICS_NAME, "timing_spans.jsonl"):
        path = run_dir / name
        if not path.is_file():
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if _is_before(line, first)]
        if kept != lines:
            replace_text(path, "".join(kept))
    for folder in (run_dir / "transcripts").glob("*/batch_*"):
        number = int(folder.name.removeprefix("batch_"))
        # Folders of batches count from 1; an evaluation's has the number of the batches trained before it.
        if number > first or (number == first and folder.parent.name == "test"):
            shutil.rmtree(folder)


def _is_before(line: str, first: int) -> bool:
    """Return whether a line is complete and belongs to an earlier batch, or to none."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return False
    return line.endswith("\n") and int(record.get("step", -1)) < first


@dataclass(frozen=True)
class Curves:
    """One run's reward and turns against the batch."""

    name: str
    """The name of the run's folder."""

    learning_rate: float | None
    """From the run's ``config.json``, or else its metrics."""

    seed: int | None
    """From the name of the run's folder in a sweep."""

    steps: Sequence[int]
    """Batches, counted from 0; batches without a graded episode are left out."""

    reward: Sequence[float]
    """Mean total reward of each batch."""

    turns: Sequence[float]
    """Mean turns per episode of each batch."""


def find_runs(paths: Iterable[StrPath]) -> list[Path]:
    """Return the folders of runs at or directly below the paths.

    Args:
        paths: Folders of runs, folders of such folders, or metrics files.

    Raises:
        UsageError: A path has no metrics.
    """
    runs: list[Path] = []
    for path in map(Path, paths):
        folder = path.parent if path.name == METRICS_NAME else path
        found = [folder] if (folder / METRICS_NAME).is_file() else sorted(folder.glob(f"*/{METRICS_NAME}"))
        if not found:
            raise UsageError(
                f"{path} is no run and holds none: there is no {METRICS_NAME} in it or one folder below: name the "
                f"folder of a run (--log-path of train)"
            )
        runs += [item.parent if item.name == METRICS_NAME else item for item in found]
    return list(dict.fromkeys(runs))


def load_curves(run_dir: StrPath, *, reward_key: str | None = None, turns_key: str | None = None) -> Curves:
    """Read one run's curves.

    Args:
        run_dir: The run's folder.
        reward_key: Name of the reward's metric; None tries :data:`REWARD_KEYS`.
        turns_key: Name of the metric for turns per episode; None tries :data:`TURNS_KEYS`.

    Raises:
        UsageError: The run has no batch yet, or no such metric.
    """
    run_dir = Path(run_dir)
    path = run_dir / METRICS_NAME
    records = read_metrics(path)
    if not records:
        raise UsageError(f"{path} has no training batch yet")
    reward = _key(records, path, "reward", (reward_key,) if reward_key else REWARD_KEYS)
    turns = _key(records, path, "turns per episode", (turns_key,) if turns_key else TURNS_KEYS)
    whole = [record for record in records if reward in record and turns in record]
    return Curves(
        name=run_dir.name,
        learning_rate=_learning_rate(run_dir, records),
        seed=_seed(run_dir.name),
        steps=tuple(record["step"] for record in whole),
        reward=tuple(float(record[reward]) for record in whole),
        turns=tuple(float(record[turns]) for record in whole),
    )


def load_runs(run_dirs: Sequence[Path], *, reward_key: str | None = None, turns_key: str | None = None) -> list[Curves]:
    """Return the curves of runs, with distinct names.

    Args:
        run_dirs: The runs' folders.
        reward_key: See :func:`load_curves`.
        turns_key: See :func:`load_curves`.

    Raises:
        UsageError: A run has no batch yet, or no such metric.
    """
    curves = [load_curves(run, reward_key=reward_key, turns_key=turns_key) for run in run_dirs]
    names = distinct_names(run_dirs)
    return [dataclasses.replace(run, name=name) for run, name in zip(curves, names, strict=True)]


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return a name for each run: its folder's, with as many parent folders as it takes to be distinct."""
    known = {folder.resolve().parts for folder in folders}

    def name_of(parts: tuple[str, ...]) -> str:
        depths = range(1, len(parts) + 1)
        depth = next((n for n in depths if sum(other[-n:] == parts[-n:] for other in known) == 1), len(parts))
        return "/".join(parts[-depth:])

    return [name_of(folder.resolve().parts) for folder in folders]


def run_config(run_dir: Path) -> dict[str, Any]:
    """Return the cookbook's ``config.json`` of a run; empty if there is none, or it can't be read."""
    return object_or_empty(run_dir / "config.json")


def model_of(config: dict[str, Any]) -> str | None:
    """Return the name of a run's model, without the folders of a local one; None if its configuration has none."""
    return Path(str(config["model_name"])).name if "model_name" in config else None


def _key(records: Sequence[dict[str, Any]], path: Path, what: str, names: Sequence[str]) -> str:
    known = {key for record in records for key in record}
    for name in names:
        if name in known:
            return name
    word = what.split()[0]
    alike = sorted(key for key in known if word in key) or sorted(known)
    shown = ", ".join(alike[:_SHOWN_KEYS]) + (", …" if len(alike) > _SHOWN_KEYS else "")
    raise UsageError(f"{path} has no {what}: looked for {', '.join(names)}. It has: {shown}. Name one of its keys")


def _learning_rate(run_dir: Path, records: Sequence[dict[str, Any]]) -> float | None:
    rate = run_config(run_dir).get("learning_rate", records[0].get("optim/lr"))
    return float(rate) if isinstance(rate, int | float) else None


def _seed(name: str) -> int | None:
    _, found, seed = name.rpartition("seed_")
    return int(seed) if found and seed.isdecimal() else None
