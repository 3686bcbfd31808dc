"""Prompts message by message, how older messages are left out of one, and when. Nothing is tokenised again."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.errors import UsageError
from harbor_gym.types import Exchange, Turn


@dataclass(frozen=True)
class Prompt:
    """A prompt in tokens, with the places of its messages."""

    tokens: list[int] = field(default_factory=list[int])
    """Token ids: the first message, then each exchange."""

    exchanges: tuple[Exchange, ...] = ()
    """The answers in it, each with what was shown after it."""

    @classmethod
    def of(cls, turns: Sequence[Turn], tokens: Sequence[int]) -> Self:
        """Return the prompt that follows turns.

        Args:
            turns: An episode's turns so far.
            tokens: The prompt's token ids.
        """
        exchanges: list[Exchange] = []
        for number, turn in enumerate(turns, start=1):
            if turn.compaction is not None:
                exchanges = [*turn.compaction.exchanges]
                continue
            following = turns[number].prompt_tokens if number < len(turns) else len(tokens)
            shown = following - turn.prompt_tokens - turn.sampled_tokens
            exchanges.append(Exchange(number, turn.sampled_tokens, shown))
        return cls(list(tokens), tuple(exchanges))

    @property
    def last_answer(self) -> tuple[Self, list[int]] | None:
        """The prompt that the last answer was given to, and the answer; None if there is no answer in it."""
        if not self.exchanges:
            return None
        *earlier, last = self.exchanges
        start = len(self.tokens) - last.size
        return type(self)(self.tokens[:start], tuple(earlier)), self.tokens[start : start + last.sampled]

    def extended(self, turn: int, sampled: Sequence[int], shown: Sequence[int]) -> Self:
        """Return the prompt after an answer.

        Args:
            turn: The answer's turn, from 1.
            sampled: The answer's token ids.
            shown: The token ids between it and the next answer.
        """
        tokens = [*self.tokens, *sampled, *shown]
        return type(self)(tokens, (*self.exchanges, Exchange(turn, len(sampled), len(shown))))

    def window(
        self, room: int, replace: Callable[[Sequence[int], int], Sequence[int]], *, kept: Collection[int] = ()
    ) -> Self | None:
        """Leave older exchanges out.

        The first message, the last exchange and those of ``kept`` stay, and as many of the latest ones as fit into
        ``room``. Of the exchanges in a gap the last answer stays, and what was shown after it is replaced.

        Args:
            room: The most tokens of what stays as it is, if more than the least can stay.
            replace: Returns the tokens between an answer and the next one that say what was left out, given the answer
                and the number of its gap's turns.
            kept: Turns to keep.

        Returns:
            The shorter prompt, or None where leaving anything out would save nothing.
        """
        starts, start = list[int](), len(self.tokens) - sum(item.size for item in self.exchanges)
        head = self.tokens[:start]
        for item in self.exchanges:
            starts.append(start)
            start += item.size
        last = len(self.exchanges) - 1
        stays = {place for place, item in enumerate(self.exchanges) if place == last or item.turn in kept}
        size = len(head) + sum(self.exchanges[place].size for place in stays)
        for place in range(last, -1, -1):
            size += 0 if place in stays else self.exchanges[place].size
            if size > room and place not in stays:
                break
            stays.add(place)
        shorter, before = type(self)(head), 0
        for place, item in enumerate(self.exchanges):
            answer = self.tokens[starts[place] : starts[place] + item.sampled]
            if place in stays:
                shown: Sequence[int] = self.tokens[starts[place] + item.sampled : starts[place] + item.size]
            elif place + 1 in stays:
                shown = replace(answer, item.turn - before)
            else:
                continue
            shorter, before = shorter.extended(item.turn, answer, shown), item.turn
        return shorter if len(shorter.tokens) < len(self.tokens) else None


@dataclass(frozen=True)
class Limits:
    """The limits of prompts, in tokens."""

    longest: int | None
    """The longest prompt that leaves room for a full answer; None is no limit."""

    compact_at: int | None
    """The longest prompt that is not compacted; None is no limit."""

    max_compactions: int | None
    """The most compactions of an episode; None is no limit, 0 leaves prompts as they are."""

    by_summary: bool = False
    """Whether the policy is asked for a summary."""

    summary_at: int | None = None
    """The longest prompt that leaves room for an answer, then the request and a summary; None is no limit."""

    @classmethod
    def of(cls, config: object, *, max_tokens: int, max_context_tokens: int | None, request_tokens: int = 0) -> Self:
        """Return the limits of an episode.

        Args:
            config: The environment's configuration; one that is no :class:`TerminalEnvConfig` compacts nothing.
            max_tokens: The sampler's limit for one message.
            max_context_tokens: The model's context window; None is no limit.
            request_tokens: The length of the request for a summary.

        Raises:
            UsageError: ``compact_at`` does not fit the context window, or a summary does not.
        """
        longest = None if max_context_tokens is None else max_context_tokens - max_tokens
        if not isinstance(config, TerminalEnvConfig) or config.compaction == "none":
            return cls(longest, None, 0)
        by_summary, at = config.compaction == "summary", config.compact_at
        # A prompt gets an answer, then the request, then the summary, before there is a new one.
        most = longest - max_tokens - request_tokens if by_summary and longest is not None else longest
        if by_summary and most is not None and most <= 0:
            raise UsageError(
                f"compaction=summary: a context of {max_context_tokens} tokens has no room for an answer "
                f"and a summary of {max_tokens} tokens each; make max_tokens smaller"
            )
        if at is None:
            return cls(longest, most, config.max_compactions, by_summary, most if by_summary else None)
        if at <= 1:
            if max_context_tokens is None:
                raise UsageError(f"compact_at={at:g} is a share of an unknown context: give max_context_tokens")
            at *= max_context_tokens
        elif max_context_tokens is not None and at > max_context_tokens:
            raise UsageError(
                f"compact_at={at:g} is more than the context of {max_context_tokens} tokens: give a smaller number, or "
                "a share of at most 1"
            )
        at = int(at) if most is None else min(int(at), most)
        return cls(longest, at, config.max_compactions, by_summary, most if by_summary else None)

    def fits(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt leaves room for a full answer."""
        return self.longest is None or len(prompt) <= self.longest
