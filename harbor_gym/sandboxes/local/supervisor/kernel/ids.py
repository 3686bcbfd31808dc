"""Whom the users of a sandbox are outside: a range of ids of its own, or the ids of whoever runs it.

Source: user_namespaces(7), mount_setattr(2).
"""

import os
import socket

from kernel.calls import become_keeping_capabilities, not_dumpable

COUNT = 1 << 16
_FIRST, _RANGES = 0x70000000, 0xFFE
"""Above what systemd gives to containers and below 2^31: ids that no account or subordinate range has."""
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


def _claim_range() -> tuple[int, socket.socket]:
    """Take a range that no other sandbox of this machine has: an abstract name, free again when this process ends."""
    start = int.from_bytes(os.urandom(4)) % _RANGES
    for number in range(_RANGES):
        place = (start + number) % _RANGES
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0harbor-gym-ids-{place}")
        except OSError:
            claim.close()
        else:
            return _FIRST + place * COUNT, claim
    raise OSError(f"all {_RANGES} ranges of user ids are taken by other sandboxes")


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
