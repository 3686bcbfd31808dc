"""The results of an evaluation on disk, one JSON line per episode, so that an interrupted evaluation can continue."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from harbor_gym._runtime.files import StrPath, naming
from harbor_gym._runtime.json_files import read_lines
from harbor_gym.errors import UsageError
from harbor_gym.evaluation.episodes import EpisodeResult
from harbor_gym.transcripts import JOURNAL_NAME, RESULT_NAME
from harbor_gym.types import EndReason

JOURNAL_FORMAT = 2
_NO_TASKS: Mapping[str, str] = {}
_REMEDY = "give another output folder, or --fresh to begin anew"


class Journal:
    """The finished episodes of one evaluation.

    Args:
        folder: The evaluation's folder; made if missing.
        settings: The evaluation's settings for JSON, without secrets. They must equal those in the journal.
        tasks: Task → digest of its files, which must be those that the journal's episodes were played with.

    Raises:
        UsageError: The folder holds episodes of other settings or of a task that has changed, or a journal that can't
            be read.
    """

    def __init__(self, folder: StrPath, settings: Mapping[str, Any], tasks: Mapping[str, str] = _NO_TASKS) -> None:
        folder = Path(folder)
        self._path, self._tasks = folder / JOURNAL_NAME, tasks
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
                f"{_REMEDY}"
            )
        played = [(_result(line), line.get("task_digest")) for line in lines[1:]]
        if changed := sorted({item.task for item, digest in played if digest != tasks.get(item.task, digest)}):
            raise UsageError(
                f"{self._path} holds episodes of other versions of these tasks: {', '.join(changed)}: {_REMEDY}"
            )
        self._results = [result for result, _ in played]

    @property
    def graded(self) -> list[EpisodeResult]:
        """Episodes with a reward, which need not be played again."""
        return [result for result in self._results if result.reward is not None]

    def add(self, result: EpisodeResult) -> None:
        """Append an episode that has ended."""
        self._results.append(result)
        self._append({**dataclasses.asdict(result), "task_digest": self._tasks.get(result.task)})

    def _append(self, line: Mapping[str, Any]) -> None:
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _lines(self) -> list[dict[str, Any]]:
        return read_lines(self._path, remedy="give another output folder, or remove the line", mends=True)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], within: str = "") -> set[str]:
    """Return the names of values that differ, those of a nested object as ``env.sandbox``."""
    found: set[str] = set()
    for name in {*old, *new}:
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found |= _differences(cast(dict[str, Any], before), cast(dict[str, Any], after), f"{within}{name}.")
        elif before != after:
            found.add(within + name)
    return found


def forget(folder: Path) -> None:
    """Remove an evaluation from its folder: journal, result, transcripts. Other files stay."""
    with naming(folder):
        for name in (JOURNAL_NAME, RESULT_NAME):
            (folder / name).unlink(missing_ok=True)
        transcripts = folder / "transcripts"
        if transcripts.is_symlink():
            transcripts.unlink()
        elif transcripts.is_dir():
            shutil.rmtree(transcripts)


def _result(line: Mapping[str, Any]) -> EpisodeResult:
    fields: dict[str, Any] = {**line, "end_reason": EndReason(line["end_reason"])}
    fields.pop("task_digest", None)
    return EpisodeResult(**fields)
