"""Text of a sandbox as a person may see it: what a terminal would obey is spelled out."""

import re

_OBEYED = re.compile(r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 but tabs and line ends, DEL, C1, what changes the direction of writing, and what no terminal's encoding has."""


def printable(text: str) -> str:
    r"""Return a text without control characters: each becomes its escape sequence in Python, as ``\x1b``.

    Line feeds (with or without a carriage return) and tabs stay.

    Source: ECMA-48 (C0 and C1), UAX #9 (the characters for directions).
    """
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
