"""Draw the kinds of Mermaid diagrams that our pages have, as SVG in the colours of the page.

A flowchart from left to right, of ``id[words]`` and ``a -->|words| b`` chains without cycles; and a sequence diagram of
participants, messages and loops. Any other line raises ``ValueError``, which ends the build.
"""

import re
from html import escape

_CHARACTER, _LINE = 7.2, 17
_PADDING = 12
_GAP = 26
_EDGE = re.compile(r"\s*-->(?:\|([^|]*)\|)?\s*")
_NODE = re.compile(r'(\w+)(?:\["?([^\]"]*)"?\])?')
_MESSAGE = re.compile(r"(\w+)(-?->>)(\w+): (.*)")


def draw(text: str) -> str:
    """Return the SVG of a diagram.

    Raises:
        ValueError: It has a line that this module does not know.
    """
    kind, *lines = [line.strip() for line in text.splitlines() if line.strip()]
    if kind == "flowchart LR":
        return _flowchart(lines)
    if kind == "sequenceDiagram":
        return _sequence(lines)
    raise ValueError(f"no diagram of the kind {kind!r} is known; there are: flowchart LR, sequenceDiagram")


def _flowchart(lines: list[str]) -> str:
    labels: dict[str, str] = {}
    edges: list[tuple[str, str, str]] = []
    for line in lines:
        parts = _EDGE.split(line)
        names = [_node(part, labels, line) for part in parts[::2]]
        edges += [(a, b, label or "") for a, b, label in zip(names, names[1:], parts[1::2], strict=False)]
    ranks = dict.fromkeys(labels, 0)
    for _ in labels:
        for one, other, _label in edges:
            ranks[other] = max(ranks[other], ranks[one] + 1)
    if max(ranks.values()) >= len(labels):
        raise ValueError(f"a flowchart with a cycle can't be drawn: {lines}")
    columns = [[name for name in labels if ranks[name] == rank] for rank in range(max(ranks.values()) + 1)]
    tall = max(len(column) for column in columns) * (_LINE + 2 * _PADDING + _GAP)
    boxes: dict[str, tuple[float, float, float]] = {}
    x = 1.0
    for rank, column in enumerate(columns):
        width = max(_width(labels[name]) for name in column) + 2 * _PADDING
        for number, name in enumerate(column):
            boxes[name] = x, tall * (number + 0.5) / len(column), width
        words = max((_width(label) for one, _, label in edges if ranks[one] == rank), default=0)
        x += width + max(40, words + 34)
    parts = [_box(x, y, width, labels[name]) for name, (x, y, width) in boxes.items()]
    for one, other, label in edges:
        (x1, y1, width), (x2, y2, _) = boxes[one], boxes[other]
        parts.append(_arrow(x1 + width, y1, x2, y2))
        if label:
            parts.append(_text((x1 + width + x2) / 2, (y1 + y2) / 2 - 6, label))
    last = max(x + width for x, _, width in boxes.values())
    return _svg(last + 1, tall, parts)


def _node(text: str, labels: dict[str, str], line: str) -> str:
    found = _NODE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"no node of a flowchart: {text!r} in {line!r}")
    labels[found[1]] = found[2] or labels.get(found[1]) or found[1]
    return found[1]


def _sequence(lines: list[str]) -> str:
    places: dict[str, str] = {}
    rows: list[tuple[str, ...]] = []
    for line in lines:
        if found := re.fullmatch(r"participant (\w+)(?: as (.*))?", line):
            places[found[1]] = found[2] or found[1]
        elif found := _MESSAGE.fullmatch(line):
            rows.append(found.groups())
        elif found := re.fullmatch(r"loop (.*)|(end)", line):
            rows.append(("end",) if found[2] else ("loop", found[1]))
        else:
            raise ValueError(f"no line of a sequence diagram: {line!r}")
    names = list(places)
    step = max([_width(label) + 2 * _PADDING + 20 for label in places.values()] + [_span(row, names) for row in rows])
    across = {name: step * (number + 0.5) for number, name in enumerate(names)}
    width, y = step * len(names), _LINE + 2 * _PADDING + _GAP
    parts: list[str] = []
    loops: list[float] = []
    for row in rows:
        if row[0] == "loop":
            loops.append(y - 14)
            parts.append(_text(8, y + 2, f"loop {row[1]}", anchor="start"))
        elif row[0] == "end":
            top = loops.pop()
            y -= 14
            parts.append(f'<rect class="frame" x="1" y="{top:.0f}" width="{width - 2:.0f}" height="{y - top:.0f}"/>')
        else:
            one, head, other, label = row
            parts.append(_text((across[one] + across[other]) / 2, y - 6, label))
            parts.append(_arrow(across[one], y, across[other], y, dashed=head == "-->>"))
        y += 30
    lifelines = [
        f'<line class="frame" x1="{x:.1f}" x2="{x:.1f}" y1="{_LINE + 2 * _PADDING}" y2="{y - 20:.0f}"/>'
        for x in across.values()
    ]
    heads = [
        _box(across[name] - _width(label) / 2 - _PADDING, _LINE / 2 + _PADDING + 1, _width(label) + 2 * _PADDING, label)
        for name, label in places.items()
    ]
    return _svg(width, y - 18, [*lifelines, *heads, *parts])


def _span(row: tuple[str, ...], names: list[str]) -> float:
    """Return how far apart neighbours must be for a message's words to fit between its ends."""
    if len(row) < 4:
        return 0
    one, _, other, label = row
    return (_width(label) + 16) / max(1, abs(names.index(one) - names.index(other)))


def _width(words: str) -> float:
    return len(words) * _CHARACTER


def _box(x: float, y: float, width: float, words: str) -> str:
    height = _LINE + 2 * _PADDING
    rect = f'<rect class="box" x="{x:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height}" rx="4"/>'
    return rect + _text(x + width / 2, y + 5, words)


def _text(x: float, y: float, words: str, *, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _arrow(x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> str:
    line = f'<path class="edge{" dashed" if dashed else ""}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"'
    return f'{line} marker-end="url(#arrow)"/>'


def _svg(width: float, height: float, parts: list[str]) -> str:
    marker = '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    head = f'<defs>{marker}<path d="M0 0L8 4L0 8z"/></marker></defs>'
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" style="min-width:min({width:.0f}px,560px);max-width:{width:.0f}px"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{head}{"".join(parts)}</svg>'
