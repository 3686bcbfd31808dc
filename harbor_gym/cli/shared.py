"""What commands share: exit codes, errors on one line, and the check before anything starts."""

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager

import typer

from harbor_gym.errors import HarborGymError, MissingDependencyError, TaskSourceError, UsageError, printable

FAILED = 1
"""Exit code: the answer is no."""

MISUSED = 2
"""Exit code: wrong arguments or something missing; nothing was started."""

INTERRUPTED = 130
"""Exit code: ended by SIGINT."""


def echo(text: object, *, err: bool = False, nl: bool = True, before: str = "") -> None:
    """Print a text, which may quote what a sandbox wrote, with control characters spelled out.

    Args:
        text: The text.
        err: Print it on stderr.
        nl: End the line.
        before: Control characters of our own, to come first.
    """
    typer.echo(f"{before}{printable(str(text))}", err=err, nl=nl)


def preflight_by_name(env: str) -> None:
    """Check that sandboxes of this kind can start here.

    Raises:
        HarborGymError: They can't; see :func:`harbor_gym.sandboxes.preflight`.
    """
    from harbor_gym.sandboxes import environment_config, preflight

    preflight(environment_config(env))


@contextmanager
def quiet_harbor() -> Generator[None]:
    """Keep Harbor's progress, which it reports through loggers, off the terminal."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def one_line_errors() -> Generator[None]:
    """Turn our errors, and those of a file that can't be read or written, into one line on stderr and an exit code."""
    try:
        yield
    except HarborGymError as exc:
        code = MISUSED if isinstance(exc, UsageError | MissingDependencyError | TaskSourceError) else FAILED
        echo(f"error: {exc}", err=True)
        raise typer.Exit(code) from None
    except OSError as exc:
        if exc.filename is None:
            raise
        echo(f"error: {os.fsdecode(exc.filename)}: {exc.strerror}", err=True)
        raise typer.Exit(FAILED) from None
