"""Files that readers find whole or not at all."""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Give a path beside ``path`` to write to; at the end of the block what was written there takes its place.

    Whoever reads ``path`` meanwhile reads the earlier file. Where the block raises, that one stays.

    Args:
        path: The file; its folder is there.
    """
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 in place of a file's content, at once. What UTF-8 lacks is written as ``\\udcff``."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
