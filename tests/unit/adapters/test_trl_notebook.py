"""The notebook's script, as far as it needs no kernel: the text of a cell's output."""

import base64
import struct

import pytest

from harbor_gym.adapters.trl.scripts.notebook import as_text, describe

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0\0\0\x0dIHDR" + struct.pack(">II", 640, 480) + b"rest").decode()


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("one\ntwo\n", "one\ntwo"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("10 %\r50 %\r100 %\ndone\n", "100 %\ndone"),
        ("10 %\r", "10 %"),
        ("dos\r\nlines\r\n", "dos\nlines"),
        ("trailing  \n\n\n", "trailing"),
        ("", ""),
    ],
)
def test_output_as_text(output: str, text: str) -> None:
    assert as_text(output) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"text/plain": "3"}, "3"),
        ({"text/html": "<b>3</b>", "text/plain": "3"}, "3"),
        ({"image/png": PNG, "text/plain": "<Figure>"}, "[image/png, 640x480 pixels, 28 bytes] <Figure>"),
        ({"image/jpeg": base64.b64encode(b"12345").decode()}, "[image/jpeg, 5 bytes]"),
        ({"image/svg+xml": "<svg/>"}, "[image/svg+xml, 6 characters]"),
        ({"application/json": "{}"}, "[application/json]"),
    ],
)
def test_what_a_cell_displays(data: dict[str, str], text: str) -> None:
    assert describe(data) == text
