"""Whom the users of a sandbox are outside: a range of ids of its own, or the ids of whoever runs it.

A range is claimed by a lock on one byte of a file of root's. Trainers in containers that share this kernel have to
share that file too: else two of them may take the same range, and the kernel counts both sandboxes as one user.

Source: user_namespaces(7), mount_setattr(2), fcntl(2).
"""

import contextlib
import errno
import fcntl
import os
import struct

from kernel.calls import become_keeping_capabilities, not_dumpable

COUNT = 1 << 16
_FIRST, RANGES = 0x70000000, 0xFFE
"""Above what systemd gives to containers and below 2^31: ids that no account or subordinate range has."""
CLAIMS = "/run/harbor-gym"
"""Where only root makes files, and none outlives the machine's start."""
_OTHERS_WRITE = 0o022
PROBE_BASE = _FIRST + RANGES * COUNT
"""A range that is never a sandbox's."""
_LIMITS = {"max_user_namespaces": 0, "max_inotify_instances": 128, "max_inotify_watches": 1 << 16}
_SHARED_LIMITS = {"max_inotify_instances": 16, "max_inotify_watches": 1 << 13}
"""Where a sandbox's root is the caller outside, whose own numbers these are taken from."""


class Ids:
    """The ids of one sandbox, for as long as this object lives.

    Args:
        is_shifted: Give it a range of its own; else its users have the ids of this process's user namespace.

    Raises:
        OSError: All ranges are taken.
    """

    def __init__(self, *, is_shifted: bool) -> None:
        self.is_shifted = is_shifted
        self.base, self._claim = _claim_range() if is_shifted else (0, None)

    def outside(self, number: int) -> int:
        """Return what a uid or gid of the sandbox is in this process's user namespace."""
        return self.base + number

    def maps(self) -> tuple[str, str]:
        """Return what to write into uid_map and gid_map of a process in a new user namespace."""
        if self.is_shifted:
            shifted = f"0 {self.base} {COUNT}\n"
            return shifted, shifted
        return _all_but_last("/proc/self/uid_map"), _all_but_last("/proc/self/gid_map")

    def become_untouchable(self) -> None:
        """Make this process one that nobody in the sandbox may signal, with all rights of its user namespace."""
        if not self.is_shifted:
            become_keeping_capabilities(_last("/proc/self/uid_map"), _last("/proc/self/gid_map"))
            not_dumpable()

    def limits(self) -> dict[str, int]:
        """Return the sandbox's share of what the kernel counts by user: names in /proc/sys/user."""
        return _LIMITS if self.is_shifted else _LIMITS | _SHARED_LIMITS


def _claim_range() -> tuple[int, int]:
    """Take a range that no other sandbox of this machine has: a lock, which ends with this process however that ends.

    It belongs to the open file and not to the process: what is forked keeps it until it has closed the descriptor too.
    """
    try:
        claims = _open_claims()
    except OSError as exc:
        raise OSError(f"it gets no user ids of its own: {exc.strerror}: {CLAIMS} has to be root's directory") from exc
    start = int.from_bytes(os.urandom(4)) % RANGES
    for number in range(RANGES):
        place = (start + number) % RANGES
        try:
            fcntl.fcntl(claims, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES
            continue
        return _FIRST + place * COUNT, claims
    os.close(claims)
    raise OSError(f"it gets no user ids of its own: other sandboxes have all {RANGES} ranges (locks on {CLAIMS}/ids)")


def _open_claims() -> int:
    """Return a descriptor of the file in which a byte stands for each range; only root can open it, and so lock one.

    Raises:
        OSError: It can't be made, or its directory is another user's, who could put another file in its place.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(CLAIMS, 0o700)  # noqa: PTH102  # pathlib would cost 20 ms of imports at every start
    place = os.open(CLAIMS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        state = os.fstat(place)
        if state.st_uid != os.geteuid() or state.st_mode & _OTHERS_WRITE:
            raise PermissionError(errno.EPERM, "another user can write there")
        return os.open("ids", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
    finally:
        os.close(place)


def _extents(path: str) -> list[tuple[int, int]]:
    with open(path) as text:  # noqa: PTH123  # pathlib would cost 20 ms of imports at every start
        return sorted((int(first), int(count)) for first, _, count in map(str.split, text))


def _last(path: str) -> int:
    first, count = _extents(path)[-1]
    return first + count - 1


def _all_but_last(path: str) -> str:
    """Return a map to the same ids. The last one is left to this process's own children."""
    *others, (first, count) = _extents(path)
    return "".join(f"{start} {start} {number}\n" for start, number in (*others, (first, count - 1)))
