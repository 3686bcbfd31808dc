"""A chart as inline SVG, without the extra ``plot``: a tooltip for each point, and colours from the page's style."""

import math
from collections.abc import Sequence
from html import escape

from harbor_gym.errors import printable

_WIDTH, _HEIGHT = 560, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 24, 30
_TICKS = 5
_LEGEND_ROW = 16
_NAME_LENGTH = 70
_MOST_POINTS = 400
_MOST_DOTS = 100


def markup(text: str) -> str:
    """Return any text as the content of an element or an attribute, in XML as in HTML."""
    return escape(printable(text))


def chart(lines: Sequence[tuple[int, str, Sequence[tuple[int, float]]]], *, label: str, top: float = 0.0) -> str:
    """Return an SVG of a value against the batch, with a line for each run and a tooltip for each point.

    Of a long run's points the least and the greatest of each part are drawn, and no tooltips.

    Args:
        lines: Each run's number, which is that of its colour, its name and its points (batch, counted from 0, and
            value). Values that are not finite are left out. Several runs get a legend.
        label: Name of the value.
        top: The axis reaches at least this value.
    """
    lines = [(run, name, _thinned([(x, y) for x, y in points if math.isfinite(y)])) for run, name, points in lines]
    everything = [point for _, _, points in lines for point in points]
    steps, values = [x for x, _ in everything], [y for _, y in everything]
    ticks = _nice_ticks(min(0.0, *values, 0.0), max(top, *values, top))
    first, last = min(steps, default=0), max(steps, default=0)
    legend = len(lines) * _LEGEND_ROW if len(lines) > 1 else 0
    height, above = _HEIGHT + legend, _TOP + legend

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        up = (y - ticks[0]) / (ticks[-1] - ticks[0])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), height - _BOTTOM - up * (height - above - _BOTTOM)

    parts = [f'<text class="label" x="0" y="13">{markup(label)}</text>']
    for tick in ticks:
        _, y = at(first, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{tick:g}</text>')
    for x in _batch_ticks(first, last):
        across, _ = at(x, 0)
        parts.append(f'<text class="tick" text-anchor="middle" x="{across:.1f}" y="{height - 12}">{x + 1}</text>')
    for row, (run, name, points) in enumerate(lines):
        if legend:
            parts.append(_legend(row, run, name))
        parts.append(_line(run, f"{name}, " if legend else "", points, [at(x, y) for x, y in points]))
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{markup(label)}">{"".join(parts)}</svg>'


def _thinned(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return the points, or of too many the least and the greatest of each part."""
    if len(points) <= _MOST_POINTS:
        return points
    size = -(-len(points) // (_MOST_POINTS // 2))
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    ends = [(min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])) for part in parts]
    return [point for pair in ends for point in sorted(set(pair))]


def _legend(row: int, number: int, name: str) -> str:
    """Return a run's row of the legend; a long name is cut at its beginning, since ends distinguish runs."""
    y = 17 + _LEGEND_ROW * (row + 1)
    shown = name if len(name) <= _NAME_LENGTH else f"…{name[1 - _NAME_LENGTH :]}"
    sample = f'<line class="line run{number}" x1="{_LEFT}" x2="{_LEFT + 22}" y1="{y - 4}" y2="{y - 4}"/>'
    return f'{sample}<text class="tick" x="{_LEFT + 30}" y="{y}">{markup(shown)}</text>'


def _line(number: int, run: str, points: Sequence[tuple[int, float]], places: Sequence[tuple[float, float]]) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    if len(points) > _MOST_DOTS:
        return f'<polyline class="line run{number}" points="{drawn}"/>'
    dots = [
        f'<circle class="dot run{number}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
        f"<title>{markup(run)}batch {step + 1}: {value:.3g}</title></circle>"
        for (x, y), (step, value) in zip(places, points, strict=True)
    ]
    return f'<polyline class="line run{number}" points="{drawn}"/>{"".join(dots)}'


def _nice_ticks(low: float, high: float) -> list[float]:
    """Return round values from at most ``low`` to at least ``high``."""
    rough = (high - low or 1.0) / (_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [round(n * size, 10) for n in range(first, max(last, first + 1) + 1)]


def _batch_ticks(first: int, last: int) -> list[int]:
    stride = max(1, -(-(last - first) // 8))
    return list(range(first, last + 1, stride))
