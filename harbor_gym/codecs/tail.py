"""The tokens that a chat format writes between an answer and the next one, found by probing its renderer.

Codecs share this. It needs only a function that renders a chat. Two conversations that differ only in the answer are
rendered once; the tokens that the renderings share after the answer are the tail.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from harbor_gym.errors import UsageError

type Messages = Sequence[Mapping[str, Any]]
"""Messages that follow an answer, as the renderer takes them."""


@runtime_checkable
class ComparesTemplate(Protocol):
    """A chat codec that can tell where its prompts differ from those of the model's chat template."""

    def is_off_template(self, sampled: Sequence[int]) -> bool:
        """Return whether the template would write this answer differently in a later turn's prompt."""
        ...


PROBE_TASK = "task"
"""The user's message before every probed answer."""

# Two answers that share no token: the tokens that their renderings share do not come from the answers.
_PROBE_ANSWERS = ("0", "z")
_PROBE_MESSAGES = ("next", "another one")

tokenizer_lock = threading.Lock()
"""Hold it while a tokenizer works. A Hugging Face tokenizer sets its treatment of special tokens per call, for all
threads: two concurrent calls can encode ``<|im_end|>`` as plain text. One lock, since codecs share tokenizers."""


class ChatTail:
    """The tokens between an answer and the next one. Call its methods with :data:`tokenizer_lock` held.

    Args:
        render: Returns the tokens of a chat: a task, the answer, the messages after it, the opening of the next answer.
        encode: Returns the tokens of plain text, without special tokens around it.
        decode: Returns the text of tokens, special tokens included.
        name: The renderer's name in error messages.

    Raises:
        UsageError: The renderer writes an earlier answer in a way that can't be continued token by token.
    """

    def __init__(
        self,
        render: Callable[[str, Messages], list[int]],
        *,
        encode: Callable[[str], list[int]],
        decode: Callable[[Sequence[int]], str],
        name: str,
    ) -> None:
        self._render, self._encode, self._decode, self._name = render, encode, decode, name
        self._before = self._find()

    def of(self, messages: Messages) -> list[int]:
        """Return the tokens after an answer: its end, ``messages``, and the opening of the next answer."""
        return self._render(_PROBE_ANSWERS[0], messages)[self._before :]

    def after(self, sampled: Sequence[int], messages: Messages, stop: Sequence[int] | Sequence[str]) -> list[int]:
        """Return the tokens that follow ``sampled``, which may include the answer's end.

        Args:
            sampled: The tokens as they were sampled.
            messages: The messages after the answer.
            stop: Tokens or texts that end an answer.
        """
        tail = self.of(messages)
        for item in stop:
            stop_tokens = [item] if isinstance(item, int) else self._encode(item)
            rest = self._after_stop(tail, item)
            if rest is not None and list(sampled[-len(stop_tokens) :]) == stop_tokens:
                return rest
        return tail

    def _after_stop(self, tail: list[int], stop: str | int) -> list[int] | None:
        """Return the tail without a leading ``stop``; None if the tail does not begin with it."""
        if isinstance(stop, int):
            return tail[1:] if tail[:1] == [stop] else None
        # Only the token in which the stop ends is encoded again: marks in a message would become control tokens.
        for length in range(1, len(tail) + 1):
            text = self._decode(tail[:length])
            if text.startswith(stop):
                return [*self._encode(text.removeprefix(stop)), *tail[length:]]
            if not stop.startswith(text):
                break
        return None

    def _find(self) -> int:
        """Return how many tokens of a probe conversation precede the end of its answer."""
        lengths: set[int] = set()
        for message in _PROBE_MESSAGES:
            messages = [{"role": "user", "content": message}]
            first, second = (self._render(answer, messages) for answer in _PROBE_ANSWERS)
            start, length = common_prefix(first, second), len(first) - common_prefix(first[::-1], second[::-1])
            if self._decode(first[start:length]).strip() != _PROBE_ANSWERS[0]:
                raise UsageError(
                    f"{self._name} can't be continued token by token: an earlier answer is left out, or is followed by "
                    "something that depends on it"
                )
            lengths.add(length)
        if len(lengths) != 1:
            raise UsageError(
                f"{self._name} can't be continued token by token: what precedes the end of an answer depends on the "
                f"message after it (at {sorted(lengths)} tokens)"
            )
        return lengths.pop()


def common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the length of the common prefix of two sequences."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))
