"""Owners: a label of this process that no other process, boot or machine shares.

Resources that a killed process could leave behind carry their owner's label, in a Docker label or in a file name. A
reaper removes the resources of a dead owner; an owner that it can't know to be dead counts as alive.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

from harbor_gym._runtime.procfs import PROC, read_stat, text_or_empty

_MACHINE_ID = Path("/etc/machine-id")
_FORMAT = re.compile(r"([0-9a-f]{12})\.([0-9a-f]{12})\.(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Owner:
    """One process of one boot of one machine, as seen in one PID namespace."""

    host: str
    """The machine, or the container, as 12 hex digits."""

    boot: str
    """Its boot, as 12 hex digits; zeros where the system reports none."""

    pid_namespace: int
    """Inode of the PID namespace that ``pid`` counts in; 0 on a system without such namespaces."""

    pid: int

    start_time: int
    """Start of the process in clock ticks since boot; 0 where the system reports none. It tells reused pids apart."""

    def __str__(self) -> str:
        return f"{self.host}.{self.boot}.{self.pid_namespace}.{self.pid}.{self.start_time}"

    @classmethod
    def find(cls, text: str) -> Owner | None:
        """Return the owner whose label is in ``text``, a label or a file name; None where there is none."""
        found = _FORMAT.search(text)
        if found is None:
            return None
        host, boot, *numbers = found.groups()
        return cls(host, boot, *map(int, numbers))


def owner_label() -> str:
    """Return this process's label, fit for Docker labels and file names (letters, digits and dots; about 55)."""
    return str(this_process())


def this_process() -> Owner:
    """Return this process as an owner."""
    return _owner_of(os.getpid())


def boot_id() -> str:
    """Return the kernel's id of this boot; empty where it reports none."""
    return text_or_empty(PROC / "sys/kernel/random/boot_id")


def run_id() -> str:
    """Return the id of this process's run, 12 hex digits, by which people find the resources of one run."""
    return _run_of(os.getpid())


def is_alive(owner: Owner | str) -> bool:
    """Return whether an owner may still be running: True unless it is known to be dead.

    An owner on another machine or in another container, and a label that can't be read, count as alive.
    """
    known = Owner.find(owner) if isinstance(owner, str) else owner
    here = this_process()
    if known is None or known.host != here.host:
        return True
    if known.boot != here.boot:
        return False
    if known.pid_namespace != here.pid_namespace:
        return True
    started = start_time(known.pid)
    return started is not None and started in (known.start_time, 0)


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot.

    0 where the system does not report it, None if the process has ended or is a zombie.
    """
    if not (PROC / "self/stat").exists():
        return 0 if _exists(pid) else None
    stat = read_stat(pid)
    return None if stat is None or stat.has_exited else stat.start_time


def temporary_prefix(what: str) -> str:
    """Return the prefix of a temporary directory's name, for ``tempfile``, from which a reaper reads the owner."""
    return f"{TEMPORARY_PREFIX}{what}-{owner_label()}-"


TEMPORARY_PREFIX = "harbor-gym-"
"""The prefix of every temporary directory of this package."""


@functools.cache
def _owner_of(pid: int) -> Owner:
    return Owner(_host(), _boot(), _pid_namespace(), pid, start_time(pid) or 0)


@functools.cache
def _run_of(pid: int) -> str:
    return _digest(f"{pid} {uuid.uuid4()}")


def _host() -> str:
    # The host name distinguishes containers of one image that holds a machine id. Without a machine id the leftovers of
    # an earlier boot count as another machine's. The last resort may differ from process to process.
    machine = text_or_empty(_MACHINE_ID) or boot_id() or f"{uuid.getnode():x}"
    return _digest(f"{machine}\n{socket.gethostname()}")


def _boot() -> str:
    identity = boot_id()
    return identity.replace("-", "")[:12] if identity else "0" * 12


def _pid_namespace() -> int:
    try:
        return (PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
