"""Run a command and exit: SIGTERM and SIGHUP clean up as Ctrl-C does, and no library's thread changes the status."""

import atexit
import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from harbor_gym._runtime.console.progress import shown_by
from harbor_gym._runtime.disks import describe_disk_failure
from harbor_gym._runtime.interrupts import ends_as_interrupts
from harbor_gym.cli.progress import PlainProgress
from harbor_gym.cli.shared import MISUSED, echo
from harbor_gym.errors import printable

_RESTLESS = "tinker"
"""A package whose thread never ends."""


def run_and_exit(program: Callable[[], object]) -> NoReturn:
    """Run a command's ``main`` and end the process with its status; 143 after SIGTERM, 129 after SIGHUP.

    The Tinker SDK's thread never ends: on a busy machine it aborted 2 of 84 processes (SIGABRT) during the
    interpreter's shutdown, after all their work. If the SDK was imported, the process ends without that shutdown:
    ``atexit`` functions run, and the output is flushed.

    Args:
        program: Returns, or raises ``SystemExit``, as ``typer.Typer`` does; other exceptions are printed.
    """
    status = _run(program)
    if _RESTLESS not in sys.modules:
        sys.exit(status)
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # the interpreter's shutdown begins with it
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader of the pipe has gone
            stream.flush()
    os._exit(status)


def _run(program: Callable[[], object]) -> int:
    status = 1
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an 8-bit terminal has no box-drawing characters
    on_stderr = PlainProgress(lambda line: echo(line, err=True))  # a program may read stdout
    with ends_as_interrupts() as termination, shown_by(on_stderr.bar):
        try:
            Path.cwd()
        except OSError:
            sys.stderr.write("error: the folder that this command was started in is gone: change to another one\n")
            return MISUSED
        try:
            program()
            status = 0
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
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
