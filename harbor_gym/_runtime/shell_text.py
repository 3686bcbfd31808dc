"""Shell scripts as they are sent into a sandbox."""

import re
import shlex
from collections.abc import Iterable

_COMMENT = re.compile(r"^ *# .*\n", re.MULTILINE)


def without_comments(script: str) -> str:
    """Return a script without the lines that are comments: fewer bytes to send, and for a shell to read."""
    return _COMMENT.sub("", script)


def with_arguments(script: str, arguments: Iterable[object]) -> str:
    """Return a script with its arguments before it, for a shell to read as its own."""
    return f"set -- {shlex.join(map(str, arguments))}\n{script}"
