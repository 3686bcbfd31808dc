"""The budgets of an episode, and the amounts spent."""

from dataclasses import dataclass

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.types import EndReason


@dataclass(frozen=True)
class Spent:
    """The amounts that an episode has spent."""

    turns: int
    terminal_sec: float
    parse_failures: int
    """Unreadable answers in a row."""

    limited_from_sec: float
    """The terminal time at which the running phase's own limit began."""


class EpisodeBudgets:
    """The turns, terminal time and unreadable answers of one episode.

    Args:
        config: The configuration with the limits.
    """

    def __init__(self, config: TerminalEnvConfig) -> None:
        self._config = config
        self._parse_failures = 0
        self._time_limit_sec: float | None = None
        self._limited_from_sec = 0.0
        self.turns = 0
        """The number of turns taken."""
        self.terminal_sec = 0.0
        """Seconds that the policy's commands took, in all steps."""

    @property
    def remaining(self) -> tuple[float, float]:
        """Return the rest of the turns and of the terminal time, as fractions in [0, 1]; 1 where there is no limit."""
        limits = (self._config.max_turns, self._time_limit_sec)
        spent = (self.turns, self._limited_sec)
        turns, seconds = (1.0 if n is None else max(0.0, 1 - used / n) for n, used in zip(limits, spent, strict=True))
        return turns, seconds

    def enter_phase(self, timeout_sec: float | None) -> None:
        """Begin a phase of the task. Its own limit counts from here; the configuration's is the episode's.

        Args:
            timeout_sec: The phase's; None is no limit.
        """
        own = self._config.time_limit_sec
        self._time_limit_sec = timeout_sec if own is None else own
        self._limited_from_sec = self.terminal_sec if own is None else 0.0

    @property
    def spent(self) -> Spent:
        """The amounts so far."""
        return Spent(self.turns, self.terminal_sec, self._parse_failures, self._limited_from_sec)

    def go_on(self, spent: Spent) -> None:
        """Count from the amounts that another episode has spent, in the phase that was entered."""
        self.turns, self.terminal_sec = spent.turns, spent.terminal_sec
        self._parse_failures, self._limited_from_sec = spent.parse_failures, spent.limited_from_sec

    def note_parsing(self, *, is_failed: bool) -> EndReason | None:
        """Count an answer; return the end of the episode after too many unreadable ones in a row, else None."""
        self._parse_failures = self._parse_failures + 1 if is_failed else 0
        limit = self._config.max_consecutive_parse_failures
        return EndReason.PARSE_FAILURES if limit is not None and self._parse_failures >= limit else None

    def exhausted(self) -> EndReason | None:
        """Return the reason to end for a spent budget; None while none is spent."""
        if self._config.max_turns is not None and self.turns >= self._config.max_turns:
            return EndReason.MAX_TURNS
        if self._time_limit_sec is not None and self._limited_sec >= self._time_limit_sec:
            return EndReason.TIME_LIMIT
        return None

    @property
    def _limited_sec(self) -> float:
        return self.terminal_sec - self._limited_from_sec
