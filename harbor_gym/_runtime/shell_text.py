"""Shell scripts in the form in which they are sent into a sandbox."""

import re
import shlex
from collections.abc import Iterable

_COMMENT = re.compile(r"^ *# .*\n", re.MULTILINE)


def without_comments(script: str) -> str:
    """Return a script without the lines that are comments: fewer bytes to send, and for a shell to read."""
    return _COMMENT.sub("", script)


def with_arguments(script: str, arguments: Iterable[object]) -> str:
    """Return a script that first sets its positional parameters to ``arguments``."""
    return f"set -- {shlex.join(map(str, arguments))}\n{script}"
