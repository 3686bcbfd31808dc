"""Budgets of one episode behind the gateway."""

from pydantic import BaseModel, ConfigDict, Field

from harbor_gym.types import DEFAULT_MAX_TURNS

_MIN_WINDOWS, _UNKNOWN_TURNS, _UNKNOWN_WINDOW = 16, 64, 262_144
"""For the derived limit of prompts: an agent that rewrites its history in each request fills a window in each turn."""

_MIN_PROMPT_TOKENS = 1_048_576
"""4 MiB of memory."""


class SessionLimits(BaseModel):
    """Budgets of one episode. The episode ends truncated when one runs out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_turns: int | None = Field(default=DEFAULT_MAX_TURNS, gt=0)
    """Answers under the policy's model name; the request after the last one ends the episode. None is no limit."""

    max_calls: int | None = Field(default=None, gt=0)
    """Answers under any model name, and requests that only count a prompt's tokens; the request after the last one ends
    the episode as ``max_turns``. None derives it, see :attr:`call_limit`."""

    max_sampled_tokens: int | None = Field(default=None, gt=0)
    """Sampled tokens of all calls together. An answer that has begun is finished; the next request ends the episode.
    None is no limit."""

    max_prompt_tokens: int | None = Field(default=None, gt=0)
    """Tokens of all prompts together, as stored: shared prefixes count once. If the stored text takes more, at four
    characters a token, that counts. The request after the limit ends the episode as ``max_tokens``. None derives it,
    see :attr:`prompt_token_limit`."""

    time_limit_sec: float | None = Field(default=None, gt=0)
    """Seconds from the first request, including the agent's own work. None is no limit."""

    max_context_tokens: int | None = Field(default=None, gt=0)
    """The model's context window, in tokens. None takes the window that the sampler's engine reports; if it reports
    none, only the engine's refusals limit a prompt."""

    max_answer_tokens: int = Field(default=0, ge=0)
    """The sampler's limit for one answer, in tokens; reserved when the context window is checked."""

    overflow_ends_episode: bool = True
    """Whether a prompt of the policy's model that does not fit ends the episode. False for an agent that compacts its
    conversation on such an error: the request is refused, and the session goes on."""

    max_concurrent_requests: int = Field(default=16, gt=0)
    """Requests that the session reads and answers at once; one more is refused with status 429."""

    @property
    def call_limit(self) -> int | None:
        """``max_calls``, else eight calls for each of ``max_turns`` and 32 more; without both None, no limit."""
        if self.max_calls is not None or self.max_turns is None:
            return self.max_calls
        return 8 * self.max_turns + 32

    @property
    def prompt_token_limit(self) -> int:
        """``max_prompt_tokens``, else a context window for each of ``max_turns``, and at least 16 and 1,048,576 tokens.

        Without ``max_turns`` it is 64 windows, without ``max_context_tokens`` the window has 262,144 tokens.
        """
        windows = max(_MIN_WINDOWS, self.max_turns or _UNKNOWN_TURNS)
        derived = max(_MIN_PROMPT_TOKENS, windows * (self.max_context_tokens or _UNKNOWN_WINDOW))
        return self.max_prompt_tokens or derived
