"""What is packed for a sandbox, without one."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from harbor_gym.sandboxes import archive


def test_a_packed_directory_says_nothing_of_itself(tmp_path: Path) -> None:
    (tmp_path / "nested" / "empty").mkdir(parents=True)
    (tmp_path / "nested" / "file").write_text("x")
    (tmp_path / "link").symlink_to("nested/file")
    with archive.pack(tmp_path) as packed, tarfile.open(fileobj=packed) as tar:
        members = {member.name: member for member in tar}
    # With an entry for ".", unpacking would hand the target, a user's home perhaps, to root.
    assert set(members) == {"nested", "nested/empty", "nested/file", "link"}
    assert members["link"].issym()
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}


def sent(*members: tuple[str, str | None]) -> archive.Spool:
    """What a sandbox may send: files (name, None) that hold ``new``, and links (name, where to)."""
    spool = archive.Spool(1 << 20, "receive")
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, to in members:
            member = tarfile.TarInfo(name)
            if to is not None:
                member.type, member.linkname = tarfile.SYMTYPE, to
            member.size = 0 if to is not None else len(b"new")
            tar.addfile(member, io.BytesIO(b"new"))
    spool.add(written.getvalue())
    return spool


def test_links_that_stay_inside_are_kept(tmp_path: Path) -> None:
    members = ("deep/file", None), ("deep/same", "file"), ("top", "deep/file"), ("deep/up", "../top")
    with sent(*members) as spool:
        archive.unpack(spool, tmp_path / "out", 1 << 20)
    assert {name: (tmp_path / "out" / name).read_text() for name, _ in members} == {name: "new" for name, _ in members}


@pytest.mark.parametrize(
    "members",
    [
        [("out", "/")],
        [("out", "..")],
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
def test_nothing_lands_or_leads_elsewhere(tmp_path: Path, members: list[tuple[str, str | None]]) -> None:
    (tmp_path / "host").write_text("old")
    target = tmp_path / "target"
    with sent(*members, ("kept", None)) as spool:
        archive.unpack(spool, target, 1 << 20)
    assert (tmp_path / "host").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host", "target"]
    assert (target / "kept").read_text() == "new"
    for at, folders, files in os.walk(target):
        for name in folders + files:
            assert (Path(at) / name).resolve().is_relative_to(target)


def test_an_earlier_link_is_replaced_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "file").write_text("old")
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").symlink_to(tmp_path / "host" / "file")
    (target / "folder").symlink_to(tmp_path / "host")
    with sent(("file", None), ("folder/file", None)) as spool:
        archive.unpack(spool, target, 1 << 20)
    assert (target / "file").read_text() == "new"
    assert (tmp_path / "host" / "file").read_text() == "old"
