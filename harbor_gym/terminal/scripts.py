"""The scripts that run in the sandbox."""

import functools
from pathlib import Path

_SCRIPTS = Path(__file__).parent / "sandbox"


@functools.cache
def read_script(name: str) -> str:
    """Return the text of a script by its name without suffix."""
    return (_SCRIPTS / f"{name}.bash").read_text()
