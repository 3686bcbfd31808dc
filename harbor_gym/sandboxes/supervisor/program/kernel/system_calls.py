"""The system call filters of every command in a sandbox. The caller compiles them (``seccomp.py``)."""

import base64
import ctypes
from collections.abc import Iterable
from typing import Any

from kernel.calls import prctl_pointer

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_INSTRUCTION_BYTES = 8


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


_prepared: list[tuple[Any, Any]] = []


def prepare(filters: Iterable[str]) -> None:
    """Decode the filters for :func:`install`. Called before forks, it saves the work in each child."""
    _prepared.clear()
    for encoded in filters:
        instructions = base64.b64decode(encoded)
        holder = ctypes.create_string_buffer(instructions, len(instructions))
        program = _Program(len(instructions) // _INSTRUCTION_BYTES, ctypes.addressof(holder))
        _prepared.append((ctypes.pointer(program), holder))


def install() -> None:
    """Apply the filters to this process and its descendants for good.

    The process must still have CAP_SYS_ADMIN in its user namespace: then it need not give up setuid programs.
    """
    for pointer, _ in _prepared:
        prctl_pointer(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, pointer)
