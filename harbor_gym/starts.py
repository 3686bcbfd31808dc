"""Starts in earlier episodes: which transcript of a folder an episode goes on from, and after which of its turns."""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harbor_gym._runtime.files import StrPath
from harbor_gym.config import Snapshot, TerminalEnvConfig
from harbor_gym.config.snapshot import has_to_be_drawn
from harbor_gym.episode.replay import require_start
from harbor_gym.errors import UsageError
from harbor_gym.report.metrics import METRICS_NAME, read_metrics
from harbor_gym.report.summaries import parse_conditions, read_labelled

ENOUGH = 0.5
"""The mean reward of a batch after which ``backward`` begins a turn earlier."""

_SHOWN = 3

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Start:
    path: Path
    task: str
    last: int
    """The latest turn after which an episode can begin."""


class Starts:
    """The transcripts from which a configuration's episodes begin.

    Args:
        folder: Where they are, for errors.
        found: The transcripts.
    """

    def __init__(self, folder: StrPath, found: Sequence[_Start]) -> None:
        self._folder = folder
        self._found = found

    @classmethod
    def read(cls, config: TerminalEnvConfig, *, in_tokens: bool) -> Self | None:
        """Read what ``config.start_from`` and ``start_where`` name; blocks. None if there is nothing to be drawn.

        A transcript that can't be read, or is not of our own loop with the same format and terminal, is skipped with a
        warning.

        Args:
            config: The episodes' configuration.
            in_tokens: Whether a policy in tokens plays them: a transcript without tokens is skipped then.

        Raises:
            UsageError: A condition is wrong, or no transcript is left.
        """
        start = config.start_from
        if not isinstance(start, Path) or not has_to_be_drawn(config):
            return None
        conditions = parse_conditions(config.start_where)
        root = start if start.is_dir() else start.parent
        root = root / "transcripts" if (root / "transcripts").is_dir() else root
        paths = sorted(root.rglob("*.json")) if start.is_dir() else [start]
        found: list[_Start] = []
        skipped: list[str] = []
        others = 0
        for path in paths:
            try:
                if (labels := read_labelled(path, root)) is None:
                    raise UsageError(f"{path} is not a complete transcript")
                if not all(condition.holds(labels.get(condition.key)) for condition in conditions):
                    others += 1
                    continue
                snapshot = Snapshot.read(path)
                if in_tokens and snapshot.tokens is None:
                    raise UsageError(f"{path} has no tokens: a policy in text played it")
                require_start(snapshot.at(0), config, snapshot.task_digest)
            except UsageError as exc:
                skipped.append(str(exc))
                continue
            found.append(_Start(path, snapshot.config.task_dir.name, snapshot.turn))
        if skipped:
            shown = "; ".join(skipped[:_SHOWN]) + (" …" if len(skipped) > _SHOWN else "")
            _logger.warning("%d of %d transcripts in %s are skipped: %s", len(skipped), len(paths), start, shown)
        if not found:
            why = skipped[0] if skipped else "give the folder of a run, or of transcripts of our own loop"
            if others:
                why = f"{others} of {len(paths)} do not meet {' and '.join(config.start_where)}"
            raise UsageError(f"start_from: no transcript in {start} can be begun from: {why}")
        return cls(start, found)

    def draw(self, config: TerminalEnvConfig, key: str, *, level: int = 0) -> TerminalEnvConfig:
        """Return the configuration with one transcript of its task as ``start_from``, and a number as ``start_turn``.

        Args:
            config: An episode's configuration.
            key: Decides the draw: the same key, configuration and folder give the same start.
            level: Turns before the last one, where ``start_turn`` is ``backward``.

        Raises:
            UsageError: No transcript is of this task, or none has so many turns.
        """
        name, rule = config.task_dir.resolve().name, config.start_turn
        of_task = [start for start in self._found if start.task == name]
        if not of_task:
            raise UsageError(
                f"start_from: no transcript in {self._folder} that can be begun from is of the task {name}"
            )
        most = None if config.max_turns is None else config.max_turns - 1  # one is left to play
        ends = [(start, start.last if most is None else min(start.last, most)) for start in of_task]
        if isinstance(rule, int):
            ends = [(start, end) for start, end in ends if rule <= end]
        if not ends:
            longest = max(start.last for start in of_task)
            within = "" if most is None or most >= longest else f" and max_turns leaves {most}"
            raise UsageError(
                f"start_turn: {rule} is beyond the end: the longest transcript of {name} in {self._folder} "
                f"can be begun from after turn {longest}{within}"
            )
        dice = random.Random(key)  # a draw that can be repeated
        start, end = dice.choice(ends)
        match rule:
            case "mid":
                turn = end // 2
            case "uniform":
                turn = dice.randint(0, end)
            case "backward":
                turn = max(0, end - level)
            case _:
                turn = end if rule is None else rule
        return config.model_copy(update={"start_from": start.path, "start_turn": turn, "start_where": ()})


def level_of(run: StrPath, task: str, *, before: int) -> int:
    """Return how many turns before the last one ``backward`` begins: one for each batch that earned enough so far.

    Args:
        run: The training run's folder. A run that is resumed goes on as it was.
        task: The task's name in the run's metrics.
        before: The number of the batch that is to begin, from 0.
    """
    names = (f"env/{task}/reward/total", "env/all/reward/total")
    rewards = (
        next((record[name] for name in names if name in record), 0.0)
        for record in read_metrics(Path(run) / METRICS_NAME)
        if record["step"] < before
    )
    return sum(reward >= ENOUGH for reward in rewards)
