"""Tokenizers that can be built offline: byte-level BPE with the marks of the chat formats under test."""

import functools
import json
import re
from typing import Any

CHAT_MARKS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_CORPUS = (
    '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls -la\\n", "duration": 1.0}]}',
    "system user assistant\n\nUser: look around\n\nAssistant: total 42 drwxr-xr-x root",
)


@functools.cache
def byte_level_tokenizer() -> Any:
    """A small tokenizer that writes any text, with every mark as one token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]  # a property its stub lacks
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]  # likewise
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(CHAT_MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", bos_token="<|begin_of_text|>", pad_token="<|endoftext|>"
    )


def tokenizer_without(*numbers: int) -> Any:
    """The same tokenizer without these bytes from 0xAE on: it writes its token of the text's end in their place."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    lacking = {chr(number) for number in numbers}
    described = json.loads(byte_level_tokenizer().backend_tokenizer.to_str())
    model = described["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if lacking.isdisjoint(token)}
    model["merges"] = [merge for merge in model["merges"] if lacking.isdisjoint("".join(merge))]
    model["unk_token"] = "<|endoftext|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)), eos_token="<|im_end|>", unk_token="<|endoftext|>"
    )


def spelt(text: str, *, keep_marks: bool) -> list[int]:
    """Return tokens that decode to a text, and that the tokenizer would not write: a token for each byte.

    Args:
        text: The text that they decode to.
        keep_marks: Whether a mark of a chat format stays one token.
    """
    tokenizer = byte_level_tokenizer()
    marks = "|".join(map(re.escape, tokenizer.get_added_vocab()))
    tokens: list[str] = []
    for part in re.split(f"({marks})", text) if keep_marks else [text]:
        is_mark = part in tokenizer.get_added_vocab()
        tokens += [part] if is_mark else list(_bytes(tokenizer, part))
    return tokenizer.convert_tokens_to_ids(tokens)


def _bytes(tokenizer: Any, text: str) -> str:
    pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer
    return "".join(word for word, _ in pre_tokenizer.pre_tokenize_str(text))
