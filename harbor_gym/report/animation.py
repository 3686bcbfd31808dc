"""A recording as an animated SVG without scripts, which a README can show as an image."""

import json
from pathlib import Path
from typing import Any

from harbor_gym._runtime.files import open_regular, replace_text
from harbor_gym.errors import UsageError, printable
from harbor_gym.report.screen import MARK, Frame, Recording, read_recording
from harbor_gym.report.svg import markup

TURN_SEC = 2.0
"""Default seconds per turn; the recorded durations may be milliseconds."""

_LAST_TURNS = 2.5
"""The last turn is shown this many times longer than the others."""

_CELL_WIDTH, _LINE_HEIGHT = 8.4, 18
_MARGIN, _TITLE, _CAPTION = 14, 34, 30
_FEWEST_COLUMNS = 60
_CAPTION_CHARS = 110
_STYLE = """\
text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d7dde4;white-space:pre}
.title{fill:#8b96a3;font-size:13px}.caption{fill:#7fc8a9;font-size:13px}
.turn{visibility:hidden}.turn:last-of-type{visibility:visible}
@media (prefers-reduced-motion:no-preference){"""


def write_animation(recording: Path, path: Path, *, turn_sec: float = TURN_SEC, max_rows: int | None = None) -> int:
    """Draw a recording as an SVG that shows one turn after the other, in a loop.

    The last turn's caption has the reward, if the episode's transcript or its trial's result is in the same folder.
    Readers who prefer reduced motion see the last turn.

    Args:
        recording: An asciicast v2 that this package wrote.
        path: The file to write; an existing one is replaced.
        turn_sec: Seconds per turn.
        max_rows: Number of last rows of the screen to draw; None draws all used rows.

    Returns:
        The number of turns.

    Raises:
        UsageError: The file is not a recording, or has no turn.
        MissingDependencyError: The extra ``render`` is not installed.
    """
    recorded = read_recording(recording)
    if not recorded.frames:
        raise UsageError(f"{recording} has no turn that could be drawn")
    replace_text(path, _svg(recorded, _ending(recording), turn_sec, max_rows))
    return len(recorded.frames)


def _svg(recorded: Recording, ending: str, turn_sec: float, max_rows: int | None) -> str:
    frames = recorded.frames
    screens = [frame.lines[-max_rows:] if max_rows else frame.lines for frame in frames]
    rows = max(map(len, screens))
    columns = max([_FEWEST_COLUMNS, *(len(line) for lines in screens for line in lines)])
    width, height = round(columns * _CELL_WIDTH) + 2 * _MARGIN, rows * _LINE_HEIGHT + _TITLE + _CAPTION + _MARGIN
    title = markup(recorded.title or "an episode")
    style = f"{_STYLE}{_keyframes(len(frames), turn_sec)}}}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
        f' role="img" aria-label="{title}"><style>{style}</style>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#14181d"/>',
        "".join(f'<circle cx="{_MARGIN + 6 + 18 * n}" cy="17" r="5" fill="#39424d"/>' for n in range(3)),
        f'<text class="title" x="{width / 2:g}" y="22" text-anchor="middle">{title}</text>\n',
    ]
    for number, (frame, lines) in enumerate(zip(frames, screens, strict=True)):
        caption = _caption(frame) + (ending if number == len(frames) - 1 else "")
        drawn = "".join(_line(line, _TITLE + 14 + row * _LINE_HEIGHT) for row, line in enumerate(lines) if line)
        below = f'<text class="caption" x="{_MARGIN}" y="{height - _MARGIN}">{markup(_short(caption))}</text>'
        parts.append(f'<g class="turn" id="t{number}">{drawn}{below}</g>\n')
    return "".join([*parts, "</svg>\n"])


def _line(text: str, y: int) -> str:
    """Return one row; its width is fixed, so that columns line up in every font."""
    length = round(len(text) * _CELL_WIDTH, 1)
    return f'<text x="{_MARGIN}" y="{y}" textLength="{length:g}" xml:space="preserve">{markup(text)}</text>'


def _keyframes(turns: int, turn_sec: float) -> str:
    """Return the CSS rules that show each turn during its time only."""
    if turns == 1:
        return ""
    whole = (turns - 1 + _LAST_TURNS) * turn_sec
    rules: list[str] = []
    for number in range(turns):
        begin, end = (100 * at * turn_sec / whole for at in (number, number + 1))
        hidden = f"{end:.3f}%{{visibility:hidden}}" if number < turns - 1 else ""
        shown = f"{begin:.3f}%{{visibility:visible}}{hidden}"
        start = "0%{visibility:hidden}" if number else ""
        rules.append(f"@keyframes k{number}{{{start}{shown}}}")
        rules.append(f"#t{number}{{visibility:hidden;animation:k{number} {whole:g}s step-end infinite}}")
    return "".join(rules)


def _caption(frame: Frame) -> str:
    number = frame.label.partition(":")[0]
    if not frame.typed:
        return "the first screen" if number == "0" else f"turn {number}"
    keys = "\u23ce ".join(frame.typed.split("\n")).strip()
    return f"turn {number} types  {keys}"


def _short(text: str) -> str:
    plain = printable(text, mark=MARK)
    return plain if len(plain) <= _CAPTION_CHARS else f"{plain[: _CAPTION_CHARS - 1]}…"


def _ending(recording: Path) -> str:
    """Return how the episode ended, by the transcript or the trial's result in the same folder; empty without them."""
    transcript, result = _document(recording.with_suffix(".json")), _document(recording.with_name("result.json"))
    if isinstance(transcript.get("reward"), int | float):
        return f"   ->  {transcript.get('end_reason')}, reward {transcript['reward']:g}"
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    return "".join(f"   ->  {name} {value:g}" for name, value in rewards.items())


def _document(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path, path.parent) as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
