"""What CRIU omits from a dump without an error: we refuse it by name, or record it and set it after a restore.

Source: CRIU 4.2's sk-queue.c, tty.c and eventfd.c, proc(5), ioctl_tty(2), termios(3), unix(7), ioprio_set(2).
"""

import contextlib
import ctypes
import fcntl
import json
import os
import socket
import struct
import termios
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

from kernel.calls import pidfd_getfd

_PORTS = {"udp": "UDP", "udp6": "UDP", "udplite": "UDP-Lite", "udplite6": "UDP-Lite", "icmp": "ping", "icmp6": "ping"}
"""Files of /proc/net with sockets whose unread messages are lost."""
_THREADS, _INPUT = "threads.json", "input.json"
"""Files beside CRIU's images: the unusual attributes of each thread, and the unread input of each terminal."""
_IOPRIO_SET, _IOPRIO_GET, _OF_THREAD = 251, 252, 1
"""Of x86_64."""
_SO_PEEK_OFF = 42
_TIOCGPTN, _PTY_MAJORS = 0x80045430, range(136, 144)
_QUEUE_BYTES, _MOST_LINES = 8192, 8192
_MOST_COUNT = (1 << 32) - 1
_END, _IUTF8 = b"\4", 0o40000
_WORDS = ("timerslack_ns", "coredump_filter")
"""Files of a thread in /proc. The second is read in hexadecimal digits."""
_libc = ctypes.CDLL(None, use_errno=True)


class CheckpointError(ValueError):
    """Processes can't be dumped or restored; the message states why."""


def require_none(pids: Sequence[int]) -> None:
    """Check that frozen processes have nothing that a copy would lack.

    Raises:
        CheckpointError: One has; the text names it.
    """
    _require_read_datagrams()
    slaves, masters = set[int](), dict[int, int]()
    seen = set[str]()
    for pid, number, link in _descriptors(pids):
        who = f"process {pid} ({name_of(pid)})"
        if link.startswith("socket:") and link not in seen:
            seen.add(link)
            with _taken(pid, number) as handle:
                _require_plain_queue(who, handle)
        elif link == "anon_inode:[eventfd]":
            _require_plain_count(who, pid, number)
        elif link in ("/dev/ptmx", "/dev/pts/ptmx"):
            with _taken(pid, number) as handle:
                if _number(handle, termios.FIONREAD):
                    masters[_number(handle, _TIOCGPTN)] = pid
        elif link.startswith("/dev/pts/") and link[9:].isdecimal():
            slaves.add(int(link[9:]))
    for terminal in masters.keys() - slaves:
        pid = masters[terminal]
        raise CheckpointError(
            f"process {pid} ({name_of(pid)}) has not read what an ended program wrote to /dev/pts/{terminal}"
        )


def _descriptors(pids: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """Yield each descriptor as its process, its number and its link."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                with contextlib.suppress(OSError):
                    yield pid, int(number), os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115


@contextlib.contextmanager
def _taken(pid: int, number: int) -> Generator[int]:
    """Yield a duplicate of another process's descriptor."""
    process = os.pidfd_open(pid)
    try:
        handle = pidfd_getfd(process, number)
    finally:
        os.close(process)
    try:
        yield handle
    finally:
        os.close(handle)


def _number(handle: int, request: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(handle, request, bytes(4)))[0])


# --- sockets, counts --------------------------------------------------------------------------------------------------


def _require_read_datagrams() -> None:
    for name, kind in _PORTS.items():
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{name}", encoding="utf-8") as lines:  # noqa: PTH123
            for line in lines:
                _, local, _, _, queues, *_ = line.split()
                if int(queues.partition(":")[2], 16) if ":" in queues else 0:
                    port = int(local.rpartition(":")[2], 16)
                    raise CheckpointError(
                        f"{kind} port {port} has data that nobody has read, which CRIU would leave out"
                    )


def _require_plain_queue(who: str, handle: int) -> None:
    """Check a Unix socket: datagrams lose senders, and all behind an empty one; a stream loses its urgent byte."""
    sock = socket.socket(fileno=os.dup(handle))
    try:
        if sock.family != socket.AF_UNIX or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return
        offset = sock.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF)
        if offset >= 0:
            raise CheckpointError(f"{who} has set SO_PEEK_OFF of a socket, which CRIU would leave out")
        is_stream = sock.type == socket.SOCK_STREAM
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | (socket.MSG_OOB if is_stream else 0)
        with contextlib.suppress(OSError):  # there is none
            sock.recv(1, flags)
            what = "an urgent byte in a Unix socket" if is_stream else "a datagram in a Unix socket"
            raise CheckpointError(f"{who} has not read {what}, which CRIU may leave out")
    finally:
        sock.close()


def _require_plain_count(who: str, pid: int, number: int) -> None:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/fdinfo/{number}", encoding="utf-8") as lines:  # noqa: PTH123
        fields = dict(line.split(":", 1) for line in lines if line.startswith("eventfd-"))
        if int(fields.get("eventfd-semaphore", "0")) or int(fields.get("eventfd-count", "0"), 16) > _MOST_COUNT:
            raise CheckpointError(f"{who} has an eventfd with EFD_SEMAPHORE or a large count, which CRIU would change")


# --- terminals --------------------------------------------------------------------------------------------------------


class Input(NamedTuple):
    """A terminal's unread input. CRIU would read its complete lines, and type them again after an incomplete one."""

    terminal: str
    handle: int
    lines: tuple[str, ...]
    """The complete lines in hexadecimal digits. One without a newline was completed by an end of file (Ctrl-D)."""

    part: str
    """The incomplete line, or all input of a terminal that is not read by lines; in hexadecimal digits."""


def take_input(pids: Sequence[int]) -> list[Input]:
    """Read the unread input of the terminals of frozen processes; :func:`put_back` returns it to them."""
    terminals = {link for _, _, link in _descriptors(pids) if link.startswith("/dev/pts/") and link[9:].isdecimal()}
    return [taken for terminal in sorted(terminals) if (taken := _take(terminal)) is not None]


def note_input(images: int, taken: Sequence[Input]) -> None:
    """Record the input for a copy."""
    _write(images, _INPUT, {each.terminal: (each.lines, each.part) for each in taken})


def put_back(taken: list[Input]) -> None:
    """Return the input to its terminals, unchanged and without echo."""
    while taken:
        each = taken.pop()
        try:
            _put(each)
        finally:
            os.close(each.handle)


def _take(terminal: str) -> Input | None:
    handle = _opened(terminal)
    if handle < 0:
        return None
    lines: list[str] = []
    state = termios.tcgetattr(handle)
    if state[3] & termios.ICANON:
        with contextlib.suppress(OSError):
            while len(lines) < _MOST_LINES:
                lines.append(os.read(handle, _QUEUE_BYTES).hex())
        # The rest shows in no other way. The change ends a line that waits: none does on the way back.
        _set(handle, state, state[0], state[3] & ~termios.ICANON, state[6])
    part = os.read(handle, waits).hex() if (waits := _number(handle, termios.FIONREAD)) else ""
    termios.tcsetattr(handle, termios.TCSANOW, state)
    if lines or part:
        return Input(terminal, handle, tuple(lines), part)
    os.close(handle)
    return None


def _put(taken: Input) -> None:
    handle = taken.handle
    state = termios.tcgetattr(handle)
    # Nothing is echoed, is a signal or is changed; IXON stays, as a change would let a stopped output go on.
    modes = state[0] & (termios.IXON | _IUTF8)
    local = state[3] & ~(termios.ECHO | termios.ECHONL | termios.ISIG | termios.IEXTEN)
    none: list[Any] = [b"\0"] * len(state[6])
    ends = [*none]
    ends[termios.VEOF] = _END
    if not local & termios.ICANON:
        for place in (termios.VMIN, termios.VTIME):
            none[place] = state[6][place]
    try:
        _set(handle, state, modes, local, none)
        for line in map(bytes.fromhex, taken.lines):
            _type(handle, line)
            if not line.endswith(b"\n"):
                _set(handle, state, modes, local, ends)
                _type(handle, _END)
                _set(handle, state, modes, local, none)
        _type(handle, bytes.fromhex(taken.part))
    finally:
        termios.tcsetattr(handle, termios.TCSANOW, state)


def _opened(terminal: str) -> int:
    """Return a descriptor of a terminal, -1 where it has no master any more."""
    try:
        handle = os.open(terminal, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    if os.major(os.fstat(handle).st_rdev) in _PTY_MAJORS:
        return handle
    os.close(handle)
    return -1


def _type(handle: int, content: bytes) -> None:
    for byte in content:
        fcntl.ioctl(handle, termios.TIOCSTI, bytes((byte,)))


def _set(handle: int, state: list[Any], modes: int, local: int, keys: list[Any]) -> None:
    termios.tcsetattr(handle, termios.TCSANOW, [modes, *state[1:3], local, *state[4:6], keys])


# --- threads ----------------------------------------------------------------------------------------------------------


def note_threads(images: int, pids: Sequence[int]) -> None:
    """Record each thread's processors, I/O class, timer slack and filter of core dumps, where it has others than usual.

    Processors are recorded by their places among the sandbox's, which this process has, too: a copy's are others.
    """
    notes: dict[int, list[Any]] = {}
    usual = _of_thread(os.getpid())
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in map(int, os.listdir(f"/proc/{pid}/task")):  # noqa: PTH208
                if "" not in (found := _of_thread(thread)) and found != usual:  # it has ended
                    note = [value if value != own else None for value, own in zip(found, usual, strict=True)]
                    if note[0] is not None:
                        note[0] = [place for place, number in enumerate(usual[0]) if number in note[0]]
                    notes[thread] = note
    _write(images, _THREADS, notes)


def _of_thread(thread: int) -> list[Any]:
    words: list[str] = []
    for name in _WORDS:
        with open(f"/proc/{thread}/{name}", encoding="utf-8") as text:  # noqa: PTH123
            words.append(text.read().strip())
    return [sorted(os.sched_getaffinity(thread)), _libc.syscall(_IOPRIO_GET, _OF_THREAD, thread), *words]


def set_noted(images: int) -> None:
    """Set on restored processes what was recorded of the dumped ones."""
    own = sorted(os.sched_getaffinity(0))
    for thread, (places, priority, *words) in _read(images, _THREADS).items():
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if chosen := [own[place] for place in places or () if place < len(own)]:
                os.sched_setaffinity(int(thread), chosen)
            if priority is not None:
                _libc.syscall(_IOPRIO_SET, _OF_THREAD, int(thread), priority)
            for name, word in zip(_WORDS, words, strict=True):
                if word is not None:
                    with open(f"/proc/{thread}/{name}", "w", encoding="utf-8") as file:  # noqa: PTH123
                        file.write(f"0x{word}" if name == _WORDS[1] else word)
    put_back([
        Input(terminal, handle, tuple(lines), part)
        for terminal, (lines, part) in _read(images, _INPUT).items()
        if (handle := _opened(terminal)) >= 0
    ])  # fmt: skip


def name_of(pid: int) -> str:
    """Return a process's name."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as text:  # noqa: PTH123
            return text.read().strip()
    except OSError:
        return "ended"


def _write(images: int, name: str, value: Any) -> None:
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=images)
    os.write(handle, json.dumps(value).encode())
    os.close(handle)


def _read(images: int, name: str) -> dict[str, Any]:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=images), encoding="utf-8") as text:  # noqa: PTH123
        return json.load(text)
