"""The results of an evaluation on disk, one JSON line per episode, so that an interrupted evaluation can continue."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbor_gym._runtime.files import naming
from harbor_gym._runtime.json_files import read_lines
from harbor_gym.errors import UsageError
from harbor_gym.evaluation.episodes import EpisodeResult
from harbor_gym.transcripts import JOURNAL_NAME
from harbor_gym.types import EndReason

JOURNAL_FORMAT = 1


class Journal:
    """The finished episodes of one evaluation.

    Args:
        folder: The evaluation's folder; made if missing.
        settings: The evaluation's settings for JSON, without secrets. They must equal those in the journal.

    Raises:
        UsageError: The folder holds episodes of other settings, or a journal that can't be read.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._path = folder / JOURNAL_NAME
        own: dict[str, Any] = json.loads(json.dumps(settings, default=str))
        head = {"format": JOURNAL_FORMAT, "settings": own}
        folder.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            self._append(head)
        lines = self._lines()
        if not lines or lines[0] != head:
            changed = sorted(_differences(lines[0].get("settings", {}) if lines else {}, own))
            raise UsageError(
                f"{self._path} holds an evaluation of other settings ({', '.join(changed) or 'its format'} differ): "
                "give another output folder, or remove it"
            )
        self._results = [_result(line) for line in lines[1:]]

    @property
    def graded(self) -> list[EpisodeResult]:
        """Episodes with a reward, which need not be played again."""
        return [result for result in self._results if result.reward is not None]

    def add(self, result: EpisodeResult) -> None:
        """Append an episode that has ended."""
        self._results.append(result)
        self._append(dataclasses.asdict(result))

    def _append(self, line: Mapping[str, Any]) -> None:
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _lines(self) -> list[dict[str, Any]]:
        return read_lines(self._path, remedy="give another output folder, or remove the line", mends=True)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    return {name for name in {*old, *new} if old.get(name) != new.get(name)}


def _result(line: Mapping[str, Any]) -> EpisodeResult:
    fields: dict[str, Any] = {**line, "end_reason": EndReason(line["end_reason"])}
    return EpisodeResult(**fields)
