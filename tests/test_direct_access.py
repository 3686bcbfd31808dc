"""Directories that go into and out of a local sandbox without a process there, and those that tar has to take."""

import os
import shlex
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from harbor_gym.sandboxes import direct_access
from harbor_gym.sandboxes.local import LocalEnvironment
from tests.local_sandboxes import make_sandbox, output, running

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]
_LIST = (
    "find . -mindepth 1 -printf '%p %y %m %U:%G %T@\\n' | sort; find . -type f -print0 | sort -z | xargs -0 sha256sum"
)


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[LocalEnvironment]:
    """A running sandbox."""
    async with running(make_sandbox(tmp_path / "sandbox")) as made:
        yield made


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each transfer was done by: True for directly, False for tar."""
    took: list[bool] = []
    for name in ("upload", "download"):
        transfer = getattr(direct_access, name)

        def watched(*args: object, transfer: object = transfer) -> None:
            took.append(False)
            transfer(*args)  # type: ignore[operator]
            took[-1] = True

        monkeypatch.setattr(direct_access, name, watched)
    return took


def _plain(directory: Path) -> Path:
    (directory / "deep" / "empty").mkdir(parents=True)
    for number, mode in enumerate((0o644, 0o755, 0o600, 0o4711, 0o666, 0o070)):
        path = directory / "deep" / f"file {number}"
        path.write_bytes(os.urandom(1000 * number))
        path.chmod(mode)
    (directory / "deep" / "empty").chmod(0o1777)
    (directory / "näme\udcff").write_text("not UTF-8")
    for path in directory.rglob("*"):
        os.utime(path, (10**9, 10**9))  # a tar of Python's has no more than fits a float
    return directory


def _listed(directory: Path) -> list[tuple[str, int, float, bytes]]:
    found: list[tuple[str, int, float, bytes]] = []
    for path in sorted(directory.rglob("*")):
        status, is_file = path.lstat(), path.is_file()
        name = str(path.relative_to(directory))
        found.append((name, status.st_mode, status.st_mtime * is_file, path.read_bytes() if is_file else b""))
    return found


async def test_what_is_plain_is_the_same_by_either_way(
    sandbox: LocalEnvironment, ways: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _plain(tmp_path / "source")
    await sandbox.upload_dir(source, "/plain/direct")
    await sandbox.download_dir("/plain/direct", tmp_path / "direct")
    assert ways == [True, True]
    monkeypatch.setattr(direct_access, "_MAX_ENTRIES", 0)
    await sandbox.upload_dir(source, "/plain/tar")
    await sandbox.download_dir("/plain/tar", tmp_path / "tar")
    assert ways == [True, True, False, False]
    said = [await output(sandbox, _LIST, cwd=f"/plain/{way}") for way in ("direct", "tar")]
    assert said[0] == said[1]
    assert _listed(tmp_path / "direct") == _listed(tmp_path / "tar")
    assert (
        await output(sandbox, "stat -c '%a %U:%G' /plain /plain/direct /plain/tar")
        == "755 root:root\n" * 2 + "755 root:root"
    )


_HOST = "the machine's"


@pytest.mark.parametrize(
    "make",
    [
        "mkdir {place} && ln -s {host} {place}/link",
        "mkdir {place} && ln -s {host}/file {place}/link",
        "mkdir -p {place}/deep && ln -s {host} {place}/deep/link",
        "mkdir {place} && mkfifo {place}/fifo",
        "mkdir {place} && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"{place}/socket\")'",
        "mkdir {place} && truncate -s 100M {place}/large",
        "mkdir {place} && seq -f {place}/%g 600 | xargs touch",
        "d={place}; for i in $(seq 30); do d=$d/d; done; mkdir -p $d",
        "mkdir {place}-real && ln -s {place}-real {place}",
    ],
)
async def test_what_is_not_plain_is_left_to_tar_and_leads_nowhere(
    sandbox: LocalEnvironment, ways: list[bool], tmp_path: Path, make: str
) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "file").write_text(_HOST)
    place = f"/odd-{abs(hash(make))}"
    await output(sandbox, make.format(place=place, host=shlex.quote(str(host))))
    await sandbox.download_dir(place, tmp_path / "fetched")
    assert ways == [False]
    assert _HOST not in "".join(
        path.read_text() for path in (tmp_path / "fetched").rglob("*") if path.stat().st_size < 100 and path.is_file()
    )


async def test_nothing_is_written_through_a_link_of_the_sandboxs(
    sandbox: LocalEnvironment, ways: list[bool], tmp_path: Path
) -> None:
    host, source = tmp_path / "host", tmp_path / "source"
    for directory in (host, source):
        directory.mkdir()
    (source / "file").write_text("uploaded")
    (host / "file").write_text(_HOST)
    # What the link leads to is there on both sides.
    await output(
        sandbox, f"mkdir -p {host} /through/dir && ln -s {host} /through/link && ln -s {host}/file /through/dir/file"
    )
    for target in ("/through/link", "/through/link/new", "/through/dir"):
        await sandbox.upload_dir(source, target)
    assert ways == [False] * 3
    assert [(path.name, path.read_text()) for path in host.iterdir()] == [("file", _HOST)]
    assert await output(sandbox, f"cat {host}/file {host}/new/file /through/dir/file") == "uploaded" * 3


async def test_what_is_there_already_is_replaced_by_tar(
    sandbox: LocalEnvironment, ways: list[bool], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("new")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    await output(sandbox, "mkdir /there && echo old > /there/file && echo beside > /there/beside")
    await sandbox.upload_dir(source, "/there")
    assert await output(sandbox, "cat /there/file /there/beside") == "newbeside"
    (tmp_path / "fetched").mkdir()
    (tmp_path / "fetched" / "file").symlink_to(elsewhere)
    await sandbox.download_dir("/there", tmp_path / "fetched")
    assert (tmp_path / "fetched" / "file").read_text() == "new"
    assert elsewhere.read_text() == "kept"
    assert ways == [False, False]


def test_a_root_is_only_that_of_the_very_process() -> None:
    with pytest.raises(direct_access.NotPlainError, match="another one"), direct_access.root_of(os.getpid(), "1"):
        pytest.fail("a root of another process")
    with pytest.raises(direct_access.NotPlainError), direct_access.root_of(2**22 + 1, "1"):
        pytest.fail("a root of no process")
