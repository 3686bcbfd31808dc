"""SIF files: the place of the root file system, the image's configuration, and that others are refused."""

import json
import lzma
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.errors import SandboxStartError
from harbor_gym.sandboxes.apptainer.sif.format import config_document, read_sif
from harbor_gym.sandboxes.health import Healthcheck
from harbor_gym.sandboxes.image_settings import ImageSettings

PARTITION, GENERIC_JSON, LABELS = 0x4004, 0x4006, 0x4003
DESCRIPTOR_BYTES = 585
_TABLE_AT = 200


def squashfs(*ids: int, compression: int = 1, compress: Callable[[bytes], bytes] | None = None) -> bytes:
    """Return the beginning of a squashfs whose files have these uids and gids: its header and its table of them."""
    plain = struct.pack(f"<{len(ids)}I", *ids)
    table = plain if compress is None else compress(plain)
    block = struct.pack("<H", len(table) | (0x8000 if compress is None else 0)) + table
    header = struct.pack("<4s16xH4xH20xQ", b"hsqs", compression, len(ids), _TABLE_AT + len(block)).ljust(
        _TABLE_AT, b"\0"
    )
    return header + block + struct.pack("<Q", _TABLE_AT)


ROOT, CONFIG = (
    squashfs(0),
    b'{"Env": ["A=b=c", "EMPTY="], "WorkingDir": "/app", "User": "dev", "Entrypoint": ["/run"]}',
)


def partition(file_system: int = 1, role: int = 2, architecture: bytes = b"02\0") -> bytes:
    return struct.pack("<ii3s", file_system, role, architecture)


def write_sif(path: Path, objects: list[tuple[int, bytes, str, bytes]], *, magic: bytes = b"SIF_MAGIC\0") -> Path:
    """Write a SIF file by the specification; each object is its kind, content, name and the kind's own fields."""
    descriptors_at = 4096
    content_at = descriptors_at + 48 * DESCRIPTOR_BYTES
    descriptors, contents = b"", b""
    for kind, content, name, extra in objects:
        where = content_at + len(contents)
        descriptors += struct.pack("<iB3I7q", kind, 1, 1, 0, 0, where, len(content), len(content), 0, 0, 0, 0)
        descriptors += name.encode().ljust(128, b"\0") + extra.ljust(384, b"\0")
        contents += content
    total = 48
    header = b"#!/usr/bin/env run".ljust(32, b"\0") + magic + b"01\0" + b"02\0" + bytes(16)
    header += struct.pack("<8q", 0, 0, total - len(objects), total, descriptors_at, 0, content_at, len(contents))
    path.write_bytes(header.ljust(descriptors_at, b"\0") + descriptors.ljust(48 * DESCRIPTOR_BYTES, b"\0") + contents)
    return path


def test_the_root_file_system_and_the_configuration_are_found(tmp_path: Path) -> None:
    objects = [
        (LABELS, b"{}", "labels", b""),
        (PARTITION, bytes(10), "overlay", partition(role=4)),
        (PARTITION, ROOT, "root", partition()),
        (GENERIC_JSON, b"{", "other.json", b""),
        (GENERIC_JSON, CONFIG, "oci-config.json", b""),
    ]
    path = write_sif(tmp_path / "image.sif", objects)
    image = read_sif(path)
    assert path.read_bytes()[image.offset :].startswith(ROOT)
    assert image.env == {"A": "b=c", "EMPTY": ""}
    assert (image.workdir, image.user, image.entrypoint, image.machine) == ("/app", "dev", ("/run",), "x86_64")


def test_an_image_without_a_configuration_has_defaults(tmp_path: Path) -> None:
    image = read_sif(write_sif(tmp_path / "image.sif", [(PARTITION, ROOT, "root", partition(architecture=b"04\0"))]))
    assert (image.env, image.workdir, image.user, image.machine) == ({}, "/", "0", "aarch64")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env": {"PATH": "/bin:/usr/bin", "COMMAS": "a,b", "LINES": "a\nb"},
        "workdir": "/srv",
        "user": "1234:4321",
        "entrypoint": ("/init", "--quiet"),
        "volumes": ("/data",),
        "healthcheck": Healthcheck(("test", "-e", "/x"), 0.5, 2.0, 1.0, 0.25, 7),
    }
    document = config_document(ImageSettings(**settings))
    objects = [(PARTITION, ROOT, "root", partition()), (GENERIC_JSON, document.encode(), "oci-config.json", b"")]
    image = read_sif(write_sif(tmp_path / "image.sif", objects))
    assert {name: getattr(image, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no SIF file"),
        (b"hsqs" * 100, "no SIF file"),
        (bytes(128), "no SIF file"),
    ],
)
def test_what_is_no_sif_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "image.sif").write_bytes(content)
    with pytest.raises(SandboxStartError, match=reason):
        read_sif(tmp_path / "image.sif")


@pytest.mark.parametrize(
    ("compression", "compress", "found"),
    [(6, None, (70000, 197609)), (1, zlib.compress, (70000, 197609)), (4, lzma.compress, (70000, 197609))],
)
def test_the_high_ids_of_its_files_are_found(
    tmp_path: Path, compression: int, compress: Callable[[bytes], bytes] | None, found: tuple[int, ...]
) -> None:
    root = squashfs(0, 70000, 33, 197609, compression=compression, compress=compress)
    image = read_sif(write_sif(tmp_path / "image.sif", [(PARTITION, root, "root", partition())]))
    assert image.high_ids == found


@pytest.mark.parametrize(
    ("programs", "remedy"),
    [("", "install unsquashfs: apt-get install squashfs-tools"), ("exit 3", "unsquashfs: status 3"),
     ("echo lzo is not supported >&2; exit 1", "unsquashfs: lzo is not supported")],
)  # fmt: skip
def test_ids_that_nothing_here_can_read_are_told_of_once(
    tmp_path: Path, programs: str, remedy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if programs:
        (tmp_path / "unsquashfs").write_text(f"#!/bin/sh\n{programs}\n", encoding="utf-8")
        (tmp_path / "unsquashfs").chmod(0o755)
    root = squashfs(0, 70000, compression=3, compress=zlib.compress)
    path = write_sif(tmp_path / "image.sif", [(PARTITION, root, "root", partition())])
    assert [read_sif(path).high_ids for _ in range(3)] == [()] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: the uids and gids of its files can't be read, so what this machine lacks fails later ({remedy})"
    ]


def test_a_table_of_ids_that_is_broken_is_refused(tmp_path: Path) -> None:
    root = squashfs(0, 1, compress=lambda plain: plain)
    with pytest.raises(SandboxStartError, match="no SIF file"):
        read_sif(write_sif(tmp_path / "image.sif", [(PARTITION, root, "root", partition())]))


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    path = write_sif(tmp_path / "image.sif", [(PARTITION, ROOT, "root", partition())])
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(SandboxStartError, match="no SIF file"):
        read_sif(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxStartError, match=r"missing\.sif can't be read: No such file"):
        read_sif(tmp_path / "missing.sif")


def test_other_file_systems_are_refused(tmp_path: Path) -> None:
    path = write_sif(tmp_path / "image.sif", [(PARTITION, ROOT, "root", partition(file_system=2))])
    with pytest.raises(SandboxStartError, match="no squashfs"):
        read_sif(path)
    path = write_sif(
        tmp_path / "image.sif", [(LABELS, b"{}", "labels", b""), (GENERIC_JSON, json.dumps({}).encode(), "x", b"")]
    )
    with pytest.raises(SandboxStartError, match="no root file system"):
        read_sif(path)
