"""The console script.

Wheels have it as a separate module: before anything of ``harbor_gym`` is imported, Ctrl-C is set to end the process
without a traceback, and text to UTF-8.
"""

import io
import locale
import os
import signal
import sys
from types import FrameType

_TERMINAL = "harbor_gym_terminal"
"""Name of the interpreter's option (``-X``) with the terminal's encoding, if that is not UTF-8."""


def main() -> None:
    """Run the command line and end the process."""
    if sys.platform == "win32":
        sys.exit("harbor-gym: sandboxes need Linux, or macOS with Docker: on Windows install it in WSL")
    # A library may swallow a KeyboardInterrupt during its import.
    is_open = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_open:
        signal.signal(signal.SIGINT, _end)
    _use_utf8()
    from harbor_gym.cli.main import main as run

    if is_open:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted before anything was started\n")
    os._exit(128 + number)


def _use_utf8() -> None:
    """Restart in Python's UTF-8 mode if the locale's encoding is another, in which Harbor would open its files."""
    if sys.flags.utf8_mode:
        options = sys._xoptions  # pyright: ignore[reportPrivateUsage]  # the documented name
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
