"""Marks of a chat format in content: they stay text, and control tokens come from the chat template alone.

A chat template writes text, and a tokenizer reads each mark in it (``<|im_end|>``, ``<tool_call>``) as one token,
also in content. So a random word is inserted into every mark in content before the template sees it; the marks that are
intact afterwards are the template's. For tokenising, the words are removed and the intact marks renamed, and a copy of
the tokenizer knows the marks under their new names only. A chat without marks in content is tokenised as usual.

A tokenizer whose vocabulary lacks a byte writes a control token of its own in its place: SmolLM2's writes
``<|endoftext|>`` for a character of such a byte. In content those characters are replaced first.
"""

import functools
import json
import re
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from harbor_gym.formats.template_text import TemplateText

_THINKING = ("<think>", "</think>")
_REPLACEMENTS = ("\N{REPLACEMENT CHARACTER}", "?")

# Added tokens that are vocabulary, unless the template writes them: runs of blanks, and the HTML tags of Gemma's
# tokenizers. Breaking them would change how a model reads any file.
_VOCABULARY = re.compile(r"\s+|</?[a-z][a-z0-9]*/?>")


class ReadsMarks:
    """A tokenizer that reads broken marks as text, for a renderer that tokenises by itself."""

    def __init__(self, tokenizer: Any, marks: "Marks") -> None:
        self._tokenizer, self._marks = tokenizer, marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **settings: Any) -> list[int]:
        """Return the tokens of ``text``."""
        return self._marks.encode(text, **settings)


class Marks:
    """The marks of one tokenizer. Call its methods with :data:`harbor_gym.codecs.tokenizer_lock` held.

    Args:
        tokenizer: Any tokenizer. If it lists no added tokens, it has no marks.
        template: Source of the chat template. A token that looks like vocabulary is a mark only if it occurs here.
    """

    def __init__(self, tokenizer: Any, template: str = "") -> None:
        self._tokenizer = tokenizer
        self._word = f"x{secrets.token_hex(8)}x"
        special, added = _added_tokens(tokenizer)
        tags = {mark for mark in added if mark in template or mark in _THINKING or not _VOCABULARY.fullmatch(mark)}
        self._ids = {mark: number for mark, number in {**special, **added}.items() if mark in special or mark in tags}
        self._whole = _pattern(self._ids)
        self._breaks = {
            # A lookahead finds overlapping marks: breaking the first alone may leave the second intact.
            "assistant": re.compile(f"(?=({_pattern(set(special) - set(_THINKING)).pattern}))"),
            "": re.compile(f"(?=({self._whole.pattern}))"),
        }
        self._tags = _pattern(tags - set(special))
        self._heads = {mark[:length] for mark in self._ids for length in range(1, len(mark))}
        self._tails = {mark[length:] for mark in self._ids for length in range(1, len(mark))}
        self._longest = max(map(len, self._ids), default=0)
        unknown: Any = getattr(tokenizer, "unk_token_id", None)
        self._unknown = unknown if unknown in self._ids.values() else None
        self._written: dict[str, str] = {}

    def break_in(self, messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages for the template, with the marks in their content broken.

        In an assistant's text only special tokens are broken, except those of thinking: it sampled the others.
        """
        return [
            {
                key: value if key == "role" else self._break(value, str(message.get("role")))
                for key, value in message.items()
            }
            for message in messages
        ]

    def break_all(self, value: Any) -> Any:
        """Return JSON, such as the schemas of tools, with every mark broken."""
        return self._break(value, "")

    def unbroken(self, text: str) -> str:
        """Return the text with its broken marks restored."""
        return text.replace(self._word, "")

    def encode(self, text: str, **settings: Any) -> list[int]:
        """Return the tokens of a text that the template wrote.

        Args:
            text: The template's text, with broken marks.
            settings: Further arguments of the tokenizer's ``encode``.
        """
        if self._word not in text:
            return list(self._tokenizer.encode(text, **settings))
        # Told to read special tokens as text, a tokenizer still reads its other added tokens.
        whole = self._tags if settings.get("split_special_tokens") else self._whole
        parts = [self.unbroken(part) if number % 2 == 0 else part for number, part in enumerate(_split(whole, text))]
        tokens = self._by_other_names(parts)
        return self._piecewise(_split(whole, text)) if tokens is None else tokens

    def _break(self, value: Any, role: str) -> Any:
        match value:
            case TemplateText():
                return "".join(self._break(part, role) for part in value.parts) or str(value)
            case str():
                return self._break_text(value, self._breaks.get(role, self._breaks[""]))
            case dict():
                items = cast("dict[Any, Any]", value).items()
                # Structured parts of an answer, such as a call's arguments, are no longer as they were sampled.
                return {self._break(key, ""): self._break(item, "") for key, item in items}
            case list() | tuple():
                return [self._break(item, "") for item in cast("Sequence[Any]", value)]
            case _:
                return value

    def _break_text(self, text: str, pattern: re.Pattern[str]) -> str:
        if not self._ids or not text:
            return text
        text = self._writable(text)
        places = {found.start() + 1 for found in pattern.finditer(text)}
        # A mark may span two messages, or be completed by the template's text at their border.
        nearest = range(1, min(self._longest, len(text) + 1))
        if any(text[:length] in self._tails for length in nearest):
            places.add(0)
        if any(text[-length:] in self._heads for length in nearest):
            places.add(len(text))
        for place in sorted(places, reverse=True):
            text = f"{text[:place]}{self._word}{text[place:]}"
        return text

    def _writable(self, text: str) -> str:
        """Return the text without the characters for which the tokenizer would write a control token."""
        if self._unknown is None:
            return text
        for character in set(text) - self._written.keys():
            choices = (character, *_REPLACEMENTS)
            self._written[character] = next((choice for choice in choices if self._can_write(choice)), "")
        return "".join(map(self._written.__getitem__, text))

    def _can_write(self, character: str) -> bool:
        return self._unknown not in self._tokenizer.encode(character, add_special_tokens=False)

    def _by_other_names(self, parts: Sequence[str]) -> list[int] | None:
        """Return the tokens of parts of which every second is a mark; None if this tokenizer can't be renamed."""
        renamed = _renamed(self._tokenizer)
        if renamed is None:
            return None
        encode, names, ids = renamed
        text = "".join(names[part] if number % 2 else part for number, part in enumerate(parts))
        read = encode(text)
        # A tokenizer that also has marks in its base vocabulary may still read them in content.
        marks = set(self._ids.values())
        is_certain = all(token in ids or token not in marks for token in read)
        return [ids.get(token, token) for token in read] if is_certain else None

    def _piecewise(self, parts: Sequence[str]) -> list[int]:
        """Return the tokens part by part, for tokenizers that can't be renamed: content is split at broken marks."""
        tokens: list[int] = []
        for number, part in enumerate(parts):
            tokens += [self._ids[part]] if number % 2 else self._plain(part)
        return tokens

    def _plain(self, text: str) -> list[int]:
        if not text or self._word not in text:
            return self._tokenizer.encode(text, add_special_tokens=False) if text else []
        marks = set(self._ids.values())
        tokens = _encode_as_text(self._tokenizer, self.unbroken(text))
        if tokens is not None and marks.isdisjoint(tokens):
            return tokens
        pieces = (self._tokenizer.encode(piece, add_special_tokens=False) for piece in text.split(self._word) if piece)
        return [token for piece in pieces for token in piece]


def _split(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return texts and the marks between them, alternating; the first is a text."""
    return re.split(f"({pattern.pattern})", text)


def _pattern(marks: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds the longest mark at the first place, as a tokenizer does."""
    longest_first = sorted(marks, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _added_tokens(tokenizer: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids of special tokens, and of other added ones, each of at least two characters."""
    listed: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    special: dict[str, int] = {}
    added: dict[str, int] = {}
    for number, token in listed.items():
        if len(content := str(getattr(token, "content", token))) > 1:
            (special if getattr(token, "special", True) else added)[content] = number
    return special, added


_cache: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _renamed(tokenizer: Any) -> tuple[Callable[[str], list[int]], dict[str, str], dict[int, int]] | None:
    """Return a copy of a tokenizer with renamed added tokens: its encode, mark → new name, and its id → real id."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    known = _cache.get(tokenizer)
    if known is None or known[0] != len(tokenizer.added_tokens_decoder):
        known = _cache[tokenizer] = len(tokenizer.added_tokens_decoder), _rename(backend)
    return known[1]


def _rename(backend: Any) -> tuple[Callable[[str], list[int]], dict[str, str], dict[int, int]]:
    described = {**json.loads(backend.to_str()), "post_processor": None, "truncation": None, "padding": None}
    word = f"y{secrets.token_hex(8)}y"
    names: dict[str, str] = {}
    real: dict[str, int] = {}
    added: list[dict[str, Any]] = described["added_tokens"] or []
    for number, token in enumerate(added):
        name = names[token["content"]] = f"{word}{number:06d}{word}"
        real[name] = token["id"]
        token["content"] = name
    copy = type(backend).from_str(json.dumps(described))
    ids = {copy.token_to_id(name): number for name, number in real.items()}
    return functools.partial(_ids_of, copy), names, ids


def _ids_of(backend: Any, text: str) -> list[int]:
    return backend.encode(text, add_special_tokens=False).ids


def _encode_as_text(tokenizer: Any, text: str) -> list[int] | None:
    try:
        return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    except TypeError:  # a tokenizer of another library
        return None
