"""A chat in code points, for tests that need tokens and no tokenizer."""

from collections.abc import Sequence

from harbor_gym.types import ChatMessage

END, ASK = 0, 1
"""END closes a message, ASK opens the answer."""


class CharacterCodec:
    """Write a chat as its characters' code points."""

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        tokens: list[int] = []
        for message in messages:
            tokens += [*map(ord, message["content"]), END]
        return [*tokens, ASK]

    def next_turn(self, sampled: Sequence[int], message: str) -> list[int]:
        closing = [] if sampled[-1:] == [END] else [END]
        return [*closing, *map(ord, message), END, ASK]

    def text(self, sampled: Sequence[int]) -> str:
        return "".join(map(chr, (token for token in sampled if token != END)))
