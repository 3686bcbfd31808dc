"""The outside ids of a sandbox's users: a range of its own, or the ids of the caller.

A range is claimed by a lock on one byte of a file of root. Trainers in containers on one kernel must share that file:
otherwise two of them may take the same range, and the kernel counts both sandboxes as one user.

Source: user_namespaces(7), mount_setattr(2), fcntl(2).
"""

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Sequence

from kernel.calls import become_keeping_capabilities, not_dumpable
from messages import FIRST_OWN_ID as _FIRST
from messages import HIGH_IDS
from messages import MORE_IDS as MORE
from messages import ORDINARY_IDS as COUNT

RANGES = 0xFFE
_FIRST_MORE = 1 << 31
"""Start of ids that systemd does not assign; each range has a second part there."""
_FIRST_HIGH = (1 << 32) - MORE
"""Start of ids above those; each range has a third part there, for single ids."""
CLAIMS = "/run/harbor-gym"
"""A directory in which only root makes files, and which is empty after a boot."""
_OTHERS_WRITE = 0o022
PROBE_RANGE = RANGES
"""A range that is never given to a sandbox."""
_LIMITS = {"max_user_namespaces": 0, "max_inotify_instances": 128, "max_inotify_watches": 1 << 16}
_SHARED_LIMITS = {"max_inotify_instances": 16, "max_inotify_watches": 1 << 13}
"""Limits if a sandbox's root is the caller outside, whose own limits these count toward."""


type Extents = tuple[tuple[int, int, int], ...]
"""First id inside, first id outside, and count: the lines of a user namespace's map."""


class UnknownIdError(ValueError):
    """A sandbox has no such id; the message is for the caller."""


def extents_of(number: int, high_ids: Sequence[int] = ()) -> Extents:
    """Return the parts of a range: ordinary ids, those above, which an image may use, and single ones.

    Args:
        number: The range's number.
        high_ids: The single ones; only the first :data:`messages.HIGH_IDS` are used.
    """
    single = _FIRST_HIGH + number * HIGH_IDS
    return (
        (0, _FIRST + number * COUNT, COUNT),
        (COUNT, _FIRST_MORE + number * MORE, MORE),
        *((inside, single + place, 1) for place, inside in enumerate(high_ids[:HIGH_IDS])),
    )


def written(extents: Extents) -> str:
    """Return the text for uid_map or gid_map."""
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents)


def outside_of(extents: Extents, number: int) -> int:
    """Return the outside id of a sandbox's uid or gid; without extents it is the same.

    Raises:
        UnknownIdError: The sandbox has no such id.
    """
    for inside, outside, count in extents:
        if inside <= number < inside + count:
            return outside + number - inside
    if extents:
        raise UnknownIdError(f"user or group id {number} is none that this sandbox has")
    return number


class Ids:
    """The ids of one sandbox, for as long as this object lives.

    Args:
        is_shifted: Give it a range of its own; otherwise its users have the ids of this process's user namespace.
        high_ids: Its ids above a range's own.
        is_below: Without a range, give it no id that is in another sandbox's.

    Raises:
        OSError: All ranges are taken.
    """

    def __init__(self, *, is_shifted: bool, high_ids: Sequence[int] = (), is_below: bool = False) -> None:
        self.is_shifted = is_shifted
        self._end = _FIRST if is_below else _FIRST_HIGH + MORE
        number, self._claim = _claim_range() if is_shifted else (0, None)
        self.extents = extents_of(number, high_ids) if is_shifted else ()

    def outside(self, number: int) -> int:
        """Return the id of a sandbox's uid or gid in this process's user namespace.

        Raises:
            UnknownIdError: The sandbox has no such id.
        """
        return outside_of(self.extents, number)

    def maps(self) -> tuple[str, str]:
        """Return the texts for uid_map and gid_map of a process in a new user namespace."""
        if self.is_shifted:
            return written(self.extents), written(self.extents)
        return _all_but_last("/proc/self/uid_map", self._end), _all_but_last("/proc/self/gid_map", self._end)

    def become_untouchable(self) -> None:
        """Let no process of the sandbox signal this process, which keeps all rights of its user namespace."""
        if not self.is_shifted:
            become_keeping_capabilities(_last("/proc/self/uid_map"), _last("/proc/self/gid_map"))
            not_dumpable()

    def limits(self) -> dict[str, int]:
        """Return the sandbox's limits of objects that the kernel counts by user: name in /proc/sys/user → limit."""
        return _LIMITS if self.is_shifted else _LIMITS | _SHARED_LIMITS


def _claim_range() -> tuple[int, int]:
    """Claim a range that no other sandbox of this machine has, by a lock that ends with this process, even if killed.

    The lock belongs to the open file, not to the process: a forked process keeps it until it closes the descriptor.
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
        return place, claims
    os.close(claims)
    raise OSError(f"it gets no user ids of its own: other sandboxes have all {RANGES} ranges (locks on {CLAIMS}/ids)")


def _open_claims() -> int:
    """Return a descriptor of the file with a byte for each range; only root can open it, and so lock one.

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
    with open(path, encoding="utf-8") as text:  # noqa: PTH123  # pathlib would cost 20 ms of imports at every start
        return sorted((int(first), int(count)) for first, _, count in map(str.split, text))


def _last(path: str) -> int:
    first, count = _extents(path)[-1]
    return first + count - 1


def _all_but_last(path: str, end: int) -> str:
    """Return a map to the same ids below ``end``, without the last one, which is for this process's own children."""
    *others, (first, count) = _extents(path)
    ranges = (*others, (first, count - 1))
    return written(tuple((start, start, min(number, end - start)) for start, number in ranges if start < end))
