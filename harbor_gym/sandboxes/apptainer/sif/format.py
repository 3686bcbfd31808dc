"""Read a SIF file: where its root file system lies, and the image's configuration beside it.

Source: the Singularity Image Format specification, version 1 (github.com/apptainer/sif, pkg/sif).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from harbor_gym.errors import SandboxStartError
from harbor_gym.sandboxes.health import Healthcheck, healthcheck_config, healthcheck_of
from harbor_gym.sandboxes.images.build import Image

CONFIG_NAME = "oci-config.json"
"""The data object with the ``config`` of the OCI image; Apptainer writes one where it converts such an image."""

_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<i?III7q128s384s")
_MAGIC = b"SIF_MAGIC\0"
_MAX_DESCRIPTORS = 4096
_MAX_CONFIG_BYTES = 1 << 20
_PARTITION, _GENERIC_JSON = 0x4004, 0x4006
_SQUASHFS, _PRIMARY = 1, 2
_ARCHITECTURES = {"02": "x86_64", "04": "aarch64"}


@dataclass(frozen=True, slots=True)
class SifImage:
    """The part of a SIF file that a sandbox needs."""

    path: Path
    offset: int
    """Where its squashfs begins, in bytes."""

    machine: str
    """As ``uname -m`` prints it; empty where the file names another one."""

    env: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/"
    user: str = "0"
    entrypoint: tuple[str, ...] = ()
    healthcheck: Healthcheck | None = None
    volumes: tuple[str, ...] = ()


def read_sif(path: Path) -> SifImage:
    """Read a SIF file's header, and its configuration if it has one. Blocks.

    Raises:
        SandboxStartError: There is none, it is no SIF file, or its root file system is no squashfs.
    """
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as exc:
        raise SandboxStartError(f"the image {path} can't be read: {exc.strerror}") from exc
    except (struct.error, ValueError) as exc:
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
    return SifImage(path, item.offset, machine, **_settings(file, descriptors))


def _descriptors(file: IO[bytes], total: int) -> list[_Descriptor]:
    found: list[_Descriptor] = []
    for _ in range(total):
        kind, is_used, _, _, _, offset, size, _, _, _, _, _, name, extra = _DESCRIPTOR.unpack(
            file.read(_DESCRIPTOR.size)
        )
        if is_used:
            found.append(_Descriptor(kind, offset, size, name.rstrip(b"\0").decode("utf-8", "replace"), extra))
    return found


def _settings(file: IO[bytes], descriptors: list[_Descriptor]) -> dict[str, Any]:
    for item in descriptors:
        if item.kind == _GENERIC_JSON and item.name == CONFIG_NAME and item.size <= _MAX_CONFIG_BYTES:
            file.seek(item.offset)
            return _of_config(json.loads(file.read(item.size)))
    return {}


def _of_config(document: object) -> dict[str, Any]:
    config = cast("dict[str, Any]", document)
    return {
        "env": dict(entry.partition("=")[::2] for entry in config.get("Env") or []),
        "workdir": config.get("WorkingDir") or "/",
        "user": config.get("User") or "0",
        "entrypoint": tuple(config.get("Entrypoint") or ()),
        "healthcheck": healthcheck_of(config),
        "volumes": tuple(config.get("Volumes") or ()),
    }


def config_document(image: Image) -> str:
    """Return the ``config`` of an OCI image with these settings, for a SIF file's :data:`CONFIG_NAME`."""
    config = {
        "Env": [f"{name}={value}" for name, value in image.env.items()],
        "WorkingDir": image.workdir,
        "User": image.user,
        "Entrypoint": list(image.entrypoint),
        "Volumes": {volume: {} for volume in image.volumes},
        **healthcheck_config(image.healthcheck),
    }
    return json.dumps(config, sort_keys=True)
