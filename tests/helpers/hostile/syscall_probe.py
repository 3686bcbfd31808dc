"""Runs inside a sandbox, by itself: makes system calls that the kernel must refuse, and prints the answers as JSON.

Numbers are x86_64's, written down here from the kernel's own table and not taken from the filter that they test.
"""

import ctypes
import json
import mmap
import os
import pty
import signal
import socket
import sys
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_REFUSED = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_getfd": 438, "bpf": 321,
    "move_pages": 279, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "fanotify_init": 300, "add_key": 248, "request_key": 249, "keyctl": 250, "mount": 165,
    "umount2": 166, "pivot_root": 155, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "move_mount": 429, "open_tree": 428, "mount_setattr": 442, "setns": 308, "open_by_handle_at": 304,
    "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "reboot": 169, "swapon": 167, "swapoff": 168, "quotactl": 179, "quotactl_fd": 443, "acct": 163, "syslog": 103,
    "settimeofday": 164, "clock_settime": 227, "iopl": 172, "ioperm": 173,
}  # fmt: skip
_NAMESPACES = {
    "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
    "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip
_UNSHARE, _CLONE, _CLONE3, _OPEN_TREE_ATTR = 272, 56, 435, 467
_TIOCSTI = 0x5412
_GETPID_BY_INT_80 = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"
"""mov eax, 20; int 0x80; ret: a call of the 32-bit architecture."""


def _answer(number: int, *arguments: int) -> int:
    """Return the error number of a system call, 0 if it succeeded."""
    full = [ctypes.c_long(value) for value in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    return 0 if _libc.syscall(ctypes.c_long(number), *full) >= 0 else ctypes.get_errno()


def _in_child(action: Callable[[], int]) -> int:
    """Run ``action`` in a child; return its exit status, or the negated signal that killed it."""
    pid = os.fork()
    if pid == 0:
        os._exit(action())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _clone(flags: int) -> int:
    result = _libc.syscall(ctypes.c_long(_CLONE), ctypes.c_long(flags | signal.SIGCHLD), 0, 0, 0, 0)
    if result == 0:
        os._exit(0)
    return 0 if result > 0 else ctypes.get_errno()


def _family(number: int) -> int:
    try:
        socket.socket(number, socket.SOCK_DGRAM if number != socket.AF_NETLINK else socket.SOCK_RAW).close()
    except OSError as exc:
        return exc.errno or -1
    return 0


def _forge() -> dict[str, int]:
    """Try what CAP_NET_RAW allows; each number with bits above an int's, too, which the kernel ignores."""
    high, found = 1 << 32, {}
    for family, level, transparent in ((2, 0, 19), (10, 41, 75)):
        for kind in (3, 10, 3 | 0x80000, 3 | high):
            found[f"socket {family} {kind:#x}"] = _answer(41, family, kind, 1)
        with socket.socket(family, socket.SOCK_DGRAM) as udp:
            value = ctypes.c_int(1)
            one = ctypes.addressof(value)
            for above in (0, high):
                for wanted, name in ((level, transparent), (1, 36)):
                    code = _answer(54, udp.fileno(), wanted | above, name | above, one, 4)
                    found[f"option {wanted} {name} {above:#x}"] = code
    return found


def _inject() -> int:
    _, terminal = pty.openpty()
    _libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p]
    return 0 if _libc.ioctl(terminal, _TIOCSTI, b"x") == 0 else ctypes.get_errno()


def _call_of_32_bits() -> int:
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as code:
        code.write(_GETPID_BY_INT_80)
        place = ctypes.addressof(ctypes.c_char.from_buffer(code))
        os._exit(0 if ctypes.CFUNCTYPE(ctypes.c_int)(place)() > 0 else 1)


sys.stdout.write(
    json.dumps(
        {
            "refused": {name: _in_child(lambda number=number: _answer(number)) for name, number in _REFUSED.items()},
            "unshare": {
                name: _in_child(lambda flag=flag: _answer(_UNSHARE, flag))
                for name, flag in {**_NAMESPACES, "time": 0x80}.items()
            },
            "unshare files": _in_child(lambda: _answer(_UNSHARE, 0x400)),
            "clone": {name: _in_child(lambda flag=flag: _clone(flag)) for name, flag in _NAMESPACES.items()},
            "clone plain": _in_child(lambda: _clone(0)),
            "clone3": _answer(_CLONE3),
            "newer than known": _answer(_OPEN_TREE_ATTR),
            "families": {
                name: _family(number)
                for name, number in {
                    "unix": 1,
                    "inet": 2,
                    "inet6": 10,
                    "netlink": 16,
                    "packet": 17,
                    "alg": 38,
                    "vsock": 40,
                    "xdp": 44,
                }.items()
            },
            "forged packets": _forge(),
            "personality": {
                hex(value): _in_child(lambda value=value: _answer(135, value))
                for value in (0, 0x8, 0xFFFFFFFF, 0x40000, 0x400000)
            },
            "typed into a terminal": _inject(),
            "32 bits": _in_child(_call_of_32_bits),
        }
    )
)
