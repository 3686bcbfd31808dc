"""The outside ids of a sandbox's users: a range of its own, or the ids of the caller.

A range is claimed by a lock on one byte of a file of root's. Trainers in containers that share this kernel have to
share that file too: else two of them may take the same range, and the kernel counts both sandboxes as one user.

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
"""Ids that systemd leaves to nobody; each range has a second part there."""
_FIRST_HIGH = (1 << 32) - MORE
"""Above all those; each range has a third part there, for single ids."""
CLAIMS = "/run/harbor-gym"
"""Where only root makes files, and none outlives the machine's start."""
_OTHERS_WRITE = 0o022
PROBE_RANGE = RANGES
"""One that is never a sandbox's."""
_LIMITS = {"max_user_namespaces": 0, "max_inotify_instances": 128, "max_inotify_watches": 1 << 16}
_SHARED_LIMITS = {"max_inotify_instances": 16, "max_inotify_watches": 1 << 13}
"""Where a sandbox's root is the caller outside, whose own numbers these are taken from."""


type Extents = tuple[tuple[int, int, int], ...]
"""First id inside, first id outside, how many: the lines of a user namespace's map."""


class UnknownIdError(ValueError):
    """A sandbox has no such id; the message is for the caller."""


def extents_of(number: int, high_ids: Sequence[int] = ()) -> Extents:
    """Return the parts of a range: ordinary ids, those above, for what an image brings from elsewhere, and single ones.

    Args:
        number: Which range.
        high_ids: The single ones, at most :data:`messages.HIGH_IDS`.
    """
    single = _FIRST_HIGH + number * HIGH_IDS
    return (
        (0, _FIRST + number * COUNT, COUNT),
        (COUNT, _FIRST_MORE + number * MORE, MORE),
        *((inside, single + place, 1) for place, inside in enumerate(high_ids[:HIGH_IDS])),
    )


def written(extents: Extents) -> str:
    """Return what to write into uid_map or gid_map."""
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents)


def outside_of(extents: Extents, number: int) -> int:
    """Return what a uid or gid of a sandbox is outside; without extents it is the same.

    Raises:
        UnknownIdError: The sandbox has none such.
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
        is_shifted: Give it a range of its own; else its users have the ids of this process's user namespace.
        high_ids: Those of its ids that are above a range's own.

    Raises:
        OSError: All ranges are taken.
    """

    def __init__(self, *, is_shifted: bool, high_ids: Sequence[int] = ()) -> None:
        self.is_shifted = is_shifted
        number, self._claim = _claim_range() if is_shifted else (0, None)
        self.extents = extents_of(number, high_ids) if is_shifted else ()

    def outside(self, number: int) -> int:
        """Return what a uid or gid of the sandbox is in this process's user namespace.

        Raises:
            UnknownIdError: The sandbox has none such.
        """
        return outside_of(self.extents, number)

    def maps(self) -> tuple[str, str]:
        """Return what to write into uid_map and gid_map of a process in a new user namespace."""
        if self.is_shifted:
            return written(self.extents), written(self.extents)
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
        return place, claims
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
    with open(path, encoding="utf-8") as text:  # noqa: PTH123  # pathlib would cost 20 ms of imports at every start
        return sorted((int(first), int(count)) for first, _, count in map(str.split, text))


def _last(path: str) -> int:
    first, count = _extents(path)[-1]
    return first + count - 1


def below_ranges(path: str) -> str:
    """Return a map to the same ids, without those that sandboxes have of their own."""
    below = [(start, min(count, _FIRST - start)) for start, count in _extents(path) if start < _FIRST]
    return written(tuple((start, start, count) for start, count in below))


def _all_but_last(path: str) -> str:
    """Return a map to the same ids. The last one is left to this process's own children."""
    *others, (first, count) = _extents(path)
    return "".join(f"{start} {start} {number}\n" for start, number in (*others, (first, count - 1)))
