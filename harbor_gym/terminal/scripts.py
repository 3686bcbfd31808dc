"""The scripts that run in the sandbox."""

import functools
from pathlib import Path

_SCRIPTS = Path(__file__).parent / "sandbox"


@functools.cache
def read_script(name: str) -> str:
    """Return the text of a script by its name without suffix; one in parts, in a folder, is joined in their order."""
    parts = sorted((_SCRIPTS / name).glob("*.bash")) or [_SCRIPTS / f"{name}.bash"]
    return "\n".join(part.read_text() for part in parts)
