"""Patterns of ignore files and of ``--exclude``, as Docker matches them (moby/patternmatcher)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TOKEN = re.compile(r"\*{2,}/?|\*|\?|\\.?|\[(?:\\.|[^\]\\])+\]|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns of which the last that matches decides."""

    rules: tuple[tuple[re.Pattern[str], bool], ...]
    """Expression of a path, and whether it takes the path back."""

    @property
    def are_plain(self) -> bool:
        """Whether no pattern takes a path back: nothing below a directory that is meant is left then."""
        return not any(takes_back for _, takes_back in self.rules)

    def match(self, path: str) -> bool:
        """Return whether a path is meant: itself, or with one of its parents."""
        return self._matched(path)[0]

    def _matched(self, path: str) -> tuple[bool, list[bool]]:
        """Return whether a path is meant, and for each pattern whether it counts for what is below the path.

        A pattern that changes nothing for a directory is not asked there, and then does not count below it.
        """
        above = posixpath.dirname(path)
        counts = self._matched(above)[1] if above else [False] * len(self.rules)
        is_meant = False
        for place, (expression, takes_back) in enumerate(self.rules):
            if not counts[place] and is_meant == takes_back:
                counts[place] = expression.fullmatch(path) is not None
            is_meant = not takes_back if counts[place] else is_meant
        return is_meant, counts


def read_patterns(lines: Iterable[str]) -> Patterns:
    """Read patterns, one a line.

    Raises:
        ValueError: A line is no pattern.
    """
    rules: list[tuple[re.Pattern[str], bool]] = []
    for line in lines:
        pattern = line.strip()
        if not pattern or line.startswith("#"):
            continue
        takes_back = pattern.startswith("!")
        bare = pattern[takes_back:].strip()
        if not bare:
            raise ValueError("a '!' without a pattern")
        cleaned = posixpath.normpath(bare).lstrip("/")
        try:
            rules.append((re.compile(_expression(cleaned or "."), re.DOTALL), takes_back))
        except re.error as exc:
            raise ValueError(f"{bare} is no pattern: {exc}") from None
    return Patterns(tuple(rules))


def ignored_of(context: Path) -> Patterns:
    """Return what Docker leaves out of a build context.

    Raises:
        ValueError: Its ignore file can't be read; the message names the file.
    """
    for name in ("Dockerfile.dockerignore", ".dockerignore"):
        path = context / name
        if path.is_file():
            try:
                return read_patterns(path.read_text(encoding="utf-8-sig", errors="surrogateescape").split("\n"))
            except ValueError as exc:
                raise ValueError(f"{path}: {exc}") from None
    return Patterns(())


def _expression(pattern: str) -> str:
    if pattern.startswith("**") and not pattern.startswith("**/") and not re.search(r"[*?\[\]\\]", pattern[2:]):
        return f".*{re.escape(pattern[2:])}"  # Docker compares only the end of such a name
    found: list[str] = []
    place = 0
    for token in _TOKEN.finditer(pattern):
        place = token.end()
        text = token[0]
        if text.startswith("**"):
            found.append(".*" if place == len(pattern) else "(.*/)?")
        elif text == "*":
            found.append("[^/]*")
        elif text == "?":
            found.append("[^/]")
        elif text.startswith("["):
            found.append(_set(text))
        else:
            found.append(re.escape(text.removeprefix("\\") or text))
    return "".join(found)


def _set(text: str) -> str:
    """Return a set of characters as an expression; Python reads more of it as special than Go."""
    negated = "^" if text.startswith("[^") else ""
    return f"[{negated}{re.sub(r'([\[&~|])', r'\\\1', text[1 + len(negated) : -1])}]"


def glob_expression(pattern: str) -> re.Pattern[str]:
    """Return the expression of a source of COPY: ``*`` and ``?`` match no slash, and ``**`` is ``*``.

    Raises:
        ValueError: It is malformed.
    """
    found: list[str] = []
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text.startswith("**"):
            found.append("[^/]*/" if text.endswith("/") else "[^/]*")
        elif text == "*":
            found.append("[^/]*")
        elif text == "?":
            found.append("[^/]")
        elif text == "[":
            raise ValueError(f"{pattern} is no pattern: a bracket is not closed")
        elif text.startswith("["):
            found.append(f"(?!/){_set(text)}")
        else:
            found.append(re.escape(text.removeprefix("\\") or text))
    return re.compile("".join(found), re.DOTALL)
