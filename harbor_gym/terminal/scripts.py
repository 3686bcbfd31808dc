"""The scripts that run in the sandbox."""

import functools
import shlex
from pathlib import Path

_SCRIPTS = Path(__file__).parent / "sandbox"


@functools.cache
def read_script(name: str) -> str:
    """Return the text of a script by its name without suffix; one in parts, in a folder, is joined in their order."""
    parts = sorted((_SCRIPTS / name).glob("*.bash")) or [_SCRIPTS / f"{name}.bash"]
    return "\n".join(part.read_text() for part in parts)


def with_arguments(name: str, *arguments: object) -> str:
    """Return a script with its arguments, for a bash to read as its own."""
    return f"set -- {shlex.join(map(str, arguments))}\n{read_script(name)}"


def call_in_bash(name: str, *arguments: object) -> str:
    """Return a shell command that runs a script with arguments: in this very shell where that is bash."""
    words = shlex.join(map(str, arguments))
    return (
        f"set -- {words}; script={shlex.quote(read_script(name))}; "
        'case ${BASH-} in */bash) eval "$script" ;; *) exec bash -c "$script" bash "$@" ;; esac'
    )
