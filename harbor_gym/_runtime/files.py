"""Files and directories that readers find whole or not at all."""

import contextlib
import os
import tempfile
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


@contextlib.contextmanager
def publishing_once(directory: Path) -> Generator[Path]:
    """Give a path on the same file system, where the block makes a directory; at its end that becomes ``directory``.

    A ``directory`` that another process has published meanwhile stays, and the block's is removed, as it is where the
    block raises.

    Args:
        directory: Any; its parents are made.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=directory.parent, ignore_cleanup_errors=True) as folder:
        building = Path(folder) / directory.name
        yield building
        try:
            building.rename(directory)
        except OSError:
            if not directory.is_dir():
                raise


def replace_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 in place of a file's content, at once. What UTF-8 lacks is written as ``\\udcff``."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
