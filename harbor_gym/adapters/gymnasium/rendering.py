"""Draw a terminal's screen: pyte reads the colours, and Pillow draws the characters (extra ``render``)."""

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harbor_gym.errors import MissingDependencyError
from harbor_gym.terminal import Screen

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

ALL_MODES = ("ansi", "human", "rgb_array")

_RGB_PACKAGES = ("pyte", "PIL", "matplotlib")
"""The packages that ``rgb_array`` needs; matplotlib has the font."""

CELL_WIDTH, CELL_HEIGHT = 9, 18
"""A cell's size in pixels. At this size the font's hinted advance is a whole number, so that cells line up."""

_FONT_SIZE = 15
_BASELINE = 14
_FONTS = "mpl-data/fonts/ttf"
_FOREGROUND, _BACKGROUND = "d0d0d0", "101010"
_COLOURS = {
    "black": "101010",
    "red": "cd3131",
    "green": "0dbc79",
    "brown": "e5e510",
    "blue": "2472c8",
    "magenta": "bc3fbc",
    "cyan": "11a8cd",
    "white": "e5e5e5",
    "brightblack": "666666",
    "brightred": "f14c4c",
    "brightgreen": "23d18b",
    "brightbrown": "f5f543",
    "brightblue": "3b8eea",
    "brightmagenta": "d670d6",
    "bfightmagenta": "d670d6",
    "brightcyan": "29b8db",
    "brightwhite": "ffffff",  # the first is pyte's spelling
}


def render_modes() -> tuple[str, ...]:
    """Return the render modes that this installation supports."""
    is_whole = all(importlib.util.find_spec(name) is not None for name in _RGB_PACKAGES)
    return ALL_MODES if is_whole else tuple(mode for mode in ALL_MODES if mode != "rgb_array")


def require_mode(mode: str | None) -> None:
    """Refuse a render mode that this installation does not support.

    Raises:
        MissingDependencyError: The extra ``render`` is not installed.
    """
    if mode is not None and mode not in render_modes():
        raise MissingDependencyError(f'render_mode {mode!r} needs an extra: pip install "harbor-gym[render]"')


def as_terminal_output(screen: Screen, *, in_place: bool) -> str:
    """Return the output that shows the screen on another terminal.

    Args:
        screen: The screen.
        in_place: Whether to overwrite the other terminal, with colours and the cursor; False is plain text.
    """
    if not in_place:
        return f"{screen.text}\n"
    rows = "\r\n".join(f"{line}\x1b[K" for line in screen.lines)
    cursor = f"\x1b[{screen.cursor_row + 1};{screen.cursor_column + 1}H"
    return f"\x1b[?25l\x1b[m\x1b[H{rows}\x1b[m\x1b[J{cursor}{'\x1b[?25h' if screen.is_cursor_visible else ''}"


def draw(screen: Screen) -> NDArray[np.uint8]:
    """Return a picture of the screen: height, width, red-green-blue.

    Characters that the font lacks (DejaVu Sans Mono: no CJK, no emoji) are drawn as its empty box.

    Raises:
        MissingDependencyError: The extra ``render`` is not installed.
    """
    require_mode("rgb_array")
    import pyte
    from PIL import Image, ImageDraw

    size = (screen.columns * CELL_WIDTH, screen.rows * CELL_HEIGHT)
    image = Image.new("RGB", size, f"#{_BACKGROUND}")
    pen = ImageDraw.Draw(image)
    pen.fontmode = "L"
    page = pyte.Screen(screen.columns, screen.rows)
    pyte.Stream(page).feed("\r\n".join(screen.lines))
    cursor = (screen.cursor_row, screen.cursor_column) if screen.is_cursor_visible else None
    for row in range(screen.rows):
        for column in range(screen.columns):
            _draw_cell(pen, page.buffer[row][column], row, column, is_cursor=cursor == (row, column))
    return np.asarray(image)


def _draw_cell(pen: Any, cell: Any, row: int, column: int, *, is_cursor: bool) -> None:
    foreground, background = _colour(cell.fg, _FOREGROUND), _colour(cell.bg, _BACKGROUND)
    if cell.reverse != is_cursor:
        foreground, background = background, foreground
    x, y = column * CELL_WIDTH, row * CELL_HEIGHT
    if background != f"#{_BACKGROUND}":
        pen.rectangle((x, y, x + CELL_WIDTH - 1, y + CELL_HEIGHT - 1), fill=background)
    if cell.data.strip():
        pen.text((x, y + _BASELINE), cell.data, fill=foreground, font=_font(bool(cell.bold)), anchor="ls")
    if cell.underscore:
        pen.line((x, y + CELL_HEIGHT - 2, x + CELL_WIDTH - 1, y + CELL_HEIGHT - 2), fill=foreground)


def _colour(name: str, default: str) -> str:
    return f"#{default if name == 'default' else _COLOURS.get(name, name)}"


@functools.cache
def _font(bold: bool) -> "FreeTypeFont":
    """Load DejaVu Sans Mono from matplotlib's files, without importing matplotlib."""
    from PIL import ImageFont

    package = importlib.util.find_spec("matplotlib")
    assert package is not None
    assert package.origin is not None
    name = "DejaVuSansMono-Bold.ttf" if bold else "DejaVuSansMono.ttf"
    file = Path(package.origin).parent / _FONTS / name
    return ImageFont.truetype(str(file), _FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
