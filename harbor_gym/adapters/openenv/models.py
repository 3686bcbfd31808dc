"""The server's messages: actions, observations and states as OpenEnv's typed models."""

from typing import Literal, Self

from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from harbor_gym.types import ActionFormat, Command, EndReason

MAX_COMMANDS = 100
"""Most commands of one action."""

type End = Literal["completed", "no_tool_call", "max_turns", "max_tokens", "context_overflow", "time_limit"]
"""Ends that only the caller's loop sees: the policy's own, and the truncations."""


class TerminalCommand(BaseModel):
    """One batch of keystrokes and how long to wait for its effect."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    keystrokes: str
    """Text to type; end it with a line feed to run it. A key's name on its own, such as ``C-c``, presses that key."""

    duration_sec: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Longest wait in seconds; a finished command returns at once."""

    def as_command(self) -> Command:
        """Return it as the environment takes it."""
        return Command(self.keystrokes, self.duration_sec)


class TerminalAction(Action):
    """One step: a policy's message, or commands, or the end of the episode. Exactly one of the three."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    message: str | None = None
    """One message of the policy, in the served ``action_format``."""

    commands: list[TerminalCommand] | None = Field(default=None, max_length=MAX_COMMANDS)
    """Keystrokes to type, in order; an empty list returns the screen."""

    end: End | None = None
    """The caller's loop saw the policy's work end, or cut it: the episode is verified as it stands."""

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        given = [name for name in ("message", "commands", "end") if getattr(self, name) is not None]
        if len(given) != 1:
            # Not a ValueError: OpenEnv sends the errors as JSON, and could not send the exception inside one.
            raise PydanticCustomError(
                "one_of",
                "an action has exactly one of message, commands and end, got {given}",
                {"given": ", ".join(given) or "none of them"},
            )
        return self


class TerminalObservation(Observation):
    """What a reset or a step led to. ``done`` with a ``reward`` of None is an episode without a verdict: never 0."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    text: str = ""
    """The terminal's text, or why the action could not be read."""

    instruction: str | None = None
    """After ``reset``, and when a multi-step task goes on to its next step: what is to be done."""

    action_format: ActionFormat | None = None
    """After ``reset``: how messages are written."""

    system_prompt: str | None = None
    """After ``reset``: the system message for the policy; None is the action format's."""

    turn: int = 0
    """Steps so far in this episode."""

    parse_error: str | None = None
    """Why the message could not be read; nothing was executed then."""

    exit_code: int | None = None
    """Exit code of the last foreground command, where the shell reported one."""

    waits: list[str] = Field(default_factory=list)
    """What ended the wait for each command."""

    omitted_bytes: int = 0
    """Bytes of output left out of ``text`` by its budget."""

    confirmation_pending: bool = False
    """The policy declared the task complete and was asked to confirm."""

    end_reason: EndReason | None = None
    """When done: why."""

    truncated: bool = False
    """When done: whether a budget cut the episode short."""

    rewards: dict[str, float] | None = None
    """When done and graded: every key of the episode's reward as Harbor reports it."""

    step_rewards: tuple[dict[str, float], ...] | None = None
    """When a step of a multi-step task was graded: what the verifier wrote of each step so far."""

    episode_reward: float | None = None
    """When done and graded: the scalar of ``rewards``, to which the rewards of all steps sum."""

    breakage: str | None = None
    """With ``sandbox_broken``: what was found."""

    failure_kind: str | None = None
    """After a failure of the infrastructure: its word, see :mod:`harbor_gym.outcomes`. There is no reward."""

    error: str | None = None
    """The message of that failure."""

    metrics: dict[str, float] = Field(default_factory=dict)
    """Numbers for aggregation, as ``info["metrics"]``."""

    @property
    def is_lost(self) -> bool:
        """Whether the infrastructure failed: leave the episode out of training, or run it again."""
        return self.failure_kind is not None


class TerminalState(State):
    """Which episode runs."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    split: str | None = None
    """The task's split."""

    index: int | None = None
    """The task's place in its split, from 0."""

    task: str | None = None
    """The task's name."""
