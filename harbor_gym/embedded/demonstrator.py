"""A scripted demonstrator: the part of a task that a policy may see, and the moves that it may make there.

The script lies in the task's folder, ``demonstrations/moves.json``: stages with weighted moves, some of them slow or
wrong on purpose, so that an imitator starts with something left to learn.
"""

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from harbor_gym._runtime.files import why_unreadable
from harbor_gym._runtime.shipped import resolve_shipped
from harbor_gym.errors import TaskError, UsageError
from harbor_gym.formats.keystrokes import COMPLETE_SENTINEL
from harbor_gym.types import ActionFormat, EndReason

MOVES_PATH = Path("demonstrations") / "moves.json"
"""Where a task keeps its script, below the task directory."""

WRITTEN_FORMATS = (ActionFormat.TERMINUS_JSON, ActionFormat.KEYSTROKES)
"""The formats that a demonstrator writes."""

_DURATION_SEC = 1.0

Message = dict[str, str]
"""``{"role", "content"}`` of a chat."""


def _compilable(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as exc:
        raise ValueError(f"not a regular expression: {exc}") from exc
    return pattern


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Move(_Model):
    """One message that the demonstrator may write."""

    kind: Literal["good", "dawdle", "mistake"]
    """A person's judgement of it; it decides nothing."""

    weight: float = Field(gt=0)
    """Relative to the other moves of the stage."""

    analysis: str
    plan: str

    keystrokes: str | None = None
    """The keys to type. None declares the task complete."""

    next: str | None = None
    """The stage that follows if no stage recognises the observation. None: the same stage again."""

    def text(self, action_format: ActionFormat = ActionFormat.TERMINUS_JSON) -> str:
        """Return the move as one message, in JSON always with the same keys in the same order.

        Args:
            action_format: One of :data:`WRITTEN_FORMATS`.
        """
        if action_format is ActionFormat.KEYSTROKES:
            return COMPLETE_SENTINEL if self.keystrokes is None else self.keystrokes
        commands = [] if self.keystrokes is None else [{"keystrokes": self.keystrokes, "duration": _DURATION_SEC}]
        message = {
            "analysis": self.analysis,
            "plan": self.plan,
            "commands": commands,
            "task_complete": self.keystrokes is None,
        }
        return json.dumps(message, separators=(",", ":"))


class Stage(_Model):
    """One point of the work: the screen that shows it, and the demonstrator's moves there."""

    seen: Annotated[str, AfterValidator(_compilable)] | None = None
    """Regular expression (multi-line) that recognises the stage in an observation. None: reached by ``next`` only."""

    moves: tuple[Move, ...] = Field(min_length=1)


class Script(_Model):
    """A demonstrator's whole behaviour."""

    format_version: Literal[1]

    max_turns: int = Field(ge=1)
    """The turn budget that the weights are made for."""

    first_stage: str
    stages: dict[str, Stage]

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        named = {move.next for stage in self.stages.values() for move in stage.moves if move.next is not None}
        if unknown := sorted((named | {self.first_stage}) - self.stages.keys()):
            raise ValueError(f"no such stage: {', '.join(unknown)}; there are: {', '.join(self.stages)}")
        return self


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One recorded episode."""

    messages: tuple[Message, ...]
    """The conversation as a chat policy would have it, from the system message to its last answer."""

    reward: float
    turns: int
    end_reason: EndReason


class Demonstrator:
    """Plays a script by the newest observation and its own last move.

    Args:
        script: The stages and their moves.
        rng: The only source of chance.
    """

    def __init__(self, script: Script, rng: random.Random) -> None:
        self._script = script
        self._rng = rng
        self._stage = script.first_stage
        self._last: Move | None = None

    def answer(self, observation: str) -> Move:
        """Return the move for the newest observation."""
        if self._last is not None and self._last.keystrokes is None:
            return self._last  # The episode goes on after a declaration only to have it confirmed.
        self._stage = self._recognise(observation)
        moves = self._script.stages[self._stage].moves
        self._last = self._rng.choices(moves, weights=[move.weight for move in moves])[0]
        return self._last

    def _recognise(self, observation: str) -> str:
        for name, stage in self._script.stages.items():
            if stage.seen is not None and re.search(stage.seen, observation, re.MULTILINE):
                return name
        return (self._last.next if self._last is not None else None) or self._stage


def require_written(action_format: ActionFormat) -> None:
    """Check that a demonstrator writes a format.

    Raises:
        UsageError: It does not.
    """
    if action_format not in WRITTEN_FORMATS:
        known = " or ".join(WRITTEN_FORMATS)
        raise UsageError(f"no demonstration is written in {action_format}: give --action-format {known}")


def load_script(task_dir: Path) -> Script:
    """Read a task's demonstrator.

    Raises:
        TaskError: The task has none, or it is malformed.
    """
    path = task_dir / MOVES_PATH
    if not path.is_file():
        explained = resolve_shipped("task:devops_task") / "README.md"
        raise TaskError(
            f"{task_dir} has no {MOVES_PATH}, which the built-in tiny policy is warm-started from; write one "
            f"({explained} explains the format), or bring a policy with --model-name MODEL_DIRECTORY"
        )
    try:
        return Script.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as exc:
        raise TaskError(f"{path} is no usable script: {why_unreadable(exc)}") from exc
