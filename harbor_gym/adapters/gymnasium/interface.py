"""Gymnasium's action and observation spaces, and the conversion to and from the terminal environment's forms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from gymnasium import Space, spaces
from pydantic import ValidationError

from harbor_gym.adapters.gymnasium.rendering import ALL_MODES, render_modes, require_mode
from harbor_gym.adapters.gymnasium.tasks import TaskSet
from harbor_gym.adapters.gymnasium.text import TerminalText
from harbor_gym.config import TerminalEnvConfig, describe_problems, require_one_conversation
from harbor_gym.env import Action
from harbor_gym.errors import UsageError
from harbor_gym.formats.parsed import MAX_DURATION_SEC, MAX_MESSAGE_CHARS
from harbor_gym.terminal import Screen
from harbor_gym.terminal.screen.keys import MAX_KEYSTROKE_BYTES
from harbor_gym.types import ActionFormat

type ActionKind = Literal["keystrokes", "commands", "message"]
type ObservationKind = Literal["text", "dict"]

RENDER_MODES = render_modes()
"""The render modes of this installation; ``rgb_array`` needs the extra ``render``."""

NO_EXIT_CODE = -1
"""In a ``dict`` observation: no command finished in this step."""

_MAX_EXIT_CODE = 255
_MAX_KEYSTROKE_CHARS = MAX_KEYSTROKE_BYTES // 4
"""Characters that can be typed in one step, of any length in UTF-8."""

_FEEDBACK_CHARS = 5_000
"""Most characters of feedback that the environment adds to the terminal's text: two texts of 2 000, and phrases."""

_CELL_CHARS = 32
"""Most bytes that tmux stores for a cell: one character with its combining ones."""


@dataclass(frozen=True)
class Interface:
    """The validated arguments of an environment, for single and vector environments."""

    tasks: TaskSet
    config: TerminalEnvConfig
    """The configuration of the first task; episodes of other tasks replace ``task_dir``."""

    action: ActionKind
    observation: ObservationKind

    @classmethod
    def make(
        cls, tasks: TaskSet, action: ActionKind, observation: ObservationKind, render_mode: str | None, settings: Any
    ) -> Self:
        """Validate the arguments of an environment.

        Raises:
            UsageError: An argument is unknown or has an invalid value.
            MissingDependencyError: ``render_mode`` needs an extra that is not installed.
        """
        _require("action", action, ("keystrokes", "commands", "message"))
        _require("observation", observation, ("text", "dict"))
        _require("render_mode", render_mode, (None, *ALL_MODES))
        require_mode(render_mode)
        settings = dict(settings)
        if action == "keystrokes" and settings.setdefault("action_format", ActionFormat.KEYSTROKES) != "keystrokes":
            raise UsageError("action_format is for action='message'; with action='keystrokes' text is typed as it is")
        if render_mode is not None or observation == "dict":
            settings["capture_screen"] = True
        try:
            config = TerminalEnvConfig(task_dir=tasks.first, **settings)
        except ValidationError as exc:
            raise UsageError(f"the environment can't be made with these arguments: {describe_problems(exc)}") from exc
        require_one_conversation(config, "Gymnasium")
        tasks.require_audit(config)
        config = config.model_copy(update={"task_dir": tasks.first})
        return cls(tasks, config, action, observation)

    def action_space(self) -> Space[Any]:
        """Return a new action space."""
        match self.action:
            case "keystrokes":
                return TerminalText(_MAX_KEYSTROKE_CHARS)
            case "message":
                return TerminalText(MAX_MESSAGE_CHARS)
            case "commands":
                duration = spaces.Box(0.0, MAX_DURATION_SEC, (), np.float64)
                return spaces.Sequence(spaces.Tuple((TerminalText(_MAX_KEYSTROKE_CHARS), duration)))

    def observation_space(self) -> Space[Any]:
        """Return a new observation space."""
        terminal = self.config.terminal
        output = TerminalText(terminal.max_observation_bytes + self.tasks.longest_instruction_bytes + _FEEDBACK_CHARS)
        if self.observation == "text":
            return output
        return spaces.Dict(
            {
                "screen": TerminalText(terminal.columns * terminal.rows * _CELL_CHARS),
                "output": output,
                "exit_code": spaces.Discrete(_MAX_EXIT_CODE + 2, start=NO_EXIT_CODE),
                "cursor": spaces.MultiDiscrete([terminal.rows, terminal.columns]),
                "remaining": spaces.Box(0.0, 1.0, (2,), np.float32),
            }
        )

    def to_action(self, action: Any) -> Action:
        """Convert an action for the terminal environment.

        Raises:
            UsageError: The action is not of the environment's kind.
        """
        if self.action != "commands":
            if not isinstance(action, str):
                raise UsageError(f"with action={self.action!r} an action is a string, got {type(action).__name__}")
            return str(action)
        try:
            return [(str(keystrokes), float(duration)) for keystrokes, duration in action]
        except (TypeError, ValueError) as exc:
            raise UsageError(f"an action is a sequence of (keystrokes, seconds), got {action!r}") from exc

    def to_observation(
        self, text: str, info: Mapping[str, Any], screen: Screen | None, remaining: tuple[float, float]
    ) -> Any:
        """Return an observation of the observation space."""
        if self.observation == "text":
            return text
        code = info.get("exit_code")
        return {
            "screen": screen.text if screen is not None else "",
            "output": text,
            "exit_code": code if code is not None and 0 <= code <= _MAX_EXIT_CODE else NO_EXIT_CODE,
            "cursor": np.array(_cursor(screen), dtype=np.int64),
            "remaining": np.array(remaining, dtype=np.float32),
        }

    def nothing(self) -> Any:
        """Return the empty observation of the observation space."""
        return self.to_observation("", {}, None, (0.0, 0.0))


def _cursor(screen: Screen | None) -> tuple[int, int]:
    return (screen.cursor_row, screen.cursor_column) if screen is not None else (0, 0)


def _require(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} is one of {', '.join(map(repr, known))}, got {value!r}")
