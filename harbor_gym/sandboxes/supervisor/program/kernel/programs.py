"""The static program that a sandbox's processes start from (``launcher.c``), as a sealed file in memory."""

import base64
import errno
import fcntl
import os

from kernel.machine_code import PROGRAMS

_MFD_EXEC = 0x10
_F_SEAL_EXEC = 0x20
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MODE = 0o711
"""Not readable for a sandbox's root that is not the owner: the kernel then protects the process's memory."""
_NAME = "launch"


def open_first() -> int:
    """Return a descriptor of the program, which no process can change.

    Raises:
        OSError: The machine is unknown, or the kernel refuses executable files in memory.
    """
    machine = os.uname().machine
    if machine not in PROGRAMS:
        raise OSError(errno.ENOSYS, f"local sandboxes run on {' and '.join(PROGRAMS)}, not on {machine}")
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        handle = os.memfd_create(_NAME, flags | _MFD_EXEC)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # a kernel before 6.3, where all are executable
            raise
        handle = os.memfd_create(_NAME, flags)
    os.write(handle, base64.b64decode(PROGRAMS[machine]))
    os.fchmod(handle, MODE)
    try:
        # Sealed as executable: a sandbox's root that is the owner could break its own sandbox by a change of mode.
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _SEALS | _F_SEAL_EXEC)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # as above
            raise
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _SEALS)
    # Executable only by a descriptor that can't write.
    reader = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(handle)
    return reader
