"""A run's episodes as a table for analysis."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import MissingDependencyError, UsageError
from harbor_gym.report.summaries import read_transcript

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = (
    "name",
    "task",
    "split",
    "batch",
    "group",
    "episode",
    "reward",
    "end_reason",
    "error",
    "breakage",
    "seconds",
)


def episodes(run: str | Path) -> "pd.DataFrame":
    """Return a run's episodes, a row each, in the order of their transcripts' names.

    The columns are ``name`` (the transcript below the run's folder), ``task``, ``split``, ``batch``, ``group``,
    ``episode``, ``reward`` (missing for an episode without a verdict, never 0), ``end_reason``, ``error``,
    ``breakage``, ``seconds``, ``turns``, ``sampled_tokens``, ``prompt_tokens`` (of the last turn), ``parse_errors``
    (turns that could not be read), each key of the verifier as ``rewards/KEY``, and the last turn's metrics by their
    own names, such as ``time/verifier_sec``. What a transcript lacks is missing in its row.

    Args:
        run: The run's folder, which has the folder ``transcripts``.

    Raises:
        UsageError: There is no whole transcript in it.
        MissingDependencyError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as exc:
        raise MissingDependencyError(
            'harbor_gym.report.episodes needs pandas: pip install "harbor-gym[frame]"'
        ) from exc
    folder = Path(run)
    read = (read_transcript(path, folder) for path in sorted((folder / "transcripts").rglob("*.json")))
    rows = [_row(document) for document in read if document is not None]
    if not rows:
        raise UsageError(f"{folder} has no transcript: give the folder of a run that has the folder transcripts")
    return pd.DataFrame(rows)


def _row(document: Mapping[str, Any]) -> dict[str, Any]:
    turns: list[dict[str, Any]] = document["turns"]
    last = turns[-1] if turns else {}
    return {
        **{name: document.get(name) for name in _COLUMNS},
        "turns": len(turns),
        "sampled_tokens": sum(turn.get("sampled_tokens") or 0 for turn in turns),
        "prompt_tokens": last.get("prompt_tokens"),
        "parse_errors": sum(turn.get("parse_error") is not None for turn in turns),
        **{f"rewards/{key}": value for key, value in (document.get("rewards") or {}).items()},
        **(last.get("metrics") or {}),
    }
