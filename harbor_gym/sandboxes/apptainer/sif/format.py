"""Read a SIF file: the offset of its root file system, and the image's configuration.

Source: the Singularity Image Format specification, version 1 (github.com/apptainer/sif, pkg/sif).
"""

from __future__ import annotations

import functools
import json
import logging
import lzma
import re
import struct
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from harbor_gym._runtime.processes import ask
from harbor_gym.sandboxes.errors import SandboxStartError
from harbor_gym.sandboxes.image_settings import ImageSettings, config_of, settings_of
from harbor_gym.sandboxes.supervisor.program.messages import ORDINARY_IDS
from harbor_gym.sandboxes.tools import find_program

_logger = logging.getLogger(__name__)

CONFIG_NAME = "oci-config.json"
"""The data object with the ``config`` of the OCI image; Apptainer writes one when it converts such an image."""

_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<i?III7q128s384s")
_MAGIC = b"SIF_MAGIC\0"
_MAX_DESCRIPTORS = 4096
_MAX_CONFIG_BYTES = 1 << 20
_PARTITION, _GENERIC_JSON = 0x4004, 0x4006
_SQUASHFS, _PRIMARY = 1, 2
_SQUASHFS_HEADER = struct.Struct("<4s16xH4xH20xQ")
_SQUASHFS_MAGIC = b"hsqs"
_IDS_OF_BLOCK, _UNCOMPRESSED = 2048, 0x8000
_DECOMPRESSORS: dict[int, Callable[[bytes], bytes]] = {1: zlib.decompress, 4: lzma.decompress}
"""Compression of tables in foreign files; this package's tables are uncompressed. For others unsquashfs is called."""
_LISTED_OWNER = re.compile(r"^\S{10} +(\d+)/(\d+) ", re.MULTILINE)
_LIST_TIMEOUT_SEC = 60.0
_ARCHITECTURES = {"02": "x86_64", "04": "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SifImage(ImageSettings):
    """The part of a SIF file that a sandbox needs."""

    path: Path
    offset: int
    """Offset of its squashfs, in bytes."""

    machine: str
    """As ``uname -m`` prints it; empty for an unknown architecture."""


def read_sif(path: Path) -> SifImage:
    """Read a SIF file's header, and its configuration if it has one. Blocks.

    Raises:
        SandboxStartError: There is no such file, it is no SIF file, or its root file system is no squashfs.
    """
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as exc:
        raise SandboxStartError(f"the image {path} can't be read: {exc.strerror}") from exc
    except (struct.error, ValueError, zlib.error, lzma.LZMAError) as exc:
        raise SandboxStartError(f"{path} is no SIF file: {exc}") from exc


@dataclass(frozen=True, slots=True)
class _Descriptor:
    kind: int
    offset: int
    size: int
    name: str
    extra: bytes


def _read(path: Path, file: IO[bytes]) -> SifImage:
    _, magic, _, _, _, *numbers = _HEADER.unpack(file.read(_HEADER.size))
    if magic != _MAGIC:
        raise ValueError("its header has another mark")
    _, _, _, total, descriptors_at, *_ = numbers
    if not 0 < total <= _MAX_DESCRIPTORS:
        raise ValueError(f"it has {total} descriptors")
    file.seek(descriptors_at)
    descriptors = _descriptors(file, total)
    for item in descriptors:
        if item.kind == _PARTITION:
            file_system, role, architecture = struct.unpack("<ii3s", item.extra[:11])
            if role == _PRIMARY:
                break
    else:
        raise ValueError("it has no root file system")
    if file_system != _SQUASHFS:
        raise SandboxStartError(f"{path}: its root file system is no squashfs; build it anew with `apptainer build`")
    machine = _ARCHITECTURES.get(architecture.rstrip(b"\0").decode(), "")
    ids = tuple(number for number in _ids(path, file, item.offset) if number >= ORDINARY_IDS)
    return SifImage(path=path, offset=item.offset, machine=machine, high_ids=ids, **_settings(file, descriptors))


def _descriptors(file: IO[bytes], total: int) -> list[_Descriptor]:
    found: list[_Descriptor] = []
    for _ in range(total):
        kind, is_used, _, _, _, offset, size, _, _, _, _, _, name, extra = _DESCRIPTOR.unpack(
            file.read(_DESCRIPTOR.size)
        )
        if is_used:
            found.append(_Descriptor(kind, offset, size, name.rstrip(b"\0").decode("utf-8", "replace"), extra))
    return found


def _ids(path: Path, file: IO[bytes], start: int) -> list[int]:
    """Return the uids and gids in a squashfs. Source: the kernel's fs/squashfs, squashfs_fs.h and id.c."""
    file.seek(start)
    magic, compression, count, table_at = _SQUASHFS_HEADER.unpack(file.read(_SQUASHFS_HEADER.size))
    if magic != _SQUASHFS_MAGIC:
        raise ValueError("its root file system has another mark")
    expand = _DECOMPRESSORS.get(compression)
    found: list[int] = []
    file.seek(start + table_at)
    blocks = struct.unpack(f"<{-(-count // _IDS_OF_BLOCK)}Q", file.read(-(-count // _IDS_OF_BLOCK) * 8))
    for block_at in blocks:
        file.seek(start + block_at)
        (length,) = struct.unpack("<H", file.read(2))
        content = file.read(length & ~_UNCOMPRESSED)
        if not length & _UNCOMPRESSED:
            if expand is None:
                status = path.stat()
                return list(_listed_ids(path, start, (status.st_mtime_ns, status.st_size)))
            content = expand(content)
        found += struct.unpack(f"<{len(content) // 4}I", content)
    return found


@functools.lru_cache
def _listed_ids(path: Path, start: int, _version: tuple[int, int]) -> tuple[int, ...]:
    """Return the ids of a squashfs from the listing of unsquashfs, which reads every compression. Cached."""
    try:
        done = ask(
            find_program("unsquashfs") or "unsquashfs", "-lln", "-offset", str(start), str(path),
            timeout_sec=_LIST_TIMEOUT_SEC,
        )  # fmt: skip
    except FileNotFoundError:
        why = "install unsquashfs: apt-get install squashfs-tools"
    except subprocess.TimeoutExpired:
        why = f"unsquashfs took longer than {_LIST_TIMEOUT_SEC:g} s"
    else:
        if done.returncode == 0:
            return tuple(sorted({int(number) for pair in _LISTED_OWNER.findall(done.stdout) for number in pair}))
        why = f"unsquashfs: {(done.stderr.strip().splitlines() or [f'status {done.returncode}'])[0]}"
    _logger.warning(
        "%s: the uids and gids of its files can't be read, so what this machine lacks fails later (%s)", path, why
    )
    return ()


def _settings(file: IO[bytes], descriptors: list[_Descriptor]) -> dict[str, Any]:
    for item in descriptors:
        if item.kind == _GENERIC_JSON and item.name == CONFIG_NAME and item.size <= _MAX_CONFIG_BYTES:
            file.seek(item.offset)
            return settings_of(json.loads(file.read(item.size)))
    return {}


def config_document(settings: ImageSettings) -> str:
    """Return a SIF file's :data:`CONFIG_NAME` for an image with these settings."""
    return json.dumps(config_of(settings), sort_keys=True)
