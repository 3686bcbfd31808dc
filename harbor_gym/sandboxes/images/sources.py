"""Sources of a sandbox's root file system other than a Dockerfile: archives, directories and tars of the user."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.images.builder import require_ids
from harbor_gym.sandboxes.tools import contained, run_tool, tail

_ARCHIVE = re.compile(r"(oci-archive|docker-archive|oci|dir):([^:]+)(:.+)?")
"""Source: containers-transports(5)."""
_SHELLS = ("bin/sh", "usr/bin/sh")
_READ_TIMEOUT_SEC = 600.0


def is_archive(reference: str) -> bool:
    """Return whether an image's name is an archive (``oci-archive:PATH``, ``docker-archive:PATH``, …)."""
    return _ARCHIVE.fullmatch(reference) is not None


def archive_path(reference: str, environment_dir: Path) -> Path:
    """Return the file or directory of an archive's reference; a relative path is beside the Dockerfile.

    Raises:
        SandboxStartError: It does not exist.
    """
    found = _ARCHIVE.fullmatch(reference)
    assert found is not None
    path = environment_dir / Path(found[2]).expanduser()
    if not path.exists():
        raise SandboxStartError(f"image {reference!r}: {path} does not exist")
    return path


async def load_archive(reference: str, environment_dir: Path) -> str:
    """Read an image archive into buildah's store; return the image's id there.

    buildah keeps the name that the archive gives its image, as ``docker load`` does.

    Raises:
        SandboxStartError: The archive does not exist or is invalid.
        TaskError: Its files have ids that this user lacks.
    """
    found = _ARCHIVE.fullmatch(reference)
    assert found is not None
    source = f"{found[1]}:{archive_path(reference, environment_dir)}{found[3] or ''}"
    code, output = await run_tool(*contained(), "buildah", "pull", "--quiet", source, timeout_sec=_READ_TIMEOUT_SEC)
    if code != 0:
        require_ids(output, f"image {reference!r}")
        raise SandboxStartError(
            f"image {reference!r} can't be read: {tail(output)}\n(the kinds are docker-archive: for what `docker save` "
            "writes, oci-archive: and oci: for the OCI layout, packed or as a directory, each with :NAME behind the "
            "path where it holds several images)"
        )
    return output.strip().splitlines()[-1]


def fingerprint(path: Path) -> str:
    """Return a hash that changes with any change below ``path``: of names, kinds, owners, modes, sizes, times, inodes.

    No content is read: a program that changes a file can't reset its ctime.

    Raises:
        SandboxStartError: The path does not exist.
    """
    total = hashlib.sha256()
    try:
        for name, status in _walk(path.expanduser().absolute()):
            facts = [
                name, status.st_mode, status.st_uid, status.st_gid, status.st_size,
                status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev,
            ]  # fmt: skip
            total.update(json.dumps(facts).encode())
    except FileNotFoundError as exc:
        raise SandboxStartError(f"{exc.filename} does not exist, or was removed while it was read") from None
    return total.hexdigest()


def _walk(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    yield str(path), path.stat()
    if not path.is_dir():
        return
    for directory, folders, names in os.walk(path):
        folders.sort()
        for name in sorted((*folders, *names)):
            full = os.path.join(directory, name)  # noqa: PTH118  # a Path per file takes twice as long
            yield full, os.lstat(full)


async def copy_rootfs(source: Path, target: Path) -> None:
    """Copy a root file system, a directory or a tar of one (packed or not), to the empty directory ``target``.

    Owners, modes, hard links and capabilities are kept; file systems mounted below it are left out.

    Raises:
        SandboxStartError: It is neither, it can't be read, or it has no shell.
        TaskError: Its files have ids that this user lacks.
    """
    argv = await asyncio.to_thread(_copy_argv, source, target)
    code, output = await run_tool(*contained(), *argv, timeout_sec=_READ_TIMEOUT_SEC)
    if code != 0:
        require_ids(output, f"rootfs={str(source)!r}")
        raise SandboxStartError(f"rootfs={str(source)!r} can't be copied: {tail(output)}")
    if what := await asyncio.to_thread(_what_else, target):
        raise SandboxStartError(f"rootfs={str(source)!r} is no root file system: {what}")


def _copy_argv(source: Path, target: Path) -> tuple[str, ...]:
    source = source.expanduser().absolute()
    if source.is_dir():
        return "cp", "--archive", "--one-file-system", f"{source}/.", str(target)
    if not _is_tar(source):
        raise SandboxStartError(f"rootfs={str(source)!r} is neither a directory nor a tar archive")
    kept = ("--xattrs", "--xattrs-include=user.*", "--xattrs-include=security.capability")
    argv = ("tar", "--extract", "--file", str(source), "--directory", str(target), "--numeric-owner", "-p", *kept)
    # A sandbox has its own device files, and an ordinary user can't make any.
    return *argv, "--anchored", *(f"--exclude={at}dev/*" for at in ("", "./", "/"))


def _is_tar(path: Path) -> bool:
    # tarfile knows no zstd, which GNU tar reads by itself where zstd is installed.
    return tarfile.is_tarfile(path) or (path.name.endswith((".tar.zst", ".tzst")) and shutil.which("zstd") is not None)


def _what_else(target: Path) -> str:
    """Return why a directory is no root file system; empty if it is one."""
    if any(os.path.lexists(target / shell) for shell in _SHELLS):
        return ""
    if (target / "manifest.json").exists():
        return "it is what `docker save` writes; use the option image='docker-archive:PATH'"
    if (target / "oci-layout").exists():
        return "it is an OCI image; use the option image='oci-archive:PATH' (or oci: for a directory)"
    return "it holds no /bin/sh"
