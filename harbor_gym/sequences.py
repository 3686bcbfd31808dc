"""Flat token sequences of rollouts, the form that most trainers take."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harbor_gym.errors import UsageError
from harbor_gym.types import Rollout, RoutedExperts, Sample, SampledSpan, TokenSequence, TokenTransition


def flatten(rollout: Rollout) -> TokenSequence:
    """Return an episode as one sequence: the first prompt, then each sample and the tokens that the next prompt adds.

    Args:
        rollout: An episode of :func:`harbor_gym.run_episode`. Without transitions the sequence is empty; leave it out
            if your trainer refuses empty sequences.

    Raises:
        UsageError: A prompt does not begin with the previous prompt and its sample, token by token.
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
    """Merge successive calls of a model into as few sequences as possible; a call need not extend the previous one.

    If a call's prompt begins with all tokens of an earlier sequence, the call extends the latest such sequence. Any
    other call opens a new sequence, whose prompt is the call's whole prompt. So no sampled token is trained twice:
    tokens that a fork shares with an earlier sequence are prompt in the fork.

    Args:
        turns: Prompts and their samples, in the order of the calls.
    """
    growing: list[SequenceBuilder] = []
    for index, turn in enumerate(turns):
        prompt, sample = turn if isinstance(turn, tuple) else (turn.prompt, turn.sample)
        is_summary = not isinstance(turn, tuple) and "summary" in turn.info
        sequence = next((item for item in reversed(growing) if item.is_extended_by(prompt)), None)
        if sequence is None:
            sequence = SequenceBuilder()
            growing.append(sequence)
        sequence.extend(prompt, sample, call=index, is_summary=is_summary)
    return [sequence.build() for sequence in growing]


def split(sequence: TokenSequence) -> list[TokenSequence]:
    """Split a sequence into one per sampled message, each after its whole prompt. Messages without tokens are skipped.

    :func:`merge` is the inverse.
    """
    return [
        TokenSequence(
            [*sequence.prompt, *sequence.completion[: span.start]],
            sequence.completion[span.start : span.end],
            (replace(span, start=0, end=span.end - span.start),),
            sequence.logprobs[span.start : span.end],
            _first(sequence.routed_experts, len(sequence.prompt) + span.end - 1),
        )
        for span in sequence.spans
        if span.end > span.start
    ]


def _first(routes: RoutedExperts | None, rows: int) -> RoutedExperts | None:
    return None if routes is None else replace(routes, experts=routes.experts[:rows])


def staleness(sequences: Iterable[TokenSequence], newest: int) -> Counter[int]:
    """Count sampled tokens by how many versions they are behind ``newest``; tokens of unknown version don't count."""
    spans = [span for sequence in sequences for span in sequence.spans]
    counts = Counter[int]()
    for span in spans:
        if span.version is not None:
            counts[newest - span.version] += span.end - span.start
    return counts


class SequenceBuilder:
    """Builds a sequence call by call. Tokens before the first sample are its prompt."""

    def __init__(self) -> None:
        self._sequence = TokenSequence([], [], (), [])
        self._spans: list[SampledSpan] = []
        self._routes: list[RoutedExperts] = []

    def is_extended_by(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt begins with all tokens of this sequence."""
        tokens = self._sequence.token_ids
        return len(prompt) >= len(tokens) and list(prompt[: len(tokens)]) == tokens

    def first_difference(self, prompt: Sequence[int]) -> int:
        """Return the index of the first token at which a prompt differs from this sequence."""
        tokens = self._sequence.token_ids
        pairs = enumerate(zip(tokens, prompt, strict=False))
        return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(tokens), len(prompt)))

    def extend(self, prompt: Sequence[int], sample: Sample, *, call: int, is_summary: bool = False) -> None:
        """Add a call whose prompt begins with all tokens of this sequence.

        Raises:
            UsageError: The sample's routed experts begin behind those that are known.
        """
        self._route(sample.routed_experts)
        self.show(prompt[len(self._sequence.prompt) + len(self._sequence.completion) :])
        self.add(sample.tokens, sample.logprobs, call=call, version=sample.version, is_summary=is_summary)

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
        is_summary: bool = False,
    ) -> None:
        """Add the sampled tokens of a call.

        Args:
            sampled: Token ids.
            logprobs: The log-probability of each, in nats; None if unknown.
            call: See :attr:`SampledSpan.call`.
            agent: See :attr:`SampledSpan.agent`.
            version: See :attr:`SampledSpan.version`.
            is_summary: See :attr:`SampledSpan.is_summary`.

        Raises:
            UsageError: The number of log-probabilities is not that of the tokens.
        """
        known = [math.nan] * len(sampled) if logprobs is None else [float(item) for item in logprobs]
        if len(known) != len(sampled):
            raise UsageError(f"a sample of {len(sampled)} tokens has {len(known)} log-probabilities")
        start = len(self._sequence.completion)
        self._spans.append(SampledSpan(start, start + len(sampled), call, agent, version, is_summary=is_summary))
        self._sequence.completion.extend(sampled)
        self._sequence.logprobs.extend(known)

    def _route(self, routes: RoutedExperts | None) -> None:
        """Add the routes that are not known yet: those of earlier messages stay as they were sampled."""
        if routes is None or len(self._routes) < len(self._spans):
            return  # one message without them is enough
        known = self._routes[-1].end if self._routes else 0
        if routes.start > known:
            raise UsageError(f"routed experts begin at token {routes.start}, and those up to {known} are known")
        self._routes.append(RoutedExperts(known, routes.experts[known - routes.start :]))

    def build(self) -> TokenSequence:
        """Return the sequence."""
        routes: RoutedExperts | None = None
        if self._spans and len(self._routes) == len(self._spans):
            import numpy as np  # tens of milliseconds, which others need not wait for

            routes = RoutedExperts(0, np.concatenate([part.experts for part in self._routes]))
        return replace(self._sequence, spans=tuple(self._spans), routed_experts=routes)
