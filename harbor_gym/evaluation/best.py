"""The evaluations of a run and its best checkpoint: ``best.json`` in the run's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harbor_gym._runtime.files import StrPath, replace_text
from harbor_gym._runtime.json_files import read_document, read_lines
from harbor_gym.errors import UsageError

BEST_NAME = "best.json"
BEST_FORMAT = 1
CHECKPOINTS_NAME = "checkpoints.jsonl"
"""The cookbook's list of checkpoints. Source: tinker_cookbook.checkpoint_utils."""


@dataclass(frozen=True)
class Evaluated:
    """One evaluation during a run."""

    batch: int
    """Batches that the weights were trained on."""

    checkpoint: str
    """The value for ``eval.py --checkpoint``: a name in ``checkpoints.jsonl``, ``tinker://…``, or ``base``."""

    reward: float
    """Mean total reward of the graded episodes."""

    turns: float | None
    """Mean turns of an episode."""

    episodes: int | None
    """Number of graded episodes."""


def read_checkpoints(run_dir: Path, *, mends: bool = False) -> list[dict[str, Any]]:
    """Return the records of a run's checkpoints in the order of writing.

    Args:
        run_dir: The run's folder.
        mends: Whether to remove an incomplete last record, which a kill left, from the file.

    Raises:
        UsageError: A record can't be read.
    """
    remedy = "remove the line to go on from the checkpoint before it, or the file to begin again"
    path = run_dir / CHECKPOINTS_NAME
    if not path.is_file():
        return []
    records = read_lines(path, remedy=remedy, mends=mends)
    for number, record in enumerate(records, start=1):
        if not isinstance(record.get("name"), str):
            raise UsageError(f"{path}, line {number}, can't be read: the record has no name: {remedy}")
    return records


def is_finished(run_dir: Path) -> bool:
    """Return whether a run has saved its final checkpoint.

    Raises:
        UsageError: A checkpoint's record can't be read.
    """
    return any(record.get("final") or record["name"] == "final" for record in read_checkpoints(run_dir))


def note_evaluation(run_dir: StrPath, evaluated: Evaluated) -> Evaluated:
    """Add an evaluation to ``best.json``; it replaces an earlier one of the same batch.

    Returns:
        The best so far: the highest reward, and among equal rewards the earliest batch.
    """
    known = [item for item in read_evaluations(run_dir) if item.batch != evaluated.batch]
    rows = sorted([*known, evaluated], key=lambda item: item.batch)
    best = max(rows, key=lambda item: (item.reward, -item.batch))
    document = {"format": BEST_FORMAT, "best": asdict(best), "evaluations": [asdict(item) for item in rows]}
    path = Path(run_dir) / BEST_NAME
    replace_text(path, json.dumps(document, indent=1) + "\n")
    return best


def read_evaluations(run_dir: StrPath) -> list[Evaluated]:
    """Return the evaluations of a run, sorted by batch."""
    document = _document(run_dir)
    return [Evaluated(**row) for row in document["evaluations"]] if document is not None else []


def read_best(run_dir: StrPath) -> Evaluated:
    """Return the best evaluation of a run.

    Raises:
        UsageError: The run was never evaluated.
    """
    document = _document(run_dir)
    if document is None:
        raise UsageError(f"{run_dir} has no {BEST_NAME}: its run was not evaluated (train.py --eval-every)")
    return Evaluated(**document["best"])


def _document(run_dir: StrPath) -> dict[str, Any] | None:
    path = Path(run_dir) / BEST_NAME
    if not path.is_file():
        return None
    document = read_document(path, remedy="remove it, and the run's next evaluation writes it anew")
    if document.get("format") != BEST_FORMAT:
        raise UsageError(f"{path} has format {document.get('format')}; this version reads {BEST_FORMAT}")
    return document
