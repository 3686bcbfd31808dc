"""List the failed rows of a run, with diagnostics from their trials' folders."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbor_gym.episode.diagnostics import read_diagnostics
from harbor_gym.errors import UsageError

_SIDECAR_KIND = "_ng_failure_class"
"""Key in ``NAME_failures.jsonl`` under which NeMo Gym writes why a row has no result."""

_OTHER_FILES = ("_materialized_inputs.jsonl", "_reward_profiling.jsonl", "rollout_verdicts.jsonl")
"""Endings of NeMo Gym's other files in the same folder."""


@dataclass(frozen=True)
class FailedRow:
    """One failed row."""

    instance_id: str
    """``alias::task``."""

    kind: str
    """NeMo Gym's ``failure_kind``."""

    reason: str
    """A description of the failure."""

    is_masked: bool
    """Whether the row is left out of training and of the scores."""

    trial_dir: Path | None
    """The trial's folder, if it was kept."""

    verifier_output: str
    """The end of the verifier's output; empty if there is none."""


def failed_rows(run: Path) -> list[FailedRow]:
    """Return the failed rows of a run, by instance id.

    Args:
        run: A file that ``gym eval run`` wrote, read with its ``_failures.jsonl``, or a directory of such files.

    Raises:
        UsageError: There is no such file, or it has other content.
    """
    rows = [_failed(row) for file in _files(run) for row in _rows(file) if _has_failed(row)]
    return sorted(rows, key=lambda row: row.instance_id)


def _files(run: Path) -> list[Path]:
    if run.is_dir():
        found = sorted(file for file in run.glob("*.jsonl") if not file.name.endswith(_OTHER_FILES))
        if not found:
            raise UsageError(f"{run} holds no .jsonl file")
        return found
    if not run.is_file():
        raise UsageError(f"{run} does not exist: give the file of output_jsonl_fpath, or its directory")
    sidecar = run.with_name(f"{run.stem}_failures.jsonl")
    return [run, *([sidecar] if sidecar.is_file() else [])]


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8", errors="replace") as lines:  # a line that is not text is not a row
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                row["instance_id"]
            except (ValueError, KeyError, TypeError) as exc:
                raise UsageError(f"{file}, line {number} is no row of a run with instance_id") from exc
            yield row


def _has_failed(row: dict[str, Any]) -> bool:
    return bool(row.get("failure_kind") or row.get("mask_sample") or row.get(_SIDECAR_KIND))


def _failed(row: dict[str, Any]) -> FailedRow:
    trial_dir = Path(row["trial_dir"]) if row.get("trial_dir") else None
    kept = read_diagnostics(trial_dir) if trial_dir is not None and trial_dir.is_dir() else {}
    return FailedRow(
        instance_id=row["instance_id"],
        kind=row.get("failure_kind") or row.get(_SIDECAR_KIND) or "unknown",
        reason=_reason(row),
        is_masked=bool(row.get("mask_sample")) or _SIDECAR_KIND in row,
        trial_dir=trial_dir,
        verifier_output=row.get("verifier_output") or kept.get("verifier_output", ""),
    )


def _reason(row: dict[str, Any]) -> str:
    named = (row.get(name) for name in ("failure_reason", "_ng_failure_response_body", "_ng_failure_message"))
    return next((str(text) for text in named if text), "no reason was recorded")
