"""A tokenizer without a framework, for processes that should start quickly: each character is a token."""

from collections.abc import Mapping, Sequence
from typing import Any


class CodePoints:
    """The part of a tokenizer's interface that a codec needs. A null character ends a message."""

    eos_token_id = 0

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool, **settings: Any
    ) -> str:
        chat = "".join(f"<|im_start|>{message['role']}\n{message['content']}\0\n" for message in conversation)
        return f"{chat}<|im_start|>assistant\n" if add_generation_prompt else chat

    def encode(self, text: str, /, **settings: Any) -> list[int]:
        return [*map(ord, text)]

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = False, **settings: Any) -> str:
        return "".join(chr(token) for token in token_ids if token or not skip_special_tokens)
