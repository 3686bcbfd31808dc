"""CRIU, which copies processes: where it is on this machine, and what it found of the kernel."""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.errors import UsageError
from harbor_gym._runtime.rootless import is_rootless
from harbor_gym.sandboxes.errors import SandboxError
from harbor_gym.sandboxes.supervisor.program.messages import Criu
from harbor_gym.sandboxes.tools import find_program, run_tool

LEAST = (4, 2)
"""Older ones fail on each internet socket of Linux 6.16 and later."""

_INSTALL = "install CRIU 4.2 or later (Debian unstable has it; in a checkout `make engines-criu` unpacks it)"
_PRIVILEGED = "as root; inside a container, start that with --privileged"
_TIMEOUT_SEC = 20.0
_SHOWN_FEATURES = 3
_LIMIT_MS = 90_000
_TOLD_BY = ("/proc/cpuinfo", "/proc/sys/kernel/random/boot_id")
_ELSEWHERE = "only the machine that made it can restore it; elsewhere the episode is replayed (start_mode replay)"
_known: dict[str, Criu] = {}


@dataclass(frozen=True, slots=True)
class Machine:
    """What dumped processes depend on beside their sandbox."""

    architecture: str
    kernel: str
    features: str
    """The processor's, as /proc/cpuinfo names them."""

    criu: str
    boot: str
    """One start of one machine: the kernel's random id. A clock that processes wait for starts with it."""

    def require(self, here: Machine) -> None:
        """Check that what was dumped on this machine can be restored on another one.

        Raises:
            UsageError: It can't; the text names what differs.
        """
        named = {"architecture": "for the architecture", "kernel": "under the kernel", "criu": "by CRIU"}
        for name, phrase in named.items():
            then, now = getattr(self, name), getattr(here, name)
            if then != now:
                raise UsageError(f"the dump was made {phrase} {then}, and here is {now}: {_ELSEWHERE}")
        if lacking := sorted({*self.features.split()} - {*here.features.split()}):
            names = " ".join(lacking[:_SHOWN_FEATURES])
            raise UsageError(f"the dump was made on a processor with {names}, which this one lacks: {_ELSEWHERE}")
        if self.boot != here.boot:
            raise UsageError(f"the dump is another machine's, or was made before this one's last start: {_ELSEWHERE}")


async def machine() -> Machine:
    """Return the present one.

    Raises:
        SandboxError: As :func:`found`.
    """
    return await asyncio.to_thread(_machine, (await found()).version)


@functools.cache
def _machine(criu: str) -> Machine:
    processor, boot = (Path(path).read_text(encoding="utf-8") for path in _TOLD_BY)
    features = re.search(r"^flags\s*: (.*)$", processor, re.MULTILINE)
    system = platform.uname()
    kernel = f"{system.release} {system.version}"
    return Machine(system.machine, kernel, features[1] if features else "", criu, boot.strip())


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
        _known[path] = await _known_of(path, output.strip().splitlines()[0].removeprefix("Version: "))
    return _known[path]


async def _known_of(path: str, its_version: str) -> Criu:
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
            return Criu(path, its_version, last, _LIMIT_MS)
    except binascii.Error:
        pass
    raise SandboxError(f"CRIU does not work on this machine ({path} check, {last}): {_PRIVILEGED}")
