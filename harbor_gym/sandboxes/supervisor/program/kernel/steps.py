"""Lists of system calls that the static program (``launcher.c``) makes between its start and the sandbox's program.

A forked Python would copy a hundred pages before the first of them, and its parent as many afterwards.
"""

import ctypes
import fcntl
import os
import signal
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_AT = 0x10000000
"""The list's address, where it has pointers into itself."""
_FORK, ANY = -1, -1
_HEADER, _STEP = struct.Struct("2q"), struct.Struct("13q")
_WORD_BYTES = 8
_NONE = [(0,) * (6 - given) for given in range(7)]
KEPT = -(1 << 62)
"""As an argument: the last kept result."""
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
_NUMBERS = {
    "x86_64": {
        "read": 0, "write": 1, "close": 3, "execve": 59, "fcntl": 72, "chdir": 80, "setsid": 112, "setgroups": 116,
        "setresuid": 117, "setresgid": 119, "capset": 126, "pivot_root": 155, "prctl": 157, "mount": 165,
        "umount2": 166, "sethostname": 170, "openat": 257, "mkdirat": 258, "unlinkat": 263, "symlinkat": 266,
        "fchmodat": 268, "faccessat": 269, "unshare": 272, "dup3": 292, "prlimit64": 302, "setns": 308, "execveat": 322,
    },
    "aarch64": {
        "read": 63, "write": 64, "close": 57, "execve": 221, "fcntl": 25, "chdir": 49, "setsid": 157, "setgroups": 159,
        "setresuid": 147, "setresgid": 149, "capset": 91, "pivot_root": 41, "prctl": 167, "mount": 40,
        "umount2": 39, "sethostname": 161, "openat": 56, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "fchmodat": 53,
        "faccessat": 48, "unshare": 97, "dup3": 24, "prlimit64": 261, "setns": 268, "execveat": 281,
    },
}.get(os.uname().machine, {})  # fmt: skip
_MAP_PRIVATE_FIXED_ANONYMOUS, _READ_WRITE = 0x32, 3
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_libc = ctypes.CDLL(None, use_errno=True)
_prepared: dict[tuple[Any, ...], bytes] = {}
"""The calls of :meth:`Steps.prepare`, by what adds them."""
_prepared_data = bytes(_HEADER.size)
"""What each list begins with: the data of those calls."""


class Steps:
    """One list.

    Args:
        report: The descriptor to which the static program writes what failed, as :func:`failure` reads it.
        inherited: Further descriptors of this process that the calls use.
    """

    def __init__(self, report: int = -1, inherited: Iterable[int] = ()) -> None:
        self._report = report
        self.inherited = [*inherited]
        if report >= 0:
            self.inherited.append(report)
        self._data = bytearray(_prepared_data)
        self._places: dict[bytes, int] = {}
        self._texts: dict[str, int] = {}
        self._words = bytearray()

    def add(self, build: Callable[..., None], *arguments: Any) -> None:
        """Add the calls that ``build(self, *arguments)`` adds: at once where :meth:`prepare` had the same."""
        prepared = _prepared.get((build, *arguments))
        if prepared is None:
            build(self, *arguments)
        else:
            self._words += prepared

    @staticmethod
    def prepare(build: Callable[..., None], *arguments: Any) -> None:
        """Encode the calls that ``build(steps, *arguments)`` adds, for :meth:`add` of lists that this process and those
        that it forks begin later.

        Args:
            build: A function; what it adds depends on its arguments alone, of which none is a descriptor.
            arguments: Its arguments.
        """
        global _prepared_data
        if (build, *arguments) not in _prepared:
            steps = Steps()
            build(steps, *arguments)
            _prepared[build, *arguments] = bytes(steps._words)
            _prepared_data = bytes(steps._data)

    def data(self, content: bytes) -> int:
        """Add data that a call points to; return its address, at which other such data may be as well."""
        place = self._places.get(content)
        if place is None:
            self._places[content] = place = self.room(0, content)
        return place

    def room(self, size: int, content: bytes = b"") -> int:
        """Add room for what a call writes; return its address."""
        place = _AT + len(self._data)
        self._data += content
        self._data += bytes(size + -(len(content) + size) % _WORD_BYTES)
        return place

    def text(self, text: str) -> int:
        """Add a string; return its address.

        Raises:
            ValueError: It has a NUL.
        """
        place = self._texts.get(text)
        if place is None:
            if "\0" in text:
                raise ValueError("embedded null byte")
            self._texts[text] = place = self.room(0, text.encode("utf-8", "surrogateescape") + b"\0")
        return place

    def pointers(self, places: Iterable[int]) -> int:
        """Add a list of addresses with a zero at its end; return its own."""
        listed = [*places, 0]
        return self.data(struct.pack(f"{len(listed)}q", *listed))

    def call(
        self,
        name: str,
        *arguments: int | str,
        what: str = "",
        tolerates: int = 0,
        least: int = 0,
        skips_after_error: int = 0,
        skips_after_success: int = 0,
        keeps: bool = False,
    ) -> None:
        """Add a system call.

        Args:
            name: Its name.
            arguments: Numbers, addresses and strings; :data:`KEPT` is the last kept result.
            what: What fails with it, for people.
            tolerates: The error after which the calls go on; :data:`ANY` is any.
            least: A smaller result is a failure.
            skips_after_error: How many of the next calls are left out after a tolerated error.
            skips_after_success: How many of the next calls are left out after success.
            keeps: Whether to keep the result.
        """
        words = [self.text(value) if isinstance(value, str) else value for value in arguments]
        conditions = tolerates, least, skips_after_error, skips_after_success, keeps
        self._words += _STEP.pack(_NUMBERS[name], *conditions, self.text(what or name), *words, *_NONE[len(words)])

    def refuse(self, what: str) -> None:
        """End the list with a failure."""
        self.call("chdir", ".", least=1, what=what)

    def fork(self, report: int) -> None:
        """Go on as a child; its parent writes the child's id to a descriptor, as a C ``long``, and ends."""
        self._words += _STEP.pack(_FORK, 0, 0, 0, 0, 0, self.text("fork"), report, *_NONE[1])

    def close_on_execute(self) -> None:
        """Let the next program inherit none of the descriptors."""
        for handle in self.inherited:
            self.call("fcntl", handle, fcntl.F_SETFD, fcntl.FD_CLOEXEC)

    def write_file(self, path: str, content: str) -> None:
        """Add calls that write to an existing file, in one call."""
        self.call("openat", AT_FDCWD, path, os.O_WRONLY | os.O_CLOEXEC, keeps=True, what=f"open {path}")
        self.call("write", KEPT, content, len(content.encode()), what=f"write {path}")
        self.call("close", KEPT)

    def execute(self, path: str, argv: Iterable[str], environment: Mapping[str, str]) -> None:
        """End the list with a program; if it can't be executed, the process says so on its standard error.

        Raises:
            ValueError: A word has a NUL, or the name of a variable has a ``=``.
        """
        if any(not name or "=" in name for name in environment):
            raise ValueError("illegal environment variable name")
        words = self.pointers(map(self.text, argv))
        variables = self.pointers([self.text(f"{name}={value}") for name, value in environment.items()])
        self.call("execve", path, words, variables, what=f"execute {path}")

    def content(self) -> bytes:
        """Return the list as the static program reads it."""
        first = _AT + len(self._data)
        _HEADER.pack_into(self._data, 0, self._report, first)
        return bytes(self._data + self._words)

    def arguments(self) -> list[str]:
        """Return the static program's arguments; the last descriptor in :attr:`inherited` has the list from now on."""
        content = self.content()
        handle = os.memfd_create("steps", os.MFD_CLOEXEC)
        self.inherited.append(handle)
        os.write(handle, content)
        return ["steps", str(handle), str(len(content))]

    def become(self, first: int) -> None:
        """Turn this process into the static program, which makes the calls.

        Args:
            first: A descriptor of it.
        """
        arguments = self.arguments()
        for handle in self.inherited:
            os.set_inheritable(handle, True)
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        os.execve(first, arguments, {})

    def spawn(self, first: int, stdio: Iterable[int] = ()) -> int:
        """Start the static program in a session of its own; return its process id.

        This process waits for the start, which no other process may be able to stop.

        Args:
            first: A descriptor of the program.
            stdio: Its standard descriptors.
        """
        arguments = self.arguments()
        actions = [(os.POSIX_SPAWN_DUP2, handle, target) for target, handle in enumerate(stdio)]
        try:
            for handle in self.inherited:
                os.set_inheritable(handle, True)
            return os.posix_spawn(
                f"/proc/self/fd/{first}",
                arguments,
                {},
                file_actions=actions,
                setsid=True,
                setsigdef=_IGNORED_BY_PYTHON,
            )
        finally:
            for handle in self.inherited:
                os.set_inheritable(handle, False)
            os.close(self.inherited.pop())

    def perform(self) -> None:
        """Make the calls in this process, a forked one, instead.

        Raises:
            OSError: One failed.
        """
        content = self.content()
        arguments = (_AT, len(content), _READ_WRITE, _MAP_PRIVATE_FIXED_ANONYMOUS, -1, 0)
        _libc.mmap(*map(ctypes.c_long, arguments))
        ctypes.memmove(_AT, content, len(content))
        kept = step = 0
        while step < len(self._words):
            number, tolerated, least, failed, done, keeps, what, *values = _STEP.unpack_from(self._words, step)
            result = _libc.syscall(*(ctypes.c_long(kept if value == KEPT else value) for value in (number, *values)))
            step += _STEP.size
            error = ctypes.get_errno() if result < 0 else 0
            if result >= least:
                kept = result if keeps else kept
                step += done * _STEP.size
            elif error and tolerated in (ANY, error):
                step += failed * _STEP.size
            else:
                raise OSError(_failure_text(error, ctypes.string_at(what)))


def failure(report: bytes) -> str:
    """Return what the static program reported, for people; empty if nothing."""
    if len(report) < _WORD_BYTES:
        return ""
    return _failure_text(int.from_bytes(report[:_WORD_BYTES], "little"), report[_WORD_BYTES:])


def _failure_text(error: int, what: bytes) -> str:
    text = what.decode("utf-8", "replace")
    return f"{text}: {os.strerror(error)}" if error else text
