"""One sandbox's control groups: limits on memory, processes and processor time of all its processes together.

Version 1 has one tree per controller, version 2 one for all; a machine may have both. Files written in the sandbox are
in memory too and are charged to it, but they have a limit of their own, so the memory limit is raised by their size.

Source: the kernel's admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

import contextlib
import os
import select
import time

from kernel.steps import Steps
from messages import CgroupLimits

_PERIOD_US = 100_000
_REMOVE_SEC = 2.0
_PAUSE_SEC = 0.005
_HEADROOM_BYTES = 64 << 20
_HEADROOM_PART = 8
"""Tolerance of the limit above the memory of processes: files are noticed a moment after they were written."""
_NEAR_LIMIT_BYTES = 4 << 20
_SOCKETS_FILE, _SOCKETS_PART = "memory.kmem.tcp.limit_in_bytes", 4
"""Version 1 counts buffers of TCP and UDP sockets apart, and only if they have a limit: this part of the memory's.

Version 2 charges them to the group's memory itself.
"""
_JOIN_FILES = {1: "tasks", 2: "cgroup.procs"}
"""Writing to version 1's ``tasks`` moves the writer in 0.05 ms; ``cgroup.procs`` may wait 10 ms for all processors."""


def _write(directory: str, name: str, value: object) -> None:
    handle = os.open(f"{directory}/{name}", os.O_WRONLY)
    try:
        os.write(handle, str(value).encode())
    finally:
        os.close(handle)


def _read(directory: str, name: str) -> str:
    handle = os.open(f"{directory}/{name}", os.O_RDONLY)
    try:
        return os.read(handle, 4096).decode()
    finally:
        os.close(handle)


def _counter(text: str, key: str) -> int:
    fields = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)  # "key value"
    return int(fields.get(key, 0))


def open_cgroup_fds(places: dict[str, tuple[int, str]]) -> list[int]:
    """Open the files of :func:`join`. To be done before entering the sandbox, which lacks them."""
    paths = {f"{directory}/{_JOIN_FILES[version]}" for version, directory in places.values()}
    return [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in sorted(paths)]


def join(handles: list[int]) -> None:
    """Move this single-threaded process into the groups."""
    for handle in handles:
        os.write(handle, b"0")


def join_by(steps: Steps, handles: list[int]) -> None:
    """Move the single-threaded process that makes the calls into the groups."""
    for handle in handles:
        steps.call("write", handle, "0", 1, what="join a control group")


class Cgroups:
    """The groups of one sandbox, made by :meth:`make` and removed by :meth:`remove`.

    ``places`` names a version and a directory for each controller that the machine has.
    """

    def __init__(self, places: dict[str, tuple[int, str]], limits: CgroupLimits) -> None:
        self.directories = sorted({directory for _, directory in places.values()})
        self.memory_bytes = limits.memory_bytes or 0
        self.memory_version, self.memory = places["memory"] if self.memory_bytes and "memory" in places else (0, "")
        self.events = -1
        """Descriptor with ``event_kind`` (of poll) when memory runs short."""
        self.event_kind = select.POLLIN if self.memory_version == 1 else select.POLLPRI
        self._places = places
        self._limits = limits
        self._headroom = max(_HEADROOM_BYTES, self.memory_bytes // _HEADROOM_PART)
        self._ceiling = 0

    def make(self) -> None:
        """Make the groups and set their limits."""
        for directory in self.directories:
            os.mkdir(directory)  # noqa: PTH102  # pathlib would cost 20 ms of imports at every start
        if "pids" in self._places:
            _write(self._places["pids"][1], "pids.max", self._limits.max_processes)
        if "cpu" in self._places and self._limits.cpus is not None:
            version, directory = self._places["cpu"]
            quota = int(self._limits.cpus * _PERIOD_US)
            name, value = ("cpu.cfs_quota_us", quota) if version == 1 else ("cpu.max", f"{quota} {_PERIOD_US}")
            _write(directory, name, value)
        if self.memory:
            self._bound_memory()

    def _bound_memory(self) -> None:
        if self.memory_version == 1:
            _write(self.memory, "memory.swappiness", 0)
            with contextlib.suppress(FileNotFoundError):  # a kernel without version 1's own limits
                _write(self.memory, _SOCKETS_FILE, self.memory_bytes // _SOCKETS_PART)
            self.events = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._notify("memory.oom_control", "")
        else:
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                _write(self.memory, "memory.swap.max", 0)
            self.events = os.open(f"{self.memory}/memory.events", os.O_RDONLY | os.O_CLOEXEC)
        self.follow_files(0)

    def _notify(self, name: str, argument: object) -> None:
        handle = os.open(f"{self.memory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _write(self.memory, "cgroup.event_control", f"{self.events} {handle} {argument}")
        finally:
            os.close(handle)

    def follow_files(self, files_bytes: int) -> None:
        """Set the memory limit to that of processes plus the size of files, and request a notification before it."""
        expected = self.memory_bytes + files_bytes
        ceiling = expected + self._headroom
        if self._ceiling and abs(ceiling - self._ceiling) < self._headroom // 2:
            if self.memory_version == 2:
                # Caused by processes: don't throttle them up to the limit, and notify again just before it.
                _write(self.memory, "memory.high", self._ceiling - _NEAR_LIMIT_BYTES)
            return
        if self.memory_version == 2:
            _write(self.memory, "memory.max", ceiling)
            _write(self.memory, "memory.high", expected)
            self._ceiling = ceiling
        elif self._lower_or_raise(ceiling):
            if self._ceiling:
                self._arm_threshold(expected)
            else:
                self._arm_threshold_aside(expected)
            self._ceiling = ceiling

    def _arm_threshold(self, expected: int) -> None:
        # Three, because caches may keep the use above the first two.
        for above in (0, self._headroom // 2, self._headroom - _NEAR_LIMIT_BYTES):
            self._notify("memory.usage_in_bytes", expected + above)

    def _arm_threshold_aside(self, expected: int) -> None:
        """Do it in a child, before the sandbox exists: the kernel takes 10 ms for each, at every start."""
        if os.fork():
            return
        try:
            self._arm_threshold(expected)
            os.eventfd_write(self.events, 1)  # for what was passed meanwhile
        finally:
            os._exit(0)

    def _lower_or_raise(self, ceiling: int) -> bool:
        """Set version 1's limit; return False if the kernel refuses it, because the use is above it."""
        try:
            _write(self.memory, "memory.limit_in_bytes", ceiling)
        except OSError:
            # Processes took the memory of removed files before it was noticed: the next one to need a page is killed.
            with contextlib.suppress(OSError):
                _write(self.memory, "memory.limit_in_bytes", _read(self.memory, "memory.usage_in_bytes").strip())
            return False
        return True

    def take_events(self) -> None:
        """Read ``events``, so that it is no longer ready."""
        if self.memory_version == 1:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.events)
        else:
            os.pread(self.events, 4096, 0)

    def kills(self) -> int:
        """Return the number of the sandbox's processes that the kernel has killed for lack of memory."""
        if not self.memory:
            return 0
        name = "memory.events" if self.memory_version == 2 else "memory.oom_control"
        return _counter(_read(self.memory, name), "oom_kill")

    def cgroup_mounts(self) -> list[tuple[str, str]]:
        """Return the directories to show inside, read-only, with their usual mount points: limits and counts."""
        if self.memory_version == 2:
            return [(self.memory, "/sys/fs/cgroup")]
        return [(self.memory, "/sys/fs/cgroup/memory")] if self.memory else []

    def remove(self) -> None:
        """Remove the groups, whose processes must have ended; the kernel may need a moment to notice that."""
        deadline = time.monotonic() + _REMOVE_SEC
        for directory in self.directories:
            while True:
                try:
                    os.rmdir(directory)  # noqa: PTH106  # pathlib would cost 20 ms of imports at every start
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(_PAUSE_SEC)
                else:
                    break
