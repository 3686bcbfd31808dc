"""The prompts of one session as tokens; blocks of tokens that prompts share are stored once."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

_TOKEN_TYPE = "i"
"""Four bytes a token, where a list of integers takes 36."""

_BLOCK_BYTES = 4 * 256
"""Prompts share whole blocks from their beginning; an extended prompt stores at most one partial block twice."""


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """A sequence of tokens in blocks."""

    blocks: tuple[bytes, ...]
    """The tokens' bytes, in order."""

    def __len__(self) -> int:
        """Return the number of tokens."""
        return sum(map(len, self.blocks)) // 4

    def tolist(self) -> list[int]:
        """Return the tokens."""
        return array(_TOKEN_TYPE, b"".join(self.blocks)).tolist()


class PromptStore:
    """The prompts of one session."""

    def __init__(self) -> None:
        self.kept_tokens = 0
        """Tokens in memory; shared blocks count once."""
        self._blocks: dict[bytes, bytes] = {}

    def keep(self, tokens: Sequence[int]) -> KeptTokens:
        """Store tokens, and return them as shared blocks."""
        whole = array(_TOKEN_TYPE, tokens).tobytes()
        return KeptTokens(tuple(self._kept(whole[i : i + _BLOCK_BYTES]) for i in range(0, len(whole), _BLOCK_BYTES)))

    def _kept(self, block: bytes) -> bytes:
        if (known := self._blocks.get(block)) is not None:
            return known
        self._blocks[block] = block
        self.kept_tokens += len(block) // 4
        return block
