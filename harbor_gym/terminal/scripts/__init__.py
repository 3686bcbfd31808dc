"""The scripts that run in the sandbox."""

import functools
import shlex
from pathlib import Path

from harbor_gym._runtime.shell_text import without_comments

_SCRIPTS = Path(__file__).parent


def read_source(name: str) -> str:
    """Return the text of a script by its name without suffix; the parts of a script in a folder are joined in order."""
    parts = sorted((_SCRIPTS / name).glob("*.bash")) or [_SCRIPTS / f"{name}.bash"]
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


@functools.cache
def read_script(name: str) -> str:
    """Return a script as it is sent: without comment lines."""
    return without_comments(read_source(name))


def reader(key: str, **texts: str) -> str:
    """Return a short command that reads variables from its standard input, then runs the last of them.

    The texts are not on the command line, which every process in the sandbox can read.

    Args:
        key: Distinguishes this command from others.
        texts: The variables in its input, in this order.
    """
    reads = [f"IFS= LC_ALL=C read -rN {len(text.encode())} {name}" for name, text in texts.items()]
    return " && ".join([f": terminal/step serve {key}", *reads, f'eval "${list(texts)[-1]}"'])


def call_in_bash(name: str, *arguments: object) -> str:
    """Return a shell command that runs a script with arguments: in the same shell if that is bash."""
    words = shlex.join(map(str, arguments))
    return (
        f"set -- {words}; script={shlex.quote(read_script(name))}; "
        'case ${BASH-} in */bash) eval "$script" ;; *) exec bash -c "$script" bash "$@" ;; esac'
    )
