"""Archives that a hostile container could have Docker's client hand over: read in a process of its own, and bounded."""

import asyncio
import io
import os
import shlex
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harbor_gym.errors import SandboxError
from harbor_gym.sandboxes.archive.trees.records import ALL, MAX_ENTRIES, Choice
from harbor_gym.sandboxes.docker import downloads

pytestmark = pytest.mark.usefixtures("nothing_left")
_LIMIT = 1 << 20


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a program stand in for Docker's client: the real one hands on no archive that its daemon did not write."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def stand_in(script: str) -> None:
        path = tmp_path / "bin" / "docker"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return stand_in


@pytest.fixture
def packed(tmp_path: Path, docker: Callable[[str], None]) -> Callable[[bytes], None]:
    """Make Docker's client return these bytes."""

    def hand_over(archive: bytes) -> None:
        (tmp_path / "archive").write_bytes(archive)
        docker(f"cat {shlex.quote(str(tmp_path / 'archive'))}")

    return hand_over


async def fetch(target: Path, choice: Choice = ALL, source: str = "/x") -> None:
    await downloads.download_dir("container", source, target, limit_bytes=_LIMIT, choice=choice)


def tar_of(*members: tuple[str, str | None], kind: bytes = tarfile.SYMTYPE) -> bytes:
    """Pack files (name, None) that hold ``new``, and links (name, where to)."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, to in members:
            member = tarfile.TarInfo(name)
            if to is not None:
                member.type, member.linkname = kind, to
            member.size = 0 if to is not None else len(b"new")
            tar.addfile(member, io.BytesIO(b"new"))
    return written.getvalue()


def header(name: str, *, size: int | bytes = 0, kind: bytes = b"0") -> bytes:
    """Make one header block; a size of bytes is the field as it is."""
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    fields = (name.encode(), b"644", b"0", b"0", field, b"0", b" " * 8, kind, b"", b"ustar\x0000", b"")
    block = struct.pack("100s8s8s8s12s12s8s1s100s8s247s", *fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def extended(content: bytes, name: str = "file", **options: int | bytes) -> bytes:
    """Make an extended header and the entry after it."""
    padding = bytes(-len(content) % 512)
    return header("pax", size=len(content), kind=b"x") + content + padding + header(name, **options)  # type: ignore[arg-type]


_END = bytes(1024)


async def test_links_that_stay_inside_are_kept(packed: Callable[[bytes], None], tmp_path: Path) -> None:
    members = ("deep/file", None), ("deep/same", "file"), ("top", "deep/file"), ("deep/up", "../top")
    packed(tar_of(*members))
    await fetch(tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_text() for name, _ in members} == {name: "new" for name, _ in members}


async def test_hard_links_are_the_same_file(packed: Callable[[bytes], None], tmp_path: Path) -> None:
    packed(
        tar_of(("deep/file", None), ("hard", "deep/file"), ("./deep/again", "./deep/file"), ("no", "none"), kind=b"1")
    )
    await fetch(tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert found == {"deep", "deep/file", "deep/again", "hard"}
    assert (tmp_path / "out" / "hard").read_text() == "new"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize(
    "members",
    [
        [("out", "/")],
        [("out", "..")],
        [("out", "../host")],
        [("deep/out", "../..")],
        [("in", "deep"), ("deep/out", "../in/../../..")],
        [("x/x", "."), ("out", "x/x/../../..")],
        [("over", ".."), ("over/host", None)],
        [("../host", None)],
        [("/../host", None)],
        [("a/../../host", "x")],
        [("in", "."), ("in/out", "../..")],
        [("d" * 200 + "/" + "d" * 200, "."), ("out", "/".join(["d" * 200] * 30) + "/../" * 31)],
    ],
    ids=lambda members: members[-1][0][:20],
)
async def test_nothing_lands_or_leads_elsewhere(
    packed: Callable[[bytes], None], tmp_path: Path, members: list[tuple[str, str | None]], kind: bytes
) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "host").write_text("old")
    target = parent / "target"
    packed(tar_of(*members, ("kept", None), kind=kind))
    await fetch(target)
    assert (parent / "host").read_text() == "old"
    assert sorted(path.name for path in parent.iterdir()) == ["host", "target"]
    assert (target / "kept").read_text() == "new"
    for at, folders, files in os.walk(target):
        for name in folders + files:
            assert (Path(at) / name).resolve().is_relative_to(target)
            assert (Path(at) / name).stat().st_nlink == 1 or (Path(at) / name).is_dir()


async def test_an_earlier_link_is_replaced_and_never_followed(packed: Callable[[bytes], None], tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "file").write_text("old")
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").symlink_to(tmp_path / "host" / "file")
    (target / "folder").symlink_to(tmp_path / "host")
    packed(tar_of(("file", None), ("folder/file", None)))
    await fetch(target)
    assert [(target / name).read_text() for name in ("file", "folder/file")] == ["new", "new"]
    assert (tmp_path / "host" / "file").read_text() == "old"


@pytest.mark.parametrize(
    ("source", "link", "to"),
    [
        ("/app/out", "app/out", "/"),
        ("/app/out/", "out", "."),
        ("/app/out", "app/out", ".."),
        ("/app/out", "out", "/app/./"),
        ("/app/in/out", "in/out", "../../app"),
        ("/app/out/app", "out", "/"),
        ("/app/out", ".dockerenv", None),
    ],
)
async def test_a_directory_that_contains_the_link_to_it_is_refused(
    packed: Callable[[bytes], None], tmp_path: Path, source: str, link: str, to: str | None
) -> None:
    packed(tar_of((link, to), ("more", None)))
    with pytest.raises(SandboxError, match="a link leads to a directory that contains the link"):
        await fetch(tmp_path / "target", source=source)
    assert not (tmp_path / "target" / "more").exists()


async def test_other_links_of_the_same_name_are_no_ways_to_it(packed: Callable[[bytes], None], tmp_path: Path) -> None:
    packed(tar_of(("out", "more"), ("in/out", "/app"), ("more", None), (".dockerenv/x", None)))
    await fetch(tmp_path / "target", source="/app/out")
    assert (tmp_path / "target" / "out").read_text() == "new"
    packed(tar_of((".dockerenv", None)))
    await fetch(tmp_path / "root", source="/")
    assert (tmp_path / "root" / ".dockerenv").exists()


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (extended(b"13 size=-1e9\n", size=3) + b"new" + bytes(509), "broken header: a number has no digits"),
        (extended(b"11 size=-9\n", size=3) + b"new" + bytes(509), "broken header: a number has no digits"),
        (extended(b"%d size=%s\n" % (3010, b"9" * 3000)), "broken header"),
        (extended(b"9" * 30_000), "header of 30000 bytes, more than 16384"),
        (extended(b"9" * 16_000), "broken header"),
        (extended(b"30000 size=1\n"), "broken header"),
        (extended(b"0 x=\n"), "broken header"),
        (extended(b"22 GNU.sparse.major=1\n"), "sparse file"),
        (extended(b"22 size=1099511627776\n"), "'file', 1099511627776 bytes, it is larger than 1 MiB"),
        (header("sparse", size=1 << 20, kind=b"S"), "can't have content"),
        (header("sparse", kind=b"S"), "of a kind that is not understood"),
        (header("large", size=(1 << 20) + 1), "'large', 1048577 bytes, it is larger than 1 MiB"),
        (header("huge", size=b"\x80" + (1 << 40).to_bytes(11)), "larger than 1 MiB"),
        (header("minus", size=b"\xff" * 12), "a number has no digits"),
        (header("minus", size=b"-0000000001\0"), "a number has no digits"),
        (header("folder", size=1 << 40 & 0o77777777777, kind=b"5") + bytes(512), None),
        (header("long", size=1 << 30, kind=b"L"), "header of 1073741824 bytes"),
        (b"garbage that is no archive".ljust(1024), "is no archive"),
        (header("d/" * 40 + "x") [:512], None),
        (extended(b"%d path=%s\n" % (300, b"d/" * 144 + b"x\n")[:300]), "nested deeper than 64|broken header"),
    ],
)  # fmt: skip
async def test_a_hostile_header_is_refused(
    packed: Callable[[bytes], None], tmp_path: Path, archive: bytes, reason: str | None
) -> None:
    packed(archive + _END)
    if reason is None:
        await fetch(tmp_path / "out")
    else:
        with pytest.raises(SandboxError, match=reason):
            await fetch(tmp_path / "out")
    assert not [
        name for at, _, files in os.walk(tmp_path / "out") for name in files if (Path(at) / name).stat().st_size
    ]


async def test_many_empty_members_pass_and_more_are_refused(packed: Callable[[bytes], None], tmp_path: Path) -> None:
    packed(b"".join(header(f"{number}") for number in range(100_000)) + _END)
    await fetch(tmp_path / "out")
    with os.scandir(tmp_path / "out") as entries:
        assert sum(1 for _ in entries) == 100_000
    packed(header("same", kind=b"5") * (MAX_ENTRIES + 1) + _END)
    with pytest.raises(SandboxError, match=f"more than {MAX_ENTRIES} files"):
        await fetch(tmp_path / "more")


async def test_what_is_left_out_is_never_written(packed: Callable[[bytes], None], tmp_path: Path) -> None:
    packed(tar_of(("cache/big", None), ("deep/cache/big", None), ("deep/file", None), ("link", "deep")))
    await fetch(tmp_path / "out", Choice(without=["cache"]))
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["deep", "file", "link"]
    await fetch(tmp_path / "files", Choice(include=["*file"]))
    assert sorted(path.name for path in (tmp_path / "files").rglob("*")) == ["deep", "file"]


async def test_the_client_has_the_word_where_it_fails(docker: Callable[[str], None], tmp_path: Path) -> None:
    docker("echo Could not find the file >&2; exit 1")
    with pytest.raises(SandboxError, match="failed: Could not find the file"):
        await fetch(tmp_path / "out")
    docker("head -c 700 /dev/zero | tr '\\0' x; exit 0")
    with pytest.raises(SandboxError, match="no archive"):
        await fetch(tmp_path / "out")
    docker("exit 0")
    with pytest.raises(SandboxError, match="sent no whole archive"):
        await fetch(tmp_path / "out")


async def test_a_reader_that_is_killed_is_an_error(packed: Callable[[bytes], None], tmp_path: Path) -> None:
    packed(tar_of(("file", None)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloads, "_BOOT", "import os; os.kill(os.getpid(), 9)")
        with pytest.raises(SandboxError, match=r"sent no whole archive|failed"):
            await fetch(tmp_path / "out")


async def test_it_is_read_in_another_process_and_cancelled_at_any_moment(
    docker: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "archive").write_bytes(header("file", size=1 << 19) + bytes(1000))
    docker(f"cat {shlex.quote(str(tmp_path / 'archive'))}; exec sleep 1000")
    before = len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208
    for delay in (0, 0.01, 0.05, 0.3):
        task = asyncio.ensure_future(fetch(tmp_path / "out"))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before  # noqa: PTH208
    task = asyncio.ensure_future(fetch(tmp_path / "out"))
    try:
        await asyncio.to_thread(_wait_for_bounded_reader)
    finally:
        task.cancel()
        await asyncio.wait([task])


def _wait_for_bounded_reader() -> None:
    """Return when a child that reads archives can write no file, which is one of its limits."""
    while True:
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split():
            place = Path("/proc") / pid
            if "reader.main()" in (place / "cmdline").read_text():
                limits = (place / "limits").read_text().splitlines()
                if any(line.split()[:5] == ["Max", "file", "size", "0", "0"] for line in limits):
                    return
        time.sleep(0.01)


def test_nothing_of_this_process_reads_archives_of_sandboxes() -> None:
    modules = "harbor_gym.sandboxes.docker.downloads, harbor_gym.sandboxes.archive.transfers"
    program = f"import sys, {modules}; print('tarfile' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
