"""The system call filters of every command in a sandbox. The caller compiles them (``seccomp.py``)."""

import base64
import struct
from collections.abc import Iterable

from kernel.steps import Steps

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_INSTRUCTION_BYTES = 8
_prepared: list[bytes] = []


def prepare(filters: Iterable[str]) -> None:
    """Decode the filters for :func:`install`."""
    _prepared[:] = map(base64.b64decode, filters)


def install(steps: Steps) -> None:
    """Apply the filters to the process that makes the calls, and to its descendants, for good.

    The process must still have CAP_SYS_ADMIN in its user namespace: then it need not give up setuid programs.
    """
    for instructions in _prepared:
        program = struct.pack("H6xq", len(instructions) // _INSTRUCTION_BYTES, steps.data(instructions))
        steps.call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, steps.data(program), what="system call filter")
