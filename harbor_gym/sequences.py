"""Rollouts as flat token sequences, the form that most trainers take."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harbor_gym.errors import UsageError
from harbor_gym.types import Rollout, Sample, SampledSpan, TokenSequence, TokenTransition


def flatten(rollout: Rollout) -> TokenSequence:
    """Return an episode as one sequence: the first prompt, then each sample and what the next prompt adds to it.

    Args:
        rollout: An episode of :func:`harbor_gym.run_episode`. One without transitions gives an empty sequence; a
            trainer that refuses those should leave it out.

    Raises:
        UsageError: A prompt does not begin with the last prompt and its sample, token by token.
    """
    sequence = SequenceBuilder()
    for number, transition in enumerate(rollout.transitions, start=1):
        if number > 1 and not sequence.is_extended_by(transition.prompt):
            raise UsageError(
                f"the prompt of turn {number} does not extend turn {number - 1} token by token: they differ at token "
                f"{sequence.first_difference(transition.prompt)}; use merge for such turns"
            )
        sequence.extend(transition.prompt, transition.sample, call=number - 1)
    return sequence.build()


def merge(turns: Iterable[TokenTransition | tuple[Sequence[int], Sample]]) -> list[TokenSequence]:
    """Return successive calls of a model as few sequences, for turns that need not extend one another.

    A call whose prompt begins with everything of an earlier sequence goes on in that sequence (the latest such one);
    any other call opens a new one, whose prompt is its whole prompt. So no token is trained twice: what a fork has in
    common with its origin is prompt there.

    Args:
        turns: Prompts and their samples, in the order of the calls.
    """
    growing: list[SequenceBuilder] = []
    for index, turn in enumerate(turns):
        prompt, sample = turn if isinstance(turn, tuple) else (turn.prompt, turn.sample)
        sequence = next((item for item in reversed(growing) if item.is_extended_by(prompt)), None)
        if sequence is None:
            sequence = SequenceBuilder()
            growing.append(sequence)
        sequence.extend(prompt, sample, call=index)
    return [sequence.build() for sequence in growing]


def split(sequence: TokenSequence) -> list[TokenSequence]:
    """Return a sequence as one per sampled message, each behind its whole prompt; :func:`merge` puts them together.

    A message without tokens has none.
    """
    return [
        TokenSequence(
            [*sequence.prompt, *sequence.completion[: span.start]],
            sequence.completion[span.start : span.end],
            (replace(span, start=0, end=span.end - span.start),),
            sequence.logprobs[span.start : span.end],
        )
        for span in sequence.spans
        if span.end > span.start
    ]


def staleness(sequences: Iterable[TokenSequence], newest: int) -> Counter[int]:
    """Return how many sampled tokens are so many versions behind the newest; tokens of unknown version do not count."""
    spans = [span for sequence in sequences for span in sequence.spans]
    counts = Counter[int]()
    for span in spans:
        if span.version is not None:
            counts[newest - span.version] += span.end - span.start
    return counts


class SequenceBuilder:
    """A sequence to which calls are added. What is shown before the first sample is its prompt."""

    def __init__(self) -> None:
        self._sequence = TokenSequence([], [], (), [])
        self._spans: list[SampledSpan] = []

    def is_extended_by(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt begins with everything of this sequence."""
        tokens = self._sequence.token_ids
        return len(prompt) >= len(tokens) and list(prompt[: len(tokens)]) == tokens

    def first_difference(self, prompt: Sequence[int]) -> int:
        """Return the place of the first token of a prompt that is not this sequence's."""
        tokens = self._sequence.token_ids
        pairs = enumerate(zip(tokens, prompt, strict=False))
        return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(tokens), len(prompt)))

    def extend(self, prompt: Sequence[int], sample: Sample, *, call: int) -> None:
        """Add a call whose prompt begins with everything of this sequence."""
        self.show(prompt[len(self._sequence.prompt) + len(self._sequence.completion) :])
        self.add(sample.tokens, sample.logprobs, call=call, version=sample.version)

    def show(self, tokens: Sequence[int]) -> None:
        """Add tokens that were not sampled here."""
        if not self._spans:
            self._sequence.prompt.extend(tokens)
            return
        self._sequence.completion.extend(tokens)
        self._sequence.logprobs.extend([0.0] * len(tokens))

    def add(
        self,
        sampled: Sequence[int],
        logprobs: Sequence[float] | None,
        *,
        call: int,
        agent: int = 0,
        version: int | None = None,
    ) -> None:
        """Add the sampled tokens of a call.

        Args:
            sampled: Token ids.
            logprobs: The log-probability of each, in nats; None where there are none.
            call: The call's index, as :class:`SampledSpan` has it.
            agent: Whose call it was, as there.
            version: Of the weights, as there.

        Raises:
            UsageError: There are more or fewer log-probabilities than tokens.
        """
        known = [math.nan] * len(sampled) if logprobs is None else [float(item) for item in logprobs]
        if len(known) != len(sampled):
            raise UsageError(f"a sample of {len(sampled)} tokens has {len(known)} log-probabilities")
        start = len(self._sequence.completion)
        self._spans.append(SampledSpan(start, start + len(sampled), call, agent, version))
        self._sequence.completion.extend(sampled)
        self._sequence.logprobs.extend(known)

    def build(self) -> TokenSequence:
        """Return the sequence."""
        return replace(self._sequence, spans=tuple(self._spans))
