"""The terminal: an interactive shell in a sandbox, driven by keystrokes and read as text.

It uses a Harbor environment's ``exec`` and ``upload_file``, and is independent of Harbor's lifecycle.
"""

from harbor_gym.terminal.open import open_terminal, resume_terminal, session_of
from harbor_gym.terminal.screen.observation import OBSERVATION_FORMAT
from harbor_gym.terminal.screen.screen import Screen
from harbor_gym.terminal.session import Leftovers, Terminal, TerminalTurn
from harbor_gym.terminal.tmux import Session, TmuxTerminal

__all__ = [
    "OBSERVATION_FORMAT",
    "Leftovers",
    "Screen",
    "Session",
    "Terminal",
    "TerminalTurn",
    "TmuxTerminal",
    "open_terminal",
    "resume_terminal",
    "session_of",
]
