"""The budgets of an episode, and what it has spent of them."""

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.types import EndReason


class EpisodeBudgets:
    """Turns, terminal time and answers that can't be read, of one episode.

    Args:
        config: Sets the limits.
    """

    def __init__(self, config: TerminalEnvConfig) -> None:
        self._config = config
        self._parse_failures = 0
        self._time_limit_sec: float | None = None
        self._limited_from_sec = 0.0
        self.turns = 0
        """Turns that were taken."""
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

    def note_parsing(self, *, is_failed: bool) -> EndReason | None:
        """Count an answer that could be read, or not; return the end of the episode if those in a row are too many."""
        self._parse_failures = self._parse_failures + 1 if is_failed else 0
        limit = self._config.max_consecutive_parse_failures
        return EndReason.PARSE_FAILURES if limit is not None and self._parse_failures >= limit else None

    def exhausted(self) -> EndReason | None:
        """Return the budget that is spent; None while there is something left of each."""
        if self._config.max_turns is not None and self.turns >= self._config.max_turns:
            return EndReason.MAX_TURNS
        if self._time_limit_sec is not None and self._limited_sec >= self._time_limit_sec:
            return EndReason.TIME_LIMIT
        return None

    @property
    def _limited_sec(self) -> float:
        return self.terminal_sec - self._limited_from_sec
