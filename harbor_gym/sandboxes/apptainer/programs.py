"""The programs that Apptainer sandboxes need, and their other requirements of this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harbor_gym._runtime import rootless
from harbor_gym._runtime.errors import MissingDependencyError
from harbor_gym.sandboxes.tools import find_program

RUNTIMES = ("apptainer", "singularity")
"""Programs that make and pull SIF files, in order of preference."""

FUSE = Path("/dev/fuse")
_LIBRARIES = ("libexec", "lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
"""Folders below a runtime's prefix with its own copies of FUSE programs."""

_MIN_LINUX = (5, 8)
"""The first in which a pidfd leads into namespaces."""
HOW_TO_INSTALL = (
    "install Apptainer (apptainer.org/docs/admin/main/installation.html); in a checkout of harbor_gym "
    "`make engines-apptainer` unpacks one"
)


@dataclass(frozen=True, slots=True)
class Programs:
    """Paths of programs."""

    squashfuse: str
    fuse_overlayfs: str | None
    """None if only the kernel's overlay is available."""


def has_kernel_overlay() -> bool:
    """Return whether the kernel makes the overlay of a sandbox: for an ordinary user since Linux 6.6."""
    return not rootless.is_rootless() or not rootless.age_refusal()[0]


def overlay_program(programs: Programs, overlay: Literal["auto", "kernel", "fuse"]) -> tuple[str, ...]:
    """Return the program that serves a sandbox's overlay, and its arguments; none where the kernel makes it.

    Raises:
        MissingDependencyError: It is to be fuse-overlayfs, which is missing.
    """
    if overlay == "kernel" or (overlay == "auto" and has_kernel_overlay()):
        return ()
    if programs.fuse_overlayfs is None:
        raise MissingDependencyError("this sandbox's overlay needs fuse-overlayfs: apt-get install fuse-overlayfs")
    return programs.fuse_overlayfs, "-f"


def find_programs() -> Programs:
    """Return the programs' paths.

    Raises:
        MissingDependencyError: One is missing; the message states how to get it.
    """
    squashfuse = _find("squashfuse_ll") or _find("squashfuse")
    if squashfuse is None:
        raise MissingDependencyError("apptainer sandboxes need squashfuse to mount images: apt-get install squashfuse")
    return Programs(squashfuse, _find("fuse-overlayfs"))


def find_runtime() -> str:
    """Return the path of Apptainer, or of Singularity.

    Raises:
        MissingDependencyError: There is neither.
    """
    for name in RUNTIMES:
        if (path := find_program(name)) is not None:
            return path
    raise MissingDependencyError(f"SIF files are made and pulled by apptainer or singularity: {HOW_TO_INSTALL}")


def find_mksquashfs() -> str:
    """Return the path of mksquashfs, which writes the root file system of a SIF file.

    Raises:
        MissingDependencyError: It is missing.
    """
    if (path := find_program("mksquashfs")) is None:
        raise MissingDependencyError("SIF files are built by mksquashfs: apt-get install squashfs-tools")
    return path


def _find(name: str) -> str | None:
    """Return a program's path: Apptainer's packages bring some that are not on PATH."""
    if (path := find_program(name)) is not None:
        return path
    for owner in RUNTIMES:
        if (runtime := find_program(owner)) is not None:
            prefix = Path(runtime).resolve().parent.parent
            for library in _LIBRARIES:
                candidate = prefix / library / owner / "bin" / name
                if os.access(candidate, os.X_OK):
                    return str(candidate)
    return None


def refusal() -> tuple[str, str]:
    """Return why this machine can't run Apptainer sandboxes, and the remedy; both empty if it can.

    Missing programs are not reported here, but by :func:`find_programs`.
    """
    if sys.platform != "linux":
        return "Apptainer needs Linux", "use --env docker"
    try:
        os.close(os.open(FUSE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as exc:
        return f"{FUSE} can't be opened ({exc.strerror})", _OPEN_FUSE
    if rootless.is_rootless():
        return rootless.refusal(min_linux=_MIN_LINUX)
    refused = rootless.namespace_refusal("--user")
    return (refused, "inside a container: start that with --privileged") if refused else ("", "")


_OPEN_FUSE = f"as root: modprobe fuse; chmod 666 {FUSE} (inside a container, start that with --device {FUSE})"


def require_all() -> Programs:
    """Return the programs if this machine can run sandboxes.

    Raises:
        MissingDependencyError: It can't.
    """
    programs = find_programs()
    refused, fix = refusal()
    if refused:
        raise MissingDependencyError(f"apptainer sandboxes: {refused}: {fix}")
    return programs
