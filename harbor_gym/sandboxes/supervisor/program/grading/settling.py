"""Wait until the services that an ENTRYPOINT left running are idle: none computes, and no new socket listens.

A service that sleeps for a moment when the ENTRYPOINT hands over is awaited once: it may be a job that goes on then.

Source: proc_pid_stat(5), proc_pid_syscall(5), and net/ipv4/tcp_ipv4.c and net/unix/af_unix.c of Linux for the tables
of sockets.
"""

import contextlib
import os
import struct
import time
from typing import Any, NamedTuple

from kernel.procfs import read_stat

_FIRST = 1
_PAUSE_SEC = 0.02
_QUIET_SEC = 0.3
"""As long as Docker takes from the ENTRYPOINT to the first command (measured: 0.28 s)."""
_QUIET_TICKS = 5
"""Processor time of all services in that time that counts as idle: a sixth of one processor, with ticks of 10 ms."""
_MOMENT_SEC = 2.0
"""The longest sleep that is awaited: a daemon that looks around each minute would delay every start by as much."""
_BEGINNING_SEC = 0.5
"""How long a job that has just been started may take to its sleep."""

_SLEEPS = {
    "x86_64": {35: (0, None), 230: (2, 1)},
    "aarch64": {101: (0, None), 115: (2, 1)},
}
"""Machine → number of nanosleep and clock_nanosleep → its arguments that point to the time, and that are the flags."""
_ABSOLUTE = 1
"""TIMER_ABSTIME."""
_TIME = struct.Struct("qq")
_KEEPS_ALIVE = b"sleep\0infinity\0"
"""Our own command, on which a parent such as tini waits."""
_LISTENS = {"tcp": (3, "0A", 9), "tcp6": (3, "0A", 9), "unix": (3, "00010000", 6)}
"""Table below /proc/PID/net: the column that says that a socket listens, its value, and the inode's column."""


class _Activity(NamedTuple):
    ticks: dict[str, int]
    """Processor time of each service, by ``pid:start``."""

    is_busy: bool
    """Whether one runs, waits for a processor, or for a disk."""

    sockets: frozenset[str]
    """Inodes of listening sockets."""


def wait_until_idle(limit_sec: float) -> dict[str, Any]:
    """Wait until no service is left, all have been idle for 0.3 s after short sleeps, or the time is up.

    Args:
        limit_sec: The longest wait, in seconds.

    Returns:
        ``services``, the number of remaining processes; ``waited_sec``; and whether all ``are_quiet``.
    """
    begun = quiet_since = time.monotonic()
    now = quiet = _activity()
    wakes: dict[str, float] = {}
    _note_sleepers(now, wakes)
    while now.ticks and time.monotonic() - quiet_since < _QUIET_SEC:
        if time.monotonic() - begun >= limit_sec:
            return _answer(now, begun, are_quiet=False)
        time.sleep(_PAUSE_SEC)
        now = _activity()
        if time.monotonic() - begun < _BEGINNING_SEC:
            _note_sleepers(now, wakes)
        is_asleep = any(time.monotonic() < wakes.get(service, 0) for service in now.ticks)
        if is_asleep or now.is_busy or now.sockets != quiet.sockets or _grown(now, quiet) > _QUIET_TICKS:
            quiet, quiet_since = now, time.monotonic()
    return _answer(now, begun, are_quiet=True)


def _note_sleepers(now: _Activity, wakes: dict[str, float]) -> None:
    """Note when each service that was not seen before goes on; 0 for one that does not sleep for a moment."""
    for service in now.ticks:
        if service not in wakes:
            seconds = _sleeps(service)
            wakes[service] = time.monotonic() + seconds if seconds <= _MOMENT_SEC else 0.0


def _sleeps(service: str) -> float:
    """Return for how many seconds more a process sleeps by a timer; infinite if it does not, or can't be read."""
    pid = service.partition(":")[0]
    words = _read(f"{pid}/syscall").split()
    known = _SLEEPS.get(os.uname().machine, {})
    if len(words) < 2 or not words[0].isdigit() or (places := known.get(int(words[0]))) is None:
        return float("inf")
    time_place, flags_place = places
    arguments = [int(word, 16) for word in words[1:]]
    with contextlib.suppress(OSError, struct.error, OverflowError):
        handle = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            seconds, nanoseconds = _TIME.unpack(os.pread(handle, _TIME.size, arguments[time_place]))
        finally:
            os.close(handle)
        is_absolute = flags_place is not None and arguments[flags_place] & _ABSOLUTE
        until = seconds + nanoseconds / 1e9
        if is_absolute and arguments[0] != time.CLOCK_MONOTONIC:
            return until - time.time()
        return until - time.monotonic() if is_absolute else until
    return float("inf")


def _answer(now: _Activity, begun: float, *, are_quiet: bool) -> dict[str, Any]:
    return {"services": len(now.ticks), "waited_sec": time.monotonic() - begun, "are_quiet": are_quiet}


def _grown(now: _Activity, before: _Activity) -> int:
    return sum(ticks - before.ticks.get(identity, 0) for identity, ticks in now.ticks.items())


def _activity() -> _Activity:
    stats = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  # pathlib would cost 20 ms of imports at every start
        if name.isdecimal() and int(name) not in (_FIRST, os.getpid()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stats[int(name)] = read_stat(int(name))
    for pid in [pid for pid in stats if _read(f"{pid}/cmdline") == _KEEPS_ALIVE]:
        while pid in stats:
            pid = stats.pop(pid).parent  # up to the first process
    services = {pid: stat for pid, stat in stats.items() if not stat.has_exited}
    return _Activity(
        {f"{pid}:{stat.start_time}": stat.cpu_ticks for pid, stat in services.items()},
        any(stat.state in "RD" for stat in services.values()),
        _listening(next(iter(services), _FIRST)),
    )


def _listening(pid: int) -> frozenset[str]:
    found: set[str] = set()
    for table, (column, value, inode) in _LISTENS.items():
        for line in _read(f"{pid}/net/{table}").decode("latin-1").splitlines()[1:]:
            fields = line.split()
            if len(fields) > max(column, inode) and fields[column] == value:
                found.add(fields[inode])
    return frozenset(found)


def _read(path: str) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{path}", "rb") as file:  # noqa: PTH123  # as above
        return file.read()
    return b""
