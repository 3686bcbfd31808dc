"""Shell scripts in the form in which they are sent into a sandbox."""

import re
import secrets
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

_COMMENT = re.compile(r"^ *# .*\n", re.MULTILINE)


def without_comments(script: str) -> str:
    """Return a script without the lines that are comments: fewer bytes to send, and for a shell to read."""
    return _COMMENT.sub("", script)


def with_arguments(script: str, arguments: Iterable[object]) -> str:
    """Return a script that first sets its positional parameters to ``arguments``."""
    return f"set -- {shlex.join(map(str, arguments))}\n{script}"


QUIET = {"BASH_ENV": ""}
"""Environment variables of a probe: the image's shell reads no file before it, which may print on either stream."""


@dataclass(frozen=True)
class Marked:
    """A command whose output can be told from what an image's shell prints beside it, by ``BASH_ENV`` or a trap."""

    text: str
    """The command, without an ``exit`` where its end counts."""

    mark: str = field(default_factory=lambda: f"harbor-gym-{secrets.token_hex(8)}")

    @property
    def command(self) -> str:
        """The command with a line before its output, and one behind."""
        return f"echo {self.mark}\n{self.text}\necho {self.mark}"

    def output(self, printed: str) -> str:
        """Return the command's own output; all that was printed if the command did not begin."""
        _, found, rest = printed.partition(f"{self.mark}\n")
        return rest.partition(self.mark)[0] if found else printed
