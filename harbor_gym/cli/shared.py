"""The common part of all commands: exit codes, one-line errors, and preflight checks."""

import errno
import logging
import os
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import typer

from harbor_gym._runtime.console.progress import SLOW_SEC, ticking
from harbor_gym._runtime.disks import describe_disk_failure
from harbor_gym.errors import HarborGymError, MissingDependencyError, TaskError, UsageError, printable
from harbor_gym.outcomes import describe

FAILED = 1
"""Exit code: the command failed, or its answer is no."""

MISUSED = 2
"""Exit code: wrong arguments, a wrong task or a missing dependency."""

INTERRUPTED = 130
"""Exit code: ended by SIGINT."""

_REMEDIES = {
    errno.ENOENT: "name one that is there",
    errno.ENOTDIR: "name one whose folders are folders",
    errno.EISDIR: "name a file",
}
"""What to do about a path that can't be used."""


def echo(text: object, *, err: bool = False, before: str = "") -> None:
    """Print a text with escaped control characters, since it may quote a sandbox's output.

    Args:
        text: The text.
        err: Print it on stderr.
        before: A prefix that is not escaped.
    """
    typer.echo(f"{before}{printable(str(text))}", err=err)


def preflight_by_name(env: str) -> None:
    """Check that sandboxes of this kind can start here.

    Raises:
        HarborGymError: They can't; see :func:`harbor_gym.sandboxes.preflight`.
    """
    from harbor_gym.sandboxes import environment_config, preflight

    preflight(environment_config(env))


def loading() -> AbstractContextManager[object]:
    """Show, if it takes long, that the block imports what a command needs."""
    return announced("loading")


def announced(phase: str) -> AbstractContextManager[object]:
    """Show, if it takes long, that the block does something, to a person: a program reads errors alone on stderr."""
    return ticking(phase, delay_sec=SLOW_SEC) if _is_watched() else nullcontext()


def _is_watched() -> bool:
    return sys.stderr.isatty()


@contextmanager
def quiet_harbor() -> Generator[None]:
    """Disable logging during the block, to keep Harbor's progress messages off the terminal."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def one_line_errors() -> Generator[None]:
    """Turn a :class:`HarborGymError`, or an error about a file, into one line on stderr and an exit code."""
    try:
        yield
    except HarborGymError as exc:
        code = MISUSED if isinstance(exc, UsageError | MissingDependencyError | TaskError) else FAILED
        # A note of several lines is a trial's diagnosis, for programs: its last line may be another error's.
        notes = "".join(f"; {note}" for note in getattr(exc, "__notes__", ()) if "\n" not in note)
        echo(f"error: {exc if code == MISUSED else describe(exc)}{notes}", err=True)
        raise SystemExit(code) from exc  # not typer.Exit: a recipe need not be a command
    except OSError as exc:
        line = describe_disk_failure(exc) or _describe_file_failure(exc)
        if line is None:
            raise
        echo(f"error: {line}", err=True)
        raise SystemExit(FAILED) from exc


def _describe_file_failure(error: OSError) -> str | None:
    if error.filename is None:
        return None
    remedy = _REMEDIES.get(error.errno or 0, "name another path")
    return f"{os.fsdecode(error.filename)}: {error.strerror}: {remedy}"
