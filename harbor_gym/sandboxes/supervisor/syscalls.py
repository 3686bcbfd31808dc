"""The seccomp filter that every process of a sandbox runs under: what it may not ask of the kernel.

A list of refusals, not of permissions: ordinary programs must not notice. Calls newer than the last one known here are
refused as unknown, so that a new way to mount is not open until somebody has looked at it.

Source: seccomp(2), the kernel's system call tables, the kernel's classic BPF (linux/filter.h).
"""

import ctypes
import errno
import functools
import itertools
import operator
import os
import struct
from typing import Any

from kernel import prctl_pointer

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _NOT_BELOW, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
"""Places in struct seccomp_data. An argument's lower half is what the kernel's 32-bit parameters see."""

_LAST_KNOWN = 466
"""removexattrat of Linux 6.13; the x32 numbers of x86_64 lie above too."""
_NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_CLONE_NEWTIME = 0x80
"""A namespace for unshare; part of the exit signal for clone."""
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, its 32-bit name, UNAME26, and the question which one is set. Others switch off address randomisation."""
_TERMINAL_INJECTIONS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put characters into a terminal's input."""

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {
    # other processes' memory and descriptors
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "move_pages": (279, 239), "migrate_pages": (256, 238),
    # large surfaces of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "uselib": (134, None), "_sysctl": (156, None),
    # keys, which no namespace holds apart
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "move_mount": (429, 429), "open_tree": (428, 428),
    "mount_setattr": (442, 442), "setns": (308, 268), "open_by_handle_at": (304, 265),
    # the machine
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "create_module": (174, None), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "get_kernel_syms": (177, None),
    "query_module": (178, None), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
"""Name → its number on x86_64 and on aarch64, None where it has none. Refused with EPERM."""
_CLONE, _CLONE3, _UNSHARE = (56, 220), (435, 435), (272, 97)
_SOCKET, _SOCKETPAIR, _PERSONALITY, _IOCTL = (41, 198), (53, 199), (135, 92), (16, 29)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


def _when(code: int, value: int, body: bytes) -> bytes:
    """Return ``body``, jumped over unless the accumulator compares with ``value``."""
    return _instruction(code, value, 0, len(body) // 8) + body


def _argument(index: int) -> bytes:
    return _instruction(_LOAD, _ARGUMENTS_OFFSET + 8 * index)


def _unless_any_bit(flags: int) -> bytes:
    return _argument(0) + _when(_ANY_BIT, flags, _refuse(errno.EPERM)) + _instruction(_RETURN, _ALLOW)


def _only(values: tuple[int, ...], refusal: int) -> bytes:
    allowed = b"".join(_when(_EQUAL, value, _instruction(_RETURN, _ALLOW)) for value in values)
    return _argument(0) + allowed + _refuse(refusal)


def _checks(column: int) -> dict[int, bytes]:
    injections = b"".join(_when(_EQUAL, value, _refuse(errno.EPERM)) for value in _TERMINAL_INJECTIONS)
    checked = [
        (_CLONE, _unless_any_bit(_NAMESPACE_FLAGS)),
        # Its flags lie in memory, out of a filter's sight: unknown, so that libc takes clone instead.
        (_CLONE3, _refuse(errno.ENOSYS)),
        (_UNSHARE, _unless_any_bit(_NAMESPACE_FLAGS | _CLONE_NEWTIME)),
        (_SOCKET, _only(_FAMILIES, errno.EAFNOSUPPORT)),
        (_SOCKETPAIR, _only(_FAMILIES, errno.EAFNOSUPPORT)),
        (_PERSONALITY, _only(_PERSONALITIES, errno.EPERM)),
        (_IOCTL, _argument(1) + injections + _instruction(_RETURN, _ALLOW)),
    ]
    return {numbers[column]: body for numbers, body in checked}


def _search(verdicts: list[tuple[int, bytes]]) -> bytes:
    """Return what finds the verdict for the accumulator among those that each hold from a number to the next one's.

    The kernel runs a filter for every number there is when it is installed, at each command's start.
    """
    if len(verdicts) == 1:
        return verdicts[0][1]
    middle = len(verdicts) // 2
    below, rest = _search(verdicts[:middle]), _search(verdicts[middle:])
    return _instruction(_NOT_BELOW, verdicts[middle][0], len(below) // 8, 0) + below + rest


@functools.cache
def program(machine: str) -> bytes:
    """Return the filter for a machine (``uname -m``) as the kernel's and bubblewrap's array of instructions.

    Calls of another architecture, which have other numbers, kill their process.

    Raises:
        OSError: There is no table for this machine.
    """
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call filter for {machine}: local sandboxes run on x86_64 and aarch64")
    column = list(_ARCHITECTURES).index(machine)
    allowed, unknown = _instruction(_RETURN, _ALLOW), (_LAST_KNOWN + 1, _refuse(errno.ENOSYS))
    refused = {numbers[column]: _refuse(errno.EPERM) for numbers in _REFUSED.values()} | _checks(column)
    by_number = [(number, refused.get(number, allowed)) for number in range(_LAST_KNOWN + 1)]
    changes = [next(group) for _, group in itertools.groupby([*by_number, unknown], key=operator.itemgetter(1))]
    return b"".join(
        [
            _instruction(_LOAD, _ARCHITECTURE_OFFSET),
            _instruction(_EQUAL, _ARCHITECTURES[machine], 1, 0),
            _instruction(_RETURN, _KILL_PROCESS),
            _instruction(_LOAD, _NUMBER_OFFSET),
            _search(changes),
        ]
    )


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


@functools.cache
def prepare() -> tuple[Any, Any]:
    """Return what :func:`install` hands to the kernel, and its buffer. Before forks: each then saves the work."""
    instructions = program(os.uname().machine)
    holder = ctypes.create_string_buffer(instructions, len(instructions))
    return ctypes.pointer(_Program(len(instructions) // 8, ctypes.addressof(holder))), holder


def install() -> None:
    """Put this process, and all that come of it, under the filter for good. It must have given up new privileges."""
    pointer, _ = prepare()
    prctl_pointer(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, pointer)
