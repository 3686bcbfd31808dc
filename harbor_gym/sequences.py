"""Rollouts as flat token sequences, the form that most trainers take."""

import itertools
import math
from collections.abc import Iterable, Sequence

from harbor_gym.errors import UsageError
from harbor_gym.types import Rollout, Sample, TokenSequence, TokenTransition


def flatten(rollout: Rollout) -> TokenSequence:
    """Return an episode as one sequence: the first prompt, then each sample and what the next prompt adds to it.

    Args:
        rollout: An episode of :func:`harbor_gym.run_episode`. One without transitions gives an empty sequence; a
            trainer that refuses those should leave it out.

    Raises:
        UsageError: A prompt does not begin with the last prompt and its sample, token by token.
    """
    sequence = _Growing()
    for number, transition in enumerate(rollout.transitions, start=1):
        if number > 1 and not sequence.is_extended_by(transition.prompt):
            raise UsageError(
                f"the prompt of turn {number} does not extend turn {number - 1} token by token: they differ at token "
                f"{sequence.first_difference(transition.prompt)}; use merge for such turns"
            )
        sequence.add(transition.prompt, transition.sample)
    return sequence.as_sequence()


def merge(turns: Iterable[TokenTransition | tuple[Sequence[int], Sample]]) -> list[TokenSequence]:
    """Return successive calls of a model as few sequences, for turns that need not extend one another.

    A call whose prompt begins with everything of an earlier sequence goes on in that sequence (the latest such one);
    any other call opens a new one, whose prompt is its whole prompt. So no token is trained twice: what a fork has in
    common with its origin is prompt there.

    Args:
        turns: Prompts and their samples, in the order of the calls.
    """
    growing: list[_Growing] = []
    for turn in turns:
        prompt, sample = turn if isinstance(turn, tuple) else (turn.prompt, turn.sample)
        sequence = next((item for item in reversed(growing) if item.is_extended_by(prompt)), None)
        if sequence is None:
            sequence = _Growing()
            growing.append(sequence)
        sequence.add(prompt, sample)
    return [sequence.as_sequence() for sequence in growing]


def split(sequence: TokenSequence) -> list[TokenSequence]:
    """Return a sequence as one per sampled message, each behind its whole prompt; :func:`merge` puts them together.

    Args:
        sequence: Made by :func:`flatten` or :func:`merge`. Something was shown between any two of its messages.
    """
    tokens, place = [*sequence.prompt, *sequence.completion], 0
    turns: list[TokenSequence] = []
    for is_sampled, run in itertools.groupby(sequence.mask):
        length = len(list(run))
        if is_sampled:
            start, end = len(sequence.prompt) + place, place + length
            logprobs = sequence.logprobs[place:end]
            turns.append(TokenSequence(tokens[:start], sequence.completion[place:end], [1] * length, logprobs))
        place += length
    return turns


class _Growing:
    """A sequence to which turns are added."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._prompt_length = 0
        self._mask: list[int] = []
        self._logprobs: list[float] = []

    def is_extended_by(self, prompt: Sequence[int]) -> bool:
        return len(prompt) >= len(self._tokens) and list(prompt[: len(self._tokens)]) == self._tokens

    def first_difference(self, prompt: Sequence[int]) -> int:
        pairs = enumerate(zip(self._tokens, prompt, strict=False))
        return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(self._tokens), len(prompt)))

    def add(self, prompt: Sequence[int], sample: Sample) -> None:
        sampled = list(sample.tokens)
        logprobs = [math.nan] * len(sampled) if sample.logprobs is None else [float(item) for item in sample.logprobs]
        if len(logprobs) != len(sampled):
            raise UsageError(f"a sample of {len(sampled)} tokens has {len(logprobs)} log-probabilities")
        added = list(prompt[len(self._tokens) :])
        if not self._tokens:
            self._prompt_length, shown = len(added), 0
        else:
            shown = len(added)
        self._tokens += added + sampled
        self._mask += [0] * shown + [1] * len(sampled)
        self._logprobs += [0.0] * shown + logprobs

    def as_sequence(self) -> TokenSequence:
        length = self._prompt_length
        return TokenSequence(self._tokens[:length], self._tokens[length:], self._mask, self._logprobs)
