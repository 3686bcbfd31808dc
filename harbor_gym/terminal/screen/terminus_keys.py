"""Terminus-2's own keystroke semantics, for parity with recordings and training under it.

Source: ``TmuxSession`` of harbor 0.24 (``harbor/agents/terminus_2/tmux_session.py``), and for the final semicolon
``cmd_parse_from_arguments`` in tmux's cmd-parse.y.

Terminus-2 hands each command's whole keystrokes to ``tmux send-keys`` as one argument, so tmux decides what they mean:

- a text that is a tmux key name as a whole (``C-c``, ``Up``, ``M-x``, ``^C``, ``0x41``) is that key, and ``C-c\\n`` is
  not: it is typed as four characters;
- one final ``;`` separates tmux commands and is lost, and a final ``\\;`` is typed as ``;``;
- a line feed is typed as one (0x0a), not as the carriage return that Enter sends.

What would not fit a command line is pasted, line feeds as carriage returns.
"""

import shlex

HARBOR_SESSION = "terminus-2"
"""The session's name, on whose length the limit below depends."""

_MAX_COMMAND_BYTES = 16_000
"""A longer ``tmux send-keys …``, as quoted for a shell, is pasted instead."""


def is_pasted(keystrokes: str) -> bool:
    """Return whether Terminus-2 would paste ``keystrokes``: at about 15 950 bytes, a quote counting five."""
    command = f"tmux send-keys -t {HARBOR_SESSION} -- {shlex.quote(keystrokes)}"
    return len(command.encode()) > _MAX_COMMAND_BYTES


def as_one_argument(keystrokes: str) -> str | None:
    """Return what is left of ``keystrokes`` as the argument of ``send-keys`` after tmux has read its command line.

    For a channel that speaks tmux's own language, where a quoted ``;`` is never a separator. None: nothing is left,
    and nothing is typed.
    """
    if keystrokes.endswith("\\;"):
        return f"{keystrokes[:-2]};"
    return keystrokes.removesuffix(";") or None
