"""Terminus-2's own keystroke semantics, for parity with recordings and training under it.

Source: ``TmuxSession`` of harbor 0.24 (``harbor/agents/terminus_2/tmux_session.py``), and for the final semicolon
``cmd_parse_from_arguments`` in tmux's cmd-parse.y.

Terminus-2 passes each command's whole keystrokes to ``tmux send-keys`` as one argument, so tmux interprets them:

- a text that is a tmux key name as a whole (``C-c``, ``Up``, ``M-x``, ``^C``, ``0x41``) is that key, and ``C-c\\n`` is
  not: it is typed as four characters;
- one final ``;`` separates tmux commands and is lost, and a final ``\\;`` is typed as ``;``;
- a line feed is typed as one (0x0a), not as the carriage return that Enter sends.

Text that does not fit a command line is pasted, with line feeds as carriage returns.
"""

import shlex

HARBOR_SESSION = "terminus-2"
"""The session's name; the limit below depends on its length."""

_MAX_COMMAND_BYTES = 16_000
"""A longer ``tmux send-keys …``, as quoted for a shell, is pasted instead."""


def is_pasted(keystrokes: str) -> bool:
    """Return whether Terminus-2 would paste ``keystrokes``: at about 15 950 bytes, a quote counting five."""
    command = f"tmux send-keys -t {HARBOR_SESSION} -- {shlex.quote(keystrokes)}"
    return len(command.encode()) > _MAX_COMMAND_BYTES


def as_one_argument(keystrokes: str) -> str | None:
    """Return the argument of ``send-keys`` that remains of ``keystrokes`` after tmux has read its command line.

    It is for a channel in tmux's own language, where a quoted ``;`` is never a separator. None: nothing remains, and
    nothing is typed.
    """
    if keystrokes.endswith("\\;"):
        return f"{keystrokes[:-2]};"
    return keystrokes.removesuffix(";") or None
