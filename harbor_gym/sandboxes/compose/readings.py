"""What decides Compose's reading of some files, where that is known: it is asked once for the same, as it takes tens of
milliseconds at every start.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_FURTHER = re.compile(r"extends|include|env_file|label_file|\\[xuU\n]")
"""Keys by which a file names other files, and escapes by which YAML could hide these words or a variable's name."""
_COMPOSES_OWN = ("COMPOSE_", "DOCKER_", "HOME")
"""Beginnings of the variables that it uses without being told; a path may begin with ``~``."""
_PROJECT_NAME = "COMPOSE_PROJECT_NAME"

type Key = tuple[object, ...]


def reading_key(
    program: str, files: Sequence[Path], overlays: Sequence[str], *, context: Path, name: str, env: Mapping[str, str]
) -> Key | None:
    """Return what decides a reading: the files' content and each variable that they may use. None if that is not known.

    Args:
        program: The path of Compose.
        files: The files that are merged.
        overlays: The content of further ones.
        context: The directory to which paths are relative, whose ``.env`` Compose reads as well.
        name: The project's name.
        env: All variables of Compose's process.
    """
    defaults = context / ".env"
    try:
        texts = [*(path.read_text(encoding="utf-8") for path in files), *overlays]
        texts.append(defaults.read_text(encoding="utf-8") if defaults.exists() else "")
    except (OSError, ValueError):  # Compose's own message says what is wrong
        return None
    if any(map(_FURTHER.search, texts)):
        return None
    used = {
        variable: value
        for variable, value in {**env, _PROJECT_NAME: name}.items()
        if any(variable in text for text in texts) or (variable.startswith(_COMPOSES_OWN) and variable != _PROJECT_NAME)
    }
    return program, tuple(files), tuple(texts), context, tuple(sorted(used.items()))
