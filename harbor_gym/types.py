"""The few words that every room shares."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Command:
    """One batch of keystrokes and how long to wait for its effect."""

    keystrokes: str
    """Text to type, as terminus-json-plain has it: ``"ls\\n"``, or exactly a key name such as ``"C-c"``."""

    duration_sec: float = 1.0
    """Ceiling on the wait, in seconds. The terminal returns earlier when the command is done."""


class EndReason(StrEnum):
    """Why an episode ended. The same words stand in ``info``, in metrics and in every adapter."""

    COMPLETED = "completed"
    """The policy declared the task complete."""

    MAX_TURNS = "max_turns"
    """The turn budget ran out."""

    MAX_TOKENS = "max_tokens"
    """A sampled message was cut by the sampler's token limit."""

    CONTEXT_OVERFLOW = "context_overflow"
    """The next observation and a full answer would not fit the context window."""

    TIME_LIMIT = "time_limit"
    """The episode's environment time ran out."""

    SESSION_ENDED = "session_ended"
    """The policy ended its own shell session (``exit``, ``kill -9 $$``)."""

    PARSE_FAILURES = "parse_failures"
    """Too many messages in a row could not be read as an action."""

    INFRASTRUCTURE_ERROR = "infrastructure_error"
    """Sandbox, terminal or verifier failed. There is no reward: mask or retry the episode."""

    @property
    def is_truncation(self) -> bool:
        """Tell whether a budget of ours cut the episode short."""
        return self in (
            EndReason.MAX_TURNS,
            EndReason.MAX_TOKENS,
            EndReason.CONTEXT_OVERFLOW,
            EndReason.TIME_LIMIT,
        )
