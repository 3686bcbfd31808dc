"""A curve as inline SVG: without the plot extra, with a tooltip for each point, in the colours of the page's style."""

import math
from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT = 560, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 24, 30
_TICKS = 5


def curve(points: Sequence[tuple[int, float]], *, label: str, top: float = 0.0) -> str:
    """Return an SVG of a value against the batch; points carry their figures as tooltips.

    Args:
        points: Batch, counted from 0, and value. What is no finite number is left out.
        label: What is drawn.
        top: A value that the axis reaches in any case.
    """
    points = [(x, y) for x, y in points if math.isfinite(y)]
    ticks = _nice_ticks(min(0.0, *(y for _, y in points), 0.0), max(top, *(y for _, y in points), top))
    first, last = (points[0][0], points[-1][0]) if points else (0, 0)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        up = (y - ticks[0]) / (ticks[-1] - ticks[0])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<text class="label" x="0" y="13">{escape(label)}</text>']
    for tick in ticks:
        _, y = at(first, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{tick:g}</text>')
    for x in _batch_ticks(first, last):
        across, _ = at(x, 0)
        parts.append(f'<text class="tick" text-anchor="middle" x="{across:.1f}" y="{_HEIGHT - 12}">{x + 1}</text>')
    places = [at(x, y) for x, y in points]
    parts.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
    parts += [
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>batch {step + 1}: {value:.3g}</title></circle>'
        for (x, y), (step, value) in zip(places, points, strict=True)
    ]
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _nice_ticks(low: float, high: float) -> list[float]:
    """Return round values, the first not above ``low``, the last not below ``high``."""
    rough = (high - low or 1.0) / (_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [round(n * size, 10) for n in range(first, max(last, first + 1) + 1)]


def _batch_ticks(first: int, last: int) -> list[int]:
    stride = max(1, -(-(last - first) // 8))
    return list(range(first, last + 1, stride))
