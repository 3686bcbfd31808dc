"""A run's episodes and turns as pandas tables."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import MissingDependencyError, UsageError
from harbor_gym.report.summaries import read_transcript

if TYPE_CHECKING:
    import pandas as pd

_logger = logging.getLogger(__name__)

_PLACE = ("name", "task", "split", "batch", "group", "episode")
_COLUMNS = (*_PLACE, "reward", "end_reason", "error", "breakage", "seconds")
_TURN_COLUMNS = (
    *("observation", "action", "reward", "prompt_tokens", "sampled_tokens", "thinking_sec", "logprobs", "version"),
    *("parse_error", "exit_code"),
)


def episodes(run: str | Path) -> "pd.DataFrame":
    """Return a run's episodes, one per row, ordered by the names of their transcripts.

    The columns are ``name`` (the transcript's path in ``transcripts``, without its suffix), ``task``, ``split``,
    ``batch``, ``group``, ``episode``, ``reward`` (missing for an episode without a verdict, never 0), ``end_reason``,
    ``error``, ``breakage``, ``seconds``, ``turns``, ``sampled_tokens``, ``prompt_tokens`` (of the last turn),
    ``parse_errors`` (turns with an unreadable answer), each key of the verifier as ``rewards/KEY``, and the last turn's
    metrics by their names, such as ``time/verifier_sec``. Values that a transcript lacks are missing.

    Args:
        run: The run's folder, which has the folder ``transcripts``.

    Raises:
        UsageError: The run has no complete transcript.
        MissingDependencyError: pandas is not installed.
    """
    (table,) = _tables(run, _episode)
    return table


def turns(run: str | Path) -> "pd.DataFrame":
    """Return the turns of a run's episodes, one per row, in the order of :func:`episodes`.

    The columns are ``name``, ``task``, ``split``, ``batch``, ``group`` and ``episode`` as there, ``turn`` (from 1),
    ``observation``, ``action``, ``reward`` (of the turn), ``prompt_tokens``, ``sampled_tokens``, ``thinking_sec``
    (from the prompt to the answer), ``logprobs`` (a list with one log-probability per sampled token, in nats),
    ``version`` (of the sampling weights), ``parse_error``, ``exit_code``, and the turn's metrics by their names, such
    as ``time/step_sec``. Values that a transcript lacks are missing.

    Args:
        run: The run's folder, which has the folder ``transcripts``.

    Raises:
        UsageError: The run has no complete transcript.
        MissingDependencyError: pandas is not installed.
    """
    (table,) = _tables(run, _turns)
    return table


def write_parquet(run: str | Path, folder: str | Path) -> list[Path]:
    """Write both tables into a folder, as ``episodes.parquet`` and ``turns.parquet``, and return their paths.

    Raises:
        UsageError: The run has no complete transcript.
        MissingDependencyError: pandas or pyarrow is not installed.
    """
    paths = [Path(folder) / "episodes.parquet", Path(folder) / "turns.parquet"]
    tables = _tables(run, _episode, _turns)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for table, path in zip(tables, paths, strict=True):
        try:
            table.to_parquet(path, index=False)
        except ImportError as exc:
            raise _missing("harbor-gym report --parquet", "pandas and pyarrow") from exc
    return paths


def _missing(what: str, packages: str) -> MissingDependencyError:
    return MissingDependencyError(f'{what} needs {packages}: pip install "harbor-gym[frame]"')


def _tables(run: str | Path, *kinds: Callable[[Mapping[str, Any]], list[dict[str, Any]]]) -> "list[pd.DataFrame]":
    """Return a table for each function in ``kinds``, which turns a transcript into rows."""
    try:
        import pandas as pd
    except ImportError as exc:
        raise _missing("harbor_gym.report.episodes", "pandas") from exc
    folder = Path(run)
    read = {path: read_transcript(path, folder) for path in sorted((folder / "transcripts").rglob("*.json"))}
    documents = [document for document in read.values() if document is not None]
    if unreadable := [str(path) for path, document in read.items() if document is None]:
        _logger.warning(
            "%d of %d transcripts can't be read and are in no table: %s",
            len(unreadable), len(read), ", ".join(unreadable),
        )  # fmt: skip
    if not documents:
        raise UsageError(f"{folder} has no transcript: give the folder of a run that has the folder transcripts")
    return [pd.DataFrame([row for document in documents for row in rows_of(document)]) for rows_of in kinds]


def _turns(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            **{name: document.get(name) for name in _PLACE},
            "turn": number,
            **{name: turn.get(name) for name in _TURN_COLUMNS},
            **(turn.get("metrics") or {}),
        }
        for number, turn in enumerate(document["turns"], 1)
    ]


def _episode(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = document["turns"]
    last = turns[-1] if turns else {}
    row = {
        **{name: document.get(name) for name in _COLUMNS},
        "turns": len(turns),
        "sampled_tokens": sum(turn.get("sampled_tokens") or 0 for turn in turns),
        "prompt_tokens": last.get("prompt_tokens"),
        "parse_errors": sum(turn.get("parse_error") is not None for turn in turns),
        **{f"rewards/{key}": value for key, value in (document.get("rewards") or {}).items()},
        **(last.get("metrics") or {}),
    }
    return [row]
