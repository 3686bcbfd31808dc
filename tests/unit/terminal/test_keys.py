"""Keystrokes: key names from a closed list, bytes for everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harbor_gym.terminal.screen.keys import Keys, count_keystroke_bytes, encode_keystrokes
from harbor_gym.types import Command

NAMES = [
    *(f"C-{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    *("Enter", "Escape", "Tab", "BSpace", "Up", "Down", "Left", "Right", "Home", "End", "PgUp", "PgDn"),
    *(f"F{number}" for number in range(1, 13)),
    *("M-x", "M-.", "M-B"),
]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_key_name_is_a_key(end: str) -> None:
    assert {name: encode_keystrokes(name + end) for name in NAMES} == {name: Keys(name, data=b"") for name in NAMES}


@pytest.mark.parametrize(
    "text",
    [
        "C-",
        "C-cc",
        "C-c ",
        " C-c",
        "C-c\n\n",
        "C-C",
        "c-c",
        "F0",
        "F13",
        "enter",
        "Enter Enter",
        "M-",
        "M-xy",
        "M-é",
        "^C",
        "UpUp",
    ],
)
def test_anything_else_is_text(text: str) -> None:
    assert encode_keystrokes(text) == Keys(name=None, data=text.encode().replace(b"\n", b"\r", 1))


def test_no_keystrokes_type_nothing() -> None:
    assert encode_keystrokes("").is_empty
    assert not encode_keystrokes("\n").is_empty
    assert not encode_keystrokes("C-c").is_empty


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_bytes_are_kept_but_for_line_feeds(text: str) -> None:
    keys = encode_keystrokes(text)
    if keys.name is None:
        assert keys.data == text.encode().replace(b"\n", b"\r", 1)
    else:
        assert text in (keys.name, f"{keys.name}\n")


@pytest.mark.parametrize(("keystrokes", "message"), [("a\0", "NUL"), ("\0", "NUL"), ("\ud800", "surrogates")])
def test_what_no_terminal_can_be_sent_is_refused(keystrokes: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_keystrokes(keystrokes)


def test_bytes_are_counted_not_characters() -> None:
    assert count_keystroke_bytes([Command("aé"), Command("漢"), Command("\ud800")]) == 3 + 3 + 3
