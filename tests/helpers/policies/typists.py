"""A sampler that types, and its tokenizer."""

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harbor_gym import Sample
from tests.helpers.chats.tokenizers import byte_level_tokenizer

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def tokenizer() -> Any:
    """Return the tokenizer of the shared scripts, with a chat template."""
    found = copy.deepcopy(byte_level_tokenizer())
    found.chat_template = CHAT_TEMPLATE
    return found


@dataclass(frozen=True)
class Typist:
    """Writes the answer of a test's task, or nothing, and ends."""

    solves: bool = True
    tokenizer: Callable[[], Any] = tokenizer

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        tokenizer = self.tokenizer()
        is_first = tokenizer.decode(list(prompt)).count("<|im_start|>assistant") == 1
        command = "echo done > /srv/answer\n" if self.solves else "true\n"
        text = command if is_first else "<task_complete/>"
        tokens = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        return Sample(tokens, [-0.5] * len(tokens))
