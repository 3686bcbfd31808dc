"""A run's episodes and turns as pandas tables."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.files import StrPath
from harbor_gym.errors import MissingDependencyError
from harbor_gym.report.summaries import read_transcripts

if TYPE_CHECKING:
    import pandas as pd

_PLACE = ("name", "task", "split", "batch", "group", "episode")
_COLUMNS = (*_PLACE, "reward", "end_reason", "error", "breakage", "seconds")
_TURN_COLUMNS = (
    *("observation", "action", "reward", "prompt_tokens", "sampled_tokens", "thinking_sec", "queued_sec", "logprobs"),
    *("version", "parse_error", "exit_code"),
)


def episodes(run: StrPath) -> "pd.DataFrame":
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


def turns(run: StrPath) -> "pd.DataFrame":
    """Return the turns of a run's episodes, one per row, in the order of :func:`episodes`.

    The columns are ``name``, ``task``, ``split``, ``batch``, ``group`` and ``episode`` as there, ``turn`` (from 1),
    ``observation``, ``action``, ``reward`` (of the turn), ``prompt_tokens``, ``sampled_tokens``, ``thinking_sec``
    (from the prompt to the answer), ``queued_sec`` (of these before the sampling began, where the sampler knows),
    ``logprobs`` (a list with one log-probability per sampled token, in nats), ``version`` (of the sampling weights),
    ``parse_error``, ``exit_code``, and the turn's metrics by their names, such as ``time/step_sec``. Values that a
    transcript lacks are missing.

    Args:
        run: The run's folder, which has the folder ``transcripts``.

    Raises:
        UsageError: The run has no complete transcript.
        MissingDependencyError: pandas is not installed.
    """
    (table,) = _tables(run, _turns)
    return table


def write_parquet(run: StrPath, folder: StrPath) -> list[Path]:
    """Write both tables into a folder, as ``episodes.parquet`` and ``turns.parquet``, and return their paths.

    Raises:
        UsageError: The run has no complete transcript.
        MissingDependencyError: pandas or pyarrow is not installed.
    """
    paths = [Path(folder) / "episodes.parquet", Path(folder) / "turns.parquet"]
    tables = _tables(run, _episode, _turns)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for table, path in zip(tables, paths, strict=True):
        _save(table, path)
    return paths


def save_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as a Parquet file.

    Raises:
        MissingDependencyError: pandas or pyarrow is not installed.
    """
    _save(_pandas("a Parquet file").DataFrame(rows), path)


def _save(table: "pd.DataFrame", path: Path) -> None:
    try:
        table.to_parquet(path, index=False)
    except ImportError as exc:
        raise _missing("a Parquet file", "pandas and pyarrow") from exc


def _pandas(what: str) -> Any:
    try:
        import pandas as pd
    except ImportError as exc:
        raise _missing(what, "pandas") from exc
    return pd


def _missing(what: str, packages: str) -> MissingDependencyError:
    return MissingDependencyError(f'{what} needs {packages}: pip install "harbor-gym[frame]"')


def _tables(run: StrPath, *kinds: Callable[[Mapping[str, Any]], list[dict[str, Any]]]) -> "list[pd.DataFrame]":
    """Return a table for each function in ``kinds``, which turns a transcript into rows."""
    pd = _pandas("harbor_gym.report.episodes")
    documents = read_transcripts(run)
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
