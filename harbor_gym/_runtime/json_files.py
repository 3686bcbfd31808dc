"""JSON files: a last line that a kill cut is tolerated; an error names an unreadable file and the remedy."""

import contextlib
import json
from pathlib import Path
from typing import Any, cast

from harbor_gym._runtime.errors import UsageError
from harbor_gym._runtime.files import replace_text


def read_document(path: Path, *, remedy: str) -> dict[str, Any]:
    """Return a file's one JSON object.

    Args:
        path: The file.
        remedy: What a reader of the error can do.

    Raises:
        FileNotFoundError: There is no such file.
        UsageError: It can't be read, or does not hold a JSON object.
    """
    return _object(path, _text(path, remedy), remedy)


def read_lines(path: Path, *, remedy: str, mends: bool = False) -> list[dict[str, Any]]:
    """Return a file's JSON objects, one a line, without a last line that a kill cut.

    Args:
        path: The file.
        remedy: What a reader of the error can do.
        mends: Remove a cut line from the file, too. Only for the file's one writer, before it appends: another process
            may still be writing the rest of the line.

    Raises:
        FileNotFoundError: There is no such file.
        UsageError: A line can't be read, or does not hold a JSON object.
    """
    text = _text(path, remedy)
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):  # the next line would be appended to it
        last = lines.pop()
        lines += [f"{last}\n"] if _is_json(last) else []
        if mends:
            replace_text(path, "".join(lines))
    numbered = enumerate(lines, start=1)
    return [_object(path, line, remedy, f"line {number}") for number, line in numbered]


def read_grown(path: Path, *, remedy: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the JSON object that a file begins with, and those on the lines after it.

    A last line that a kill cut is left out.

    Args:
        path: The file.
        remedy: What a reader of the error can do.

    Raises:
        FileNotFoundError: There is no such file.
        UsageError: It can't be read, or does not hold JSON objects.
    """
    text = _text(path, remedy)
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        end = len(text)
    lines = [line for line in text[end:].split("\n") if line]
    if lines and not _is_json(lines[-1]):
        lines.pop()
    added = [_object(path, line, remedy, f"line {number} behind its object") for number, line in enumerate(lines, 1)]
    return _object(path, text[:end], remedy), added


def object_or_empty(path: Path, *, first_line: bool = False) -> dict[str, Any]:
    """Return the JSON object in a file or in its first line; an empty one if none can be read."""
    with contextlib.suppress(OSError, ValueError), path.open(encoding="utf-8") as file:
        value = json.loads(file.readline() if first_line else file.read())
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    return {}


def _text(path: Path, remedy: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} can't be read: it is no text: {remedy}") from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _object(path: Path, text: str, remedy: str, place: str = "") -> dict[str, Any]:
    where = f"{path}, {place}," if place else f"{path}"
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise UsageError(f"{where} can't be read: {exc}: {remedy}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where} can't be read: it holds no JSON object: {remedy}")
    return cast("dict[str, Any]", value)
