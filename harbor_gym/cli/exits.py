"""The end of a command: SIGTERM and SIGHUP clean up as Ctrl-C does, and a library's thread can't change the status."""

import atexit
import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from harbor_gym._runtime.console.progress import shown_by
from harbor_gym._runtime.disks import describe_disk_failure
from harbor_gym._runtime.interrupts import ends_as_interrupts
from harbor_gym.cli.progress import PlainProgress
from harbor_gym.cli.shared import echo
from harbor_gym.errors import printable

_RESTLESS = "tinker"
"""A package whose thread has no end of its own."""


def run_and_exit(program: Callable[[], object]) -> NoReturn:
    """Run a command's ``main`` and end the process with its status; 143 after SIGTERM, 129 after SIGHUP.

    The Tinker SDK's thread has no end of its own: on a busy machine 2 of 84 processes that had used it were aborted by
    it (SIGABRT) while the interpreter was ending, after all their work. Where it was imported, the process ends without
    the interpreter's own end: what is registered with ``atexit`` runs, and what was printed is flushed.

    Args:
        program: Returns, or raises ``SystemExit``, as ``typer.Typer`` does; anything else that it raises is shown.
    """
    status = _run(program)
    if _RESTLESS not in sys.modules:
        sys.exit(status)
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # the interpreter's own end begins with it
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(status)


def _run(program: Callable[[], object]) -> int:
    status = 1
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of eight bits has no box to draw with
    on_stderr = PlainProgress(lambda line: echo(line, err=True))  # what is printed on stdout may be read by a program
    with ends_as_interrupts() as termination, shown_by(on_stderr.bar):
        try:
            program()
            status = 0
        except KeyboardInterrupt:
            status = 128 + signal.SIGINT
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
        except BaseException as exc:  # the end of the process: no caller is left to handle it
            if (line := describe_disk_failure(exc)) is not None:
                sys.stderr.write(f"error: {printable(line)}\n")
                return status
            with contextlib.redirect_stderr(io.StringIO()) as shown:
                sys.excepthook(type(exc), exc, exc.__traceback__)
            sys.stderr.write(printable(shown.getvalue()))
    return termination.status if termination.status and status else status
