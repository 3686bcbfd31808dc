"""CRIU, which copies processes: where it is on this machine, and what it found of the kernel."""

from __future__ import annotations

import base64
import binascii
import platform
import re

from harbor_gym._runtime.rootless import is_rootless
from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.supervisor.program.messages import Criu
from harbor_gym.sandboxes.tools import find_program, run_tool

LEAST = (4, 2)
"""Older ones fail on each internet socket of Linux 6.16 and later."""

_INSTALL = "install CRIU 4.2 or later (Debian unstable has it; in a checkout `make engines-criu` unpacks it)"
_PRIVILEGED = "as root; inside a container, start that with --privileged"
_TIMEOUT_SEC = 20.0
_LIMIT_MS = 90_000
_known: dict[str, Criu] = {}


async def found() -> Criu:
    """Return the program, and what it notes of this kernel, which is asked once.

    Raises:
        SandboxError: It is not there, too old, or does not work here; the text ends with what to do, after a colon.
    """
    if is_rootless():
        raise SandboxError("processes of an ordinary user's sandboxes are not copied: run as root")
    if (path := find_program("criu")) is None:
        raise SandboxError(f"copies of processes need CRIU, which is not there: {_INSTALL}")
    if platform.machine() != "x86_64":
        raise SandboxError(f"processes are not copied on {platform.machine()}: use a machine of x86_64")
    if path not in _known:
        code, output = await run_tool(path, "--version", timeout_sec=_TIMEOUT_SEC)
        version = re.search(r"Version: (\d+)\.(\d+)", output)
        if code or version is None or tuple(map(int, version.groups())) < LEAST:
            raise SandboxError(f"{path} is no CRIU of 4.2 or later: {_INSTALL}")
        _known[path] = await _known_of(path)
    return _known[path]


async def _known_of(path: str) -> Criu:
    """Return the program with its notes."""
    # It keeps them in /run only: here in one of its own, which goes with the process.
    notes = 'mount -t tmpfs tmpfs /run && "$0" check >&2 && exec base64 -w 0 /run/criu.kdat'
    status, output = await run_tool(
        "unshare", "--mount", "--propagation", "private", "sh", "-c", notes, path, timeout_sec=_TIMEOUT_SEC
    )
    # Warnings come before.
    last = (output.strip().splitlines() or [f"status {status}"])[-1]
    try:
        if status == 0:
            base64.b64decode(last, validate=True)
            return Criu(path, last, _LIMIT_MS)
    except binascii.Error:
        pass
    raise SandboxError(f"CRIU does not work on this machine ({path} check, {last}): {_PRIVILEGED}")
