"""The console script, which wheels have as a module of its own: ``harbor_gym`` itself takes half a second to import.

Nothing of the package is imported before Ctrl-C ends the process without a traceback, and before text is UTF-8.
"""

import io
import locale
import os
import signal
import sys
from types import FrameType

_TERMINAL = "harbor_gym_terminal"
"""The interpreter's option (``-X``) with the encoding of the terminal, where that is not UTF-8."""


def main() -> None:
    """Run the command line and end the process."""
    # A library that is being imported may swallow a KeyboardInterrupt.
    is_open = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_open:
        signal.signal(signal.SIGINT, _end)
    _use_utf8()
    from harbor_gym.cli.main import main as run

    if is_open:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)  # nothing has been started or written


def _use_utf8() -> None:
    """Go on in Python's UTF-8 mode where the locale is another: Harbor opens its files in the locale's encoding."""
    if sys.flags.utf8_mode:
        options = sys._xoptions  # pyright: ignore[reportPrivateUsage]  # the name that is documented
        if isinstance(encoding := options.get(_TERMINAL), str):
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper):
                    stream.reconfigure(encoding=encoding)
        return
    if locale.getencoding().lower().replace("-", "") == "utf8" or not sys.executable:
        return
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    options = ["-X", "utf8", "-X", f"{_TERMINAL}={encoding}"]
    os.execv(sys.executable, [sys.executable, *options, *sys.orig_argv[1:]])


if __name__ == "__main__":
    main()
