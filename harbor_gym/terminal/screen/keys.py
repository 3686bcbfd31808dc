"""Translate keystrokes for tmux: a key name from a closed list, or bytes as they are."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harbor_gym.terminal.screen.terminus_keys import as_one_argument, is_pasted
from harbor_gym.types import Command

MAX_KEYSTROKE_BYTES = 2 * 1024 * 1024
"""Ceiling on the keystrokes of one step, in UTF-8 bytes."""

MAX_INLINE_BYTES = 1024
"""Longer keystrokes are pasted: tmux accepts 16 KiB of arguments, and one hex word is three characters."""

MAX_LINE_BYTES = 4095
"""The bytes of a line before its end that a terminal in line mode keeps. Source: ``N_TTY_BUF_SIZE`` of Linux."""

_KEY_NAME = re.compile(
    r"(C-[a-z@\[\]\\^_]|M-[!-~]|Enter|Escape|Tab|BTab|Space|BSpace|DC|IC|Up|Down|Left|Right"
    r"|Home|End|PgUp|PgDn|PageUp|PageDown|PPage|NPage|F[1-9]|F1[0-2])\n?"
)

_CONTROL = re.compile(rb"[\x01-\x08\x0b-\x1f\x7f]")  # without tab and line feed
_LINE_END = re.compile(rb"[\r\n]")
_SIGNAL = re.compile("[\x03\x11\x13\x1a\x1c]")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one command."""

    name: str | None
    """A tmux key name, or None for plain bytes."""

    data: bytes
    """The bytes to type, with a carriage return for the first line feed. Empty for a key name and for a bare wait.

    Later line feeds stay, as the program that will read them is not known yet. In a full-screen program they become
    carriage returns, too.
    """

    text: str | None = None
    """One argument of ``send-keys`` that tmux itself reads; None for names and bytes."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is typed at all."""
        return self.name is None and not self.data and self.text is None

    @property
    def longest_line(self) -> int:
        """The bytes of the longest line."""
        return max(map(len, _LINE_END.split(self.data)))


def encode_keystrokes(keystrokes: str) -> Keys:
    """Read one command's keystrokes.

    A string that is exactly one key name (``"C-c"``, ``"C-c\\n"``, ``"Up"``) is that key; any other text is typed byte
    by byte, with the first LF sent as CR, like the Enter key.

    Raises:
        ValueError: ``keystrokes`` contains a NUL or a lone surrogate, which can't be sent to a terminal.
    """
    if match := _KEY_NAME.fullmatch(keystrokes):
        return Keys(name=match[1], data=b"")
    if "\0" in keystrokes:
        raise ValueError("keystrokes contain a NUL character")
    return Keys(name=None, data=keystrokes.encode().replace(b"\n", b"\r", 1))


def encode_literal_keystrokes(keystrokes: str) -> Keys:
    """Read the text of one command, for a shell without completion.

    As :func:`encode_keystrokes`, but a control character arrives as a character: C-v, by which readline and a terminal
    in line mode quote the next key, is sent before it.

    Raises:
        ValueError: As :func:`encode_keystrokes`; or a character stops programs or output, which C-v can't prevent.
    """
    keys = encode_keystrokes(keystrokes)
    if keys.name is not None:
        return keys
    if found := _SIGNAL.search(keystrokes):
        raise ValueError(f"a command's text can't hold the character \\x{ord(found[0]):02x}: write it as an escape")
    quoted = _CONTROL.sub(lambda found: b"\x16" + found[0], keystrokes.encode())
    return Keys(name=None, data=quoted.replace(b"\n", b"\r", 1))


def encode_terminus_keystrokes(keystrokes: str) -> Keys:
    """Read one command's keystrokes as Terminus-2 would have tmux read them.

    Raises:
        ValueError: As :func:`encode_keystrokes`.
    """
    if "\0" in keystrokes:
        raise ValueError("keystrokes contain a NUL character")
    if is_pasted(keystrokes):
        return Keys(name=None, data=keystrokes.encode().replace(b"\n", b"\r"))
    return Keys(name=None, data=b"", text=as_one_argument(keystrokes))


def encode_keys(keystrokes: str, keys: str | None) -> Keys:
    """Read one command's keystrokes by the semantics of ``TerminalConfig.keys``.

    Raises:
        ValueError: As :func:`encode_keystrokes`.
    """
    encode = {"harbor": encode_terminus_keystrokes, "literal": encode_literal_keystrokes}.get(keys or "")
    return (encode or encode_keystrokes)(keystrokes)


def count_keystroke_bytes(commands: Iterable[Command]) -> int:
    """Sum the UTF-8 bytes of all keystrokes; a lone surrogate counts as three."""
    return sum(len(command.keystrokes.encode(errors="surrogatepass")) for command in commands)
