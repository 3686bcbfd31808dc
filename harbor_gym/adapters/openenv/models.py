"""The server's messages: actions, observations and states as OpenEnv's typed models."""

from typing import Literal, Self

from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from harbor_gym.types import ActionFormat, Command, EndReason

MAX_COMMANDS = 100
"""Most commands of one action."""

type End = Literal["completed", "no_tool_call", "max_turns", "max_tokens", "context_overflow", "time_limit"]
"""End reasons that only the caller's loop knows: the policy's own ends and the truncations."""


class TerminalCommand(BaseModel):
    """One batch of keystrokes and the longest wait for its effect."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    keystrokes: str
    """Text to type; end it with a line feed to run it. A key's name on its own, such as ``C-c``, presses that key."""

    duration_sec: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Longest wait in seconds; a finished command returns at once."""

    def as_command(self) -> Command:
        """Return the command in the environment's own type."""
        return Command(self.keystrokes, self.duration_sec)


class TerminalAction(Action):
    """One step: a policy's message, or commands, or the end of the episode. Exactly one of the three."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    message: str | None = None
    """One message of the policy, in the served ``action_format``."""

    commands: list[TerminalCommand] | None = Field(default=None, max_length=MAX_COMMANDS)
    """Keystrokes to type, in order; an empty list returns the screen."""

    end: End | None = None
    """The reason for which the caller's loop ends the episode, which is verified in its present state."""

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        given = [name for name in ("message", "commands", "end") if getattr(self, name) is not None]
        if len(given) != 1:
            # Not a ValueError: OpenEnv sends pydantic's errors as JSON, and they would contain the exception itself.
            raise PydanticCustomError(
                "one_of",
                "an action has exactly one of message, commands and end, got {given}",
                {"given": ", ".join(given) or "none of them"},
            )
        return self


class TerminalObservation(Observation):
    """The result of a reset or a step. ``done`` with a ``reward`` of None is an episode without a verdict, not a 0."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    text: str = ""
    """The terminal's text, or the reason why the action could not be parsed."""

    instruction: str | None = None
    """The instruction, after ``reset`` and when a multi-step task continues with its next step."""

    action_format: ActionFormat | None = None
    """After ``reset``: the format of the policy's messages."""

    system_prompt: str | None = None
    """After ``reset``: the system message for the policy; None is the action format's."""

    turn: int = 0
    """Steps so far in this episode."""

    parse_error: str | None = None
    """The reason why the message could not be parsed; nothing was executed then."""

    exit_code: int | None = None
    """Exit code of the last foreground command, if the shell reported one."""

    waits: list[str] = Field(default_factory=list)
    """The reason for the end of each command's wait."""

    omitted_bytes: int = 0
    """Bytes of output that ``text`` omits because of its budget."""

    confirmation_pending: bool = False
    """The policy declared the task complete and was asked to confirm."""

    end_reason: EndReason | None = None
    """When done: the end reason."""

    truncated: bool = False
    """When done: whether a budget cut the episode short."""

    rewards: dict[str, float] | None = None
    """When done and graded: every key of the episode's reward as Harbor reports it."""

    step_rewards: tuple[dict[str, float], ...] | None = None
    """When a step of a multi-step task was graded: the verifier's rewards of each step so far."""

    episode_reward: float | None = None
    """When done and graded: the scalar of ``rewards``, to which the rewards of all steps sum."""

    breakage: str | None = None
    """With ``sandbox_broken``: the evidence."""

    failure_kind: str | None = None
    """After a failure of the infrastructure: its kind, see :mod:`harbor_gym.outcomes`. There is no reward."""

    error: str | None = None
    """The message of that failure."""

    metrics: dict[str, float] = Field(default_factory=dict)
    """The same as ``info["metrics"]``: numbers for aggregation."""

    @property
    def is_lost(self) -> bool:
        """Whether the infrastructure failed: leave the episode out of training, or run it again."""
        return self.failure_kind is not None


class TerminalState(State):
    """The running episode."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    split: str | None = None
    """The task's split."""

    index: int | None = None
    """The task's index in its split, from 0."""

    task: str | None = None
    """The task's name."""
