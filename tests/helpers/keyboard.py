"""A person at a terminal: a program under a pseudo-terminal, and the keys that are pressed."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

from tests.helpers.patience import PATIENCE_SEC


class KeyboardUser:
    """A program at a terminal of 100 columns and 30 rows.

    Args:
        command: The program's path and arguments.
    """

    def __init__(self, command: list[str]) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execv(command[0], command)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self._seen = ""

    def type(self, keys: str) -> None:
        """Press keys, and forget what was shown before."""
        self._seen = ""
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str) -> None:
        """Wait until the program has shown a text since the last keys."""
        deadline = time.monotonic() + PATIENCE_SEC
        while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._seen).replace("\r", ""):
            if time.monotonic() > deadline:
                os.close(self._terminal)  # which hangs up
            assert time.monotonic() < deadline, f"{text!r} is not in {self._seen[-2000:]!r}"
            if select.select([self._terminal], [], [], 1)[0]:
                self._seen += os.read(self._terminal, 65536).decode(errors="replace")

    def end(self) -> int:
        """Return the exit status, once the program has ended."""
        _, status = os.waitpid(self._pid, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)
