"""Words of a Dockerfile: split, and their variables replaced, as BuildKit does (frontend/dockerfile/shell)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SPECIAL = "@*#?-$!0"
"""Names of one character. No such variable is ever set."""

_UNSET = {"?": "is not allowed to be unset", ":?": "is not allowed to be empty"}


def split_words(text: str, escape: str = "\\") -> list[str]:
    """Split a text at blanks outside of quotes; the words keep their quotes and escapes."""
    escaped = re.escape(escape)
    return re.findall(
        rf"""(?:"(?:{escaped}.|[^"{escaped}])*"?|'[^']*'?|{escaped}.|[^\s"'{escaped}])+""", text, re.DOTALL
    )


def expand(text: str, variables: Mapping[str, str], *, escape: str = "\\", is_document: bool = False) -> str:
    """Return a word without its quotes and escapes, its variables replaced.

    Args:
        text: The word; blanks in it stay.
        variables: Name → value.
        escape: The escape character of the Dockerfile.
        is_document: Whether it is a here-document, in which quotes stay.

    Raises:
        ValueError: It can't be read; the message says why.
    """
    reader = _Reader(text, variables, "\\" if is_document else escape, is_document)
    return reader.until("")


@dataclass(slots=True)
class _Reader:
    text: str
    variables: Mapping[str, str]
    escape: str
    is_document: bool
    place: int = 0

    def peek(self) -> str:
        return self.text[self.place : self.place + 1]

    def next(self) -> str:
        character = self.peek()
        self.place += 1
        return character

    def until(self, stop: str, *, keeps_escapes: bool = False) -> str:
        """Read up to a character outside of quotes, or to the end if ``stop`` is empty."""
        found: list[str] = []
        while character := self.peek():
            if character == stop:
                self.next()
                return "".join(found)
            if character == "$":
                found.append(self._variable())
            elif character in "'\"" and not self.is_document:
                found.append(self._quoted(keeps_escapes=keeps_escapes))
            elif self.next() == self.escape:
                found += [self.escape if keeps_escapes else "", self.next()]
            else:
                found.append(character)
        if stop:
            raise ValueError(f"a '{stop}' is missing in {self.text}")
        return "".join(found)

    def _quoted(self, *, keeps_escapes: bool) -> str:
        quote = self.next()
        found: list[str] = []
        while (character := self.peek()) != quote:
            if not character:
                raise ValueError(f"a closing {quote} is missing in {self.text}")
            if character == "$" and quote == '"':
                found.append(self._variable())
                continue
            self.next()
            if character == self.escape and quote == '"':
                found.append(self.escape if keeps_escapes else "")
                if self.peek() and self.peek() in ('"', "$", self.escape):
                    character = self.next()
                elif not self.peek() or keeps_escapes:
                    continue
            found.append(character)
        self.next()
        return "".join(found)

    def _variable(self) -> str:
        self.next()
        if self.peek() != "{":
            name = self._name()
            return self.variables.get(name, "") if name else "$"
        self.next()
        name = self._name()
        operator = self.next()
        if not name or not operator:
            raise ValueError(f"bad substitution in {self.text}")
        value = self.variables.get(name)
        if operator == "}":
            return value or ""
        if operator == "/":
            return self._replaced(value or "")
        operator += self.next() if operator == ":" else ""
        if operator not in ("-", "+", "?", ":-", ":+", ":?", "#", "%"):
            raise ValueError(f"the substitution ${{{name}{operator}…}} is not known")
        word = self.until("}", keeps_escapes=operator in "#%")
        if operator in "#%":
            is_longest = word.startswith(operator)
            return _without(value or "", word[is_longest:], is_longest=is_longest, is_suffix=operator == "%")
        is_there = bool(value) if operator.startswith(":") else value is not None
        if operator.endswith("+"):
            return word if is_there else ""
        if operator.endswith("?") and not is_there:
            raise ValueError(f"{name}: {word or _UNSET[operator]}")
        return value or "" if is_there else word

    def _replaced(self, value: str) -> str:
        count = 0 if self.peek() == "/" else 1
        self.place += 1 - count
        pattern = self.until("/", keeps_escapes=True)
        replacement = self.until("}", keeps_escapes=True)
        end = -1

        def replaced(found: re.Match[str]) -> str:
            nonlocal end
            is_new = found.end() > end  # Go finds nothing empty where the last match ended
            end = found.end()
            return replacement if is_new else ""

        return re.sub(_pattern(pattern), replaced, value, count=count, flags=re.DOTALL)

    def _name(self) -> str:
        found = re.compile(r"\d+|\w+").match(self.text, self.place)
        name = found[0] if found else self.peek() if self.peek() and self.peek() in _SPECIAL else ""
        self.place += len(name)
        return name


def _without(value: str, pattern: str, *, is_longest: bool, is_suffix: bool) -> str:
    """Return the value without the shortest or the longest beginning or end that matches."""
    ends = range(len(value) + 1)
    wanted = re.compile(_pattern(pattern), re.DOTALL)
    for end in reversed(ends) if is_longest else ends:
        part = value[len(value) - end :] if is_suffix else value[:end]
        if wanted.fullmatch(part):
            return value[: len(value) - end] if is_suffix else value[end:]
    return value


def _pattern(text: str) -> str:
    """Return the regular expression of a shell pattern; only ``*`` and ``?`` are special."""
    found: list[str] = []
    characters = iter(text)
    for character in characters:
        if character == "*":
            found.append(".*")
        elif character == "?":
            found.append(".")
        elif character == "\\":
            escaped = next(characters, "")
            if escaped not in ("*", "?", "\\", "/", "}"):
                raise ValueError(f"invalid escape '\\{escaped}' in a pattern of ${{…}}")
            found.append(re.escape(escaped))
        else:
            found.append(re.escape(character))
    return "".join(found)
