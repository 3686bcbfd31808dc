"""Transfers of files into and out of a local sandbox, for every owner and any content of the sandbox.

Each function is one test. As a program, for an ordinary user, it runs all and prints the failures as JSON.
"""

import asyncio
import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harbor_gym.errors import SandboxError, SandboxLostError, SandboxTimeoutError
from harbor_gym.sandboxes.archive import transfers
from harbor_gym.sandboxes.archive.trees.records import MAX_ENTRIES, SEGMENT, Stream
from harbor_gym.sandboxes.local.environment import LocalEnvironment
from harbor_gym.sandboxes.supervisor import carrier
from tests.helpers.hostile.behaviours import behaviours_of, run_as_program
from tests.helpers.patience import eventually
from tests.helpers.sandboxes.local import make_sandbox, output, running

_HOSTS = "the machine's"


def _tree(directory: Path) -> Path:
    """Make files of several modes, an empty directory and a link."""
    (directory / "deep" / "empty").mkdir(parents=True)
    for number, mode in enumerate((0o644, 0o755, 0o600, 0o4711, 0o666, 0o470)):
        path = directory / "deep" / f"file {number}"
        path.write_bytes(os.urandom(1000 * number))
        path.chmod(mode)
        os.utime(path, (10**9, 10**9))
    (directory / "deep" / "empty").chmod(0o1777)
    (directory / "deep" / "link").symlink_to("file 1")
    (directory / "out").symlink_to("/etc/hostname")
    return directory


def _contents(directory: Path) -> dict[str, bytes | str | None]:
    found: dict[str, bytes | str | None] = {}
    for path in sorted(directory.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(directory))] = content
    return found


# --- after any change of its programs by the policy --------------------------------------------------------------


async def no_program_of_the_sandbox_takes_part(sandbox: LocalEnvironment, scratch: Path) -> None:
    source = _tree(scratch / "source")
    await output(
        sandbox,
        "mkdir -p /there/cache; echo kept > /there/file; echo out > /there/cache/big; ln -s file /there/link\n"
        "printf '#!/bin/bash\\necho called >> /called\\n' > /false; chmod 755 /false\n"
        "python3 - << 'END'\nimport os, shutil\n"
        "for name in 'tar sh cat mkdir chmod chown cp find gzip rm ls dirname'.split():\n"
        "    for folder in ('/usr/local/bin', '/usr/bin', '/bin'):\n"
        "        shutil.copy('/false', '/new'); os.rename('/new', f'{folder}/{name}')\nEND",
    )
    await sandbox.upload_dir(source, "/new/place")
    await sandbox.upload_file(source / "deep" / "file 5", "/new/single/file")
    await sandbox.download_dir("/new/place", scratch / "back")
    await sandbox.download_dir("/there", scratch / "there")
    await sandbox.download_dir_with_exclusions(
        source_dir="/there", target_dir=scratch / "some", exclude=["cache", "l*k"]
    )
    await sandbox.download_file("/new/single/file", scratch / "file")
    expected = _contents(source)
    del expected["out"]
    assert _contents(scratch / "back") == expected
    assert _contents(scratch / "there") == {"cache": None, "cache/big": b"out\n", "file": b"kept\n", "link": "file"}
    assert _contents(scratch / "some") == {"file": b"kept\n"}
    assert (scratch / "file").read_bytes() == (source / "deep" / "file 5").read_bytes()
    await output(sandbox, "[ ! -e /called ]")


async def nobody_inside_sees_or_stops_a_transfer(sandbox: LocalEnvironment, scratch: Path) -> None:
    await output(sandbox, "mkdir /big && head -c 3000000 /dev/urandom > /big/file")
    before = await output(sandbox, "echo /proc/[0-9]*")
    started, go_on = threading.Event(), threading.Event()
    sizes: list[int] = []

    def work(stream: Stream, _check: Callable[[], None]) -> None:
        stream.receive()
        started.set()
        go_on.wait(60)
        while (record := stream.receive()).kind == SEGMENT:
            sizes.append(len(record.body))

    spec = {"work": "download_dir", "path": "/big", "limit_bytes": 1 << 30, "choice": {}}
    transfer = asyncio.ensure_future(sandbox._running().carry(spec, work))  # pyright: ignore[reportPrivateUsage]
    try:
        await asyncio.to_thread(started.wait, 60)
        # Each listing has the pid of the shell that makes it.
        assert len((await output(sandbox, "echo /proc/[0-9]*")).split()) == len(before.split())
        await sandbox.exec("kill -KILL -1")
    finally:
        go_on.set()
    await transfer
    assert sum(sizes) == 3_000_000


# --- large files -------------------------------------------------------------------------------------------------


async def a_sparse_terabyte_is_refused_by_its_name(sandbox: LocalEnvironment, scratch: Path) -> None:
    await output(sandbox, "mkdir /wide && truncate -s 1T /wide/sparse")
    for download in (
        sandbox.download_dir("/wide", scratch / "wide"),
        sandbox.download_file("/wide/sparse", scratch / "one"),
    ):
        with pytest.raises(SandboxError, match=r"'(wide/)?sparse', 1099511627776 bytes, .*larger than 8192 MiB"):
            await download
    assert not (scratch / "one").exists()
    assert not (scratch / "wide" / "sparse").exists()


async def a_terabyte_of_this_machine_is_refused_too(sandbox: LocalEnvironment, scratch: Path) -> None:
    (scratch / "source").mkdir()
    with (scratch / "source" / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    for upload in (
        sandbox.upload_dir(scratch / "source", "/up"),
        sandbox.upload_file(scratch / "source" / "sparse", "/up/one"),
    ):
        with pytest.raises(SandboxError, match=r"'sparse', 1099511627776 bytes, .*larger than 8192 MiB"):
            await upload


async def holes_stay_holes(sandbox: LocalEnvironment, scratch: Path) -> None:
    await output(
        sandbox, "truncate -s 1G /holes && printf middle | dd of=/holes bs=1 seek=500M conv=notrunc status=none"
    )
    await sandbox.download_file("/holes", scratch / "holes")
    status = (scratch / "holes").stat()
    assert status.st_size == 1 << 30
    assert status.st_blocks * 512 < 1 << 20
    with (scratch / "holes").open("rb") as file:
        file.seek(500 << 20)
        assert file.read(7) == b"middle\0"
    await sandbox.upload_file(scratch / "holes", "/again")
    blocks, digest = (await output(sandbox, "stat -c %b /again; cmp /holes /again && echo same")).split()
    assert int(blocks) * 512 < 1 << 20
    assert digest == "same"


async def twenty_thousand_empty_files_pass(sandbox: LocalEnvironment, scratch: Path) -> None:
    make = "import os; os.mkdir('/many'); [os.close(os.open(f'/many/{n}', os.O_CREAT)) for n in range(20_000)]"
    await output(sandbox, f'python3 -c "{make}"')
    await sandbox.download_dir("/many", scratch / "many")
    with os.scandir(scratch / "many") as entries:
        assert sum(1 for _ in entries) == 20_000


async def too_many_files_are_refused(sandbox: LocalEnvironment, scratch: Path) -> None:
    make = f"import os; os.mkdir('/more'); [os.symlink('x', f'/more/{{n}}') for n in range({MAX_ENTRIES + 1})]"
    await output(sandbox, f'python3 -c "{make}"')
    with pytest.raises(SandboxError, match=f"more than {MAX_ENTRIES} files"):
        await sandbox.download_dir("/more", scratch / "more")


async def deep_directories_pass_up_to_a_limit(sandbox: LocalEnvironment, scratch: Path) -> None:
    make = (
        "python3 -c \"import os; os.mkdir('/nest-{0}'); os.chdir('/nest-{0}')\n"
        "for n in range({0}): os.mkdir('d'); os.chdir('d')\nprint('end', file=open('file', 'w'))\""
    )
    for depth in (60, 65, 1000):
        await output(sandbox, make.format(depth))
    await sandbox.download_dir("/nest-60", scratch / "fine")
    assert (scratch / "fine" / ("d/" * 60) / "file").read_text() == "end\n"
    for depth in (65, 1000):
        with pytest.raises(SandboxError, match="nested deeper than 64"):
            await sandbox.download_dir(f"/nest-{depth}", scratch / str(depth))


async def a_full_sandbox_says_so_and_lives(sandbox: LocalEnvironment, scratch: Path) -> None:
    source = scratch / "large"
    source.write_bytes(os.urandom(40 << 20))
    async with running(make_sandbox(scratch / "small", config={"storage_mb": 32})) as small:
        with pytest.raises(SandboxError, match=r"large.*: No space left on device: .*storage_mb"):
            await small.upload_file(source, "/srv/large")
        assert await output(small, "ls /srv") == ""
        await output(small, "echo fine > /srv/file")


async def a_full_machine_says_so(sandbox: LocalEnvironment, scratch: Path) -> None:
    await output(sandbox, "echo x > /fits")
    with pytest.raises(SandboxError, match=r"this machine can't write below /dev/full: .*No space left"):
        await sandbox.download_file("/fits", Path("/dev/full"))


# --- changes meanwhile -------------------------------------------------------------------------------------------

_SWAPPER = """
import os, shutil
os.makedirs("/swap/d", exist_ok=True)
os.chdir("/swap")
def clear(name):
    try: os.unlink(name)
    except IsADirectoryError: shutil.rmtree(name)
    except FileNotFoundError: pass
kinds = [
    lambda n: os.symlink("HOST", n), lambda n: os.symlink("HOST/secret", n), os.mkfifo, os.mkdir,
    lambda n: open(n, "w").write("mine"), lambda n: (os.mkdir(n), open(n + "/secret", "w").write("mine")),
]
turn = 0
while True:
    for name in ("a", "b", "d/c", "d"):
        turn += 1
        try:
            clear(name)
            kinds[turn % len(kinds)](name)
        except OSError: pass
    turn += 1
"""


async def what_is_swapped_meanwhile_leads_nowhere(sandbox: LocalEnvironment, scratch: Path) -> None:
    host = scratch / "host"
    host.mkdir()
    (host / "secret").write_text(_HOSTS)
    await _start(sandbox, "/swap.py", _SWAPPER.replace("HOST", str(host)), scratch)
    for number in range(16):
        await sandbox.download_dir("/swap", scratch / f"swap-{number}")
        for name in ("a", "d/c"):
            with contextlib.suppress(SandboxError):
                await sandbox.download_file(f"/swap/{name}", scratch / f"swap-{number}-file")
    found = {content for path, content in _contents(scratch).items() if path.startswith("swap-")}
    assert _HOSTS.encode() not in found
    assert b"mine" in found
    source = scratch / "source"
    source.mkdir()
    for name in ("a", "b", "secret"):
        (source / name).write_text("uploaded")
    for _ in range(16):
        with contextlib.suppress(SandboxError):
            await sandbox.upload_dir(source, "/swap/d")
    assert {path.name: path.read_text() for path in host.iterdir()} == {"secret": _HOSTS}
    await sandbox.exec("pkill python3")


_GROWER = """
import os, itertools
os.mkdir("/grow")
file = os.open("/grow/file", os.O_CREAT | os.O_RDWR)
for turn in itertools.count():
    os.pwrite(file, b"x" * 300_000, turn % 7 * 300_000)
    if turn % 5 == 0: os.ftruncate(file, turn % 11 * 90_000)
"""


async def a_file_that_grows_and_shrinks_meanwhile_comes_in_some_state(sandbox: LocalEnvironment, scratch: Path) -> None:
    await _start(sandbox, "/grow.py", _GROWER, scratch)
    for number in range(25):
        await sandbox.download_dir("/grow", scratch / f"grow-{number}")
        assert set((scratch / f"grow-{number}" / "file").read_bytes()) <= set(b"x\0")
    await sandbox.exec("pkill python3")


async def _start(sandbox: LocalEnvironment, name: str, program: str, scratch: Path) -> None:
    (scratch / "program").write_text(program)
    await sandbox.upload_file(scratch / "program", name)
    await output(sandbox, f"setsid python3 {name} >/dev/null 2>&1 & while [ ! -e {name[:-3]} ]; do sleep 0.05; done")


# --- names and links ---------------------------------------------------------------------------------------------


async def any_name_makes_the_round_trip(sandbox: LocalEnvironment, scratch: Path) -> None:
    names = [b"new\nline", b"\xff\xfe", "ünï".encode(), b"-dash", b"$(x)", b"\x01", b"n" * 255, b" "]
    source = scratch / "source"
    source.mkdir()
    for number, name in enumerate(names):
        (source / os.fsdecode(name)).write_text(str(number))
    await sandbox.upload_dir(source, "/odd")
    await sandbox.download_dir("/odd", scratch / "back")
    assert _contents(scratch / "back") == _contents(source)
    for name in names:
        await sandbox.download_file(f"/odd/{os.fsdecode(name)}", scratch / "one")
        assert (scratch / "one").read_bytes() == (source / os.fsdecode(name)).read_bytes()
    with pytest.raises((SandboxError, ValueError)):
        await sandbox.download_file("/odd/\0", scratch / "none")


async def links_on_the_way_are_followed_inside(sandbox: LocalEnvironment, scratch: Path) -> None:
    host, source = scratch / "host", scratch / "source"
    host.mkdir()
    source.mkdir()
    (host / "file").write_text(_HOSTS)
    (source / "file").write_text("uploaded")
    await output(
        sandbox,
        f"mkdir -p {host} /real/deep; ln -s real /tests; ln -s /real/deep /real/absolute; ln -s ../../../../real /up\n"
        f"ln -s {host} /real/host; ln -s loop /loop; ln -s /nowhere/at/all /dangling; ln -s /real/deep/file /one\n"
        "ln -s /proc/1/root/real /magic; ln -s ../real/./deep/.. /dots",
    )
    for target in ("/tests", "/tests/absolute/new", "/up/host", "/var/run/new", "/dots/by", "/../../top"):
        await sandbox.upload_dir(source, target)
    await sandbox.upload_file(source / "file", "/tests/deep")
    printed = "cat /real/file /real/deep/new/file /run/new/file /real/by/file /top/file /real/deep/file"
    assert await output(sandbox, f"{printed} {host}/file") == "uploaded" * 7
    await sandbox.download_file("/one", scratch / "one")
    assert (scratch / "one").read_text() == "uploaded"
    await sandbox.download_dir("/up/absolute", scratch / "dir")
    assert _contents(scratch / "dir") == {"file": b"uploaded", "new": None, "new/file": b"uploaded"}
    assert _contents(host) == {"file": _HOSTS.encode()}
    with contextlib.suppress(SandboxError):  # only a process with the first one's rights may read that link
        await sandbox.upload_dir(source, "/magic")
    assert _contents(host) == {"file": _HOSTS.encode()}
    for bad in ("/loop", "/dangling", "/real/file/x"):
        with pytest.raises(SandboxError):
            await sandbox.upload_dir(source, bad)
        with pytest.raises(SandboxError):
            await sandbox.download_file(bad, scratch / "bad")
        with pytest.raises(SandboxError):
            await sandbox.download_dir(bad, scratch / "bad")


async def links_that_lead_out_stay_out(sandbox: LocalEnvironment, scratch: Path) -> None:
    await output(
        sandbox,
        "mkdir -p /out/x /out/deep/er; cd /out; echo x > file; ln -s / root; ln -s .. up; ln -s ../.. deep/over\n"
        "ln -s . x/x; ln -s x/x/../../.. sly; ln -s deep/../../.. tricky; ln -s file kept; ln -s ../file deep/kept\n"
        "ln -s ../../file deep/er/kept; ln -s ../../../file deep/er/out; ln file hard; mkfifo pipe\n"
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'",
    )
    await sandbox.download_dir("/out", scratch / "back")
    links = {"deep/er/kept": "../../file", "deep/kept": "../file", "kept": "file", "x/x": "."}
    folders: dict[str, Any] = dict.fromkeys(("deep", "deep/er", "x"))
    assert _contents(scratch / "back") == {**links, **folders, "file": b"x\n", "hard": b"x\n"}


async def a_link_to_all_around_it_is_refused(sandbox: LocalEnvironment, scratch: Path) -> None:
    await output(
        sandbox,
        "mkdir -p /around/deep/found; echo it > /around/deep/found/file; cd /around/deep\n"
        "ln -s / root; ln -s .. above; ln -s root again; ln -s found beside",
    )
    for name in ("root", "root/", "above", "again", "root/around", "beside/../../deep/above/../around"):
        with pytest.raises(SandboxError, match="a link leads to a directory that contains the link"):
            await sandbox.download_dir(f"/around/deep/{name}", scratch / "out")
    assert not any((scratch / "out").rglob("*"))
    for name in ("beside", "root/around/deep/found", "above/deep/found"):
        await sandbox.download_dir(f"/around/deep/{name}", scratch / name)
        assert (scratch / name / "file").read_text() == "it\n"


async def what_stands_in_the_way_gives_way(sandbox: LocalEnvironment, scratch: Path) -> None:
    source = scratch / "source"
    (source / "dir").mkdir(parents=True)
    for name in ("file", "pipe", "link", "folder", "dir/file"):
        (source / name).write_text("uploaded")
    (source / "new-link").symlink_to("file")
    await output(
        sandbox,
        "mkdir -p /way/folder/full/er /kept /elsewhere; cd /way; echo old > file; mkfifo pipe\n"
        "ln -s /kept/target link\n"
        "echo kept > /kept/target; touch folder/full/er/x; ln -s /elsewhere dir; mkdir new-link; echo beside > beside\n"
        "chown 1234:4321 /way; chmod 2750 /way; ln -s /nowhere/at/all /way/dangling; ln file hard",
    )
    await sandbox.upload_dir(source, "/way")
    await sandbox.upload_file(source / "file", "/way/dangling")
    assert await output(sandbox, "cat file pipe link folder dir/file new-link dangling", cwd="/way") == "uploaded" * 7
    assert await output(sandbox, "cat beside hard /kept/target; ls /elsewhere", cwd="/way") == "beside\nold\nkept"
    # A directory that was there keeps owner and mode; a new file is root's, also in a directory that hands on a group.
    printed = await output(
        sandbox, "stat -c '%a %u:%g' /way /way/file /way/dir /way/new-link; stat -c %F new-link", cwd="/way"
    )
    assert printed == "2750 1234:4321\n644 0:0\n755 0:0\n777 0:0\nsymbolic link"


async def what_comes_back_is_the_callers_and_harmless(sandbox: LocalEnvironment, scratch: Path) -> None:
    await output(
        sandbox,
        "mkdir /mine; cd /mine; for m in 4755 2644 666 777 000 700; do echo $m > $m; chmod $m $m; done; chown 1234 *\n"
        "mkdir locked; echo x > locked/file; chmod 000 locked; touch -d @9223372036854775807 late 2>/dev/null || true",
    )
    await sandbox.download_dir("/mine", scratch / "mine")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (scratch / "mine").iterdir() if path.is_file()}
    modes.pop("late", None)
    assert modes == {"4755": 0o755, "2644": 0o644, "666": 0o644, "777": 0o755, "000": 0o600, "700": 0o700}
    assert {path.stat().st_uid for path in (scratch / "mine").rglob("*")} == {os.getuid()}
    assert (scratch / "mine" / "locked" / "file").read_text() == "x\n"


async def the_kernels_own_files_are_read(sandbox: LocalEnvironment, scratch: Path) -> None:
    await sandbox.download_file("/proc/version", scratch / "version")
    assert (scratch / "version").read_text().startswith("Linux")


async def modes_and_owners_are_kept_on_the_way_in(sandbox: LocalEnvironment, scratch: Path) -> None:
    source = _tree(scratch / "source")
    await sandbox.upload_dir(source, "/in")
    listed = "find . -mindepth 1 -printf '%p %y %m %U:%G %Ts\\n' | grep -v ' [dl] ' | sort; stat -c '%a %F' deep/empty"
    names = enumerate((644, 755, 600, 4711, 666, 470))
    expected = [f"./deep/file {number} f {mode} 0:0 1000000000" for number, mode in names]
    assert (await output(sandbox, listed, cwd="/in")).splitlines() == [*expected, "1777 directory"]
    assert await output(sandbox, "readlink deep/link out", cwd="/in") == "file 1\n/etc/hostname"


async def files_are_chosen_by_patterns(sandbox: LocalEnvironment, scratch: Path) -> None:
    await output(
        sandbox,
        "mkdir -p /logs-x/a/b /logs-x/none; cd /logs-x; echo 1 > a/one.log; echo 2 > a/b/two.txt; echo 3 > c.log",
    )
    chosen = {"include": ["*.log"], "exclude": ["c*"], "protect": ["a/b/two.txt"]}
    await sandbox.download_dir_filtered(source_dir="/logs-x", target_dir=scratch / "some", **chosen)
    assert _contents(scratch / "some") == {"a": None, "a/one.log": b"1\n", "a/b": None, "a/b/two.txt": b"2\n"}
    await sandbox.download_dir_filtered(source_dir="/logs-x", target_dir=scratch / "all")
    assert len(_contents(scratch / "all")) == 6


# --- the processes ------------------------------------------------------------------------------------------------


async def transfers_that_follow_one_another_have_one_process(sandbox: LocalEnvironment, scratch: Path) -> None:
    (scratch / "file").write_text("content")
    carriers = sandbox._running()._carriers  # pyright: ignore[reportPrivateUsage]

    def waits() -> int | None:
        waiting = carriers._waiting  # pyright: ignore[reportPrivateUsage]
        return waiting and waiting._process and waiting._process.pid  # pyright: ignore[reportPrivateUsage]

    before = _held()
    await sandbox.upload_file(scratch / "file", "/file")
    first = waits()
    assert first
    await sandbox.download_file("/file", scratch / "back")
    assert waits() == first
    await asyncio.gather(*(sandbox.download_file("/file", scratch / f"back-{number}") for number in range(3)))
    assert [content for name, content in _contents(scratch).items() if name.startswith("back")] == [b"content"] * 4
    last = waits()
    assert last
    os.kill(last, signal.SIGKILL)
    await eventually(lambda: not Path(f"/proc/{last}").exists())
    await sandbox.download_file("/file", scratch / "after")
    assert waits() not in (None, last)
    with pytest.raises(SandboxError, match="No such file"):
        await sandbox.download_file("/none", scratch / "none")
    assert waits() is None  # one that failed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrier, "_IDLE_SEC", 0.05)
        await sandbox.download_file("/file", scratch / "last")
        await eventually(lambda: waits() is None and _held() == before)


async def a_small_transfer_needs_no_thread(sandbox: LocalEnvironment, scratch: Path) -> None:
    source = scratch / "source"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "file").write_bytes(b"x" * 1000)
    (source / "link").symlink_to("folder/file")
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(transfers, "ThreadPoolExecutor")
        await sandbox.upload_dir(source, "/small")
        await sandbox.upload_file(source / "folder" / "file", "/small/two")
        await sandbox.download_dir("/small", scratch / "back")
        await sandbox.download_file("/small/link", scratch / "one")
        with pytest.raises(SandboxError, match="No such file"):
            await sandbox.download_file("/none", scratch / "none")
        with pytest.raises(SandboxError, match="Not a directory"):
            await sandbox.upload_file(source / "folder" / "file", "/small/two/three")
    assert _contents(scratch / "back") == {**_contents(source), "two": b"x" * 1000}
    assert (scratch / "one").read_bytes() == b"x" * 1000
    for number in range(200):
        (source / str(number)).touch()
    (source / "large").write_bytes(b"x" * 20_000)
    await sandbox.upload_dir(source, "/large")
    await sandbox.download_dir("/large", scratch / "all")
    assert _contents(scratch / "all") == _contents(source)


async def a_process_that_outlived_its_sandbox_moves_nothing_more(sandbox: LocalEnvironment, scratch: Path) -> None:
    carriers, name = carrier.Carriers(), "/etc/hostname"
    async with running(make_sandbox(scratch / "other")) as other:
        target = other._running()._require_target()  # pyright: ignore[reportPrivateUsage]

        async def way(spec: Mapping[str, Any], work: transfers.Work) -> None:
            await carriers.carry(target, spec, work)

        await transfers.download_file(way, name, scratch / "one", 1 << 20)
    with pytest.raises(SandboxLostError, match="is gone"):
        await transfers.download_file(way, name, scratch / "two", 1 << 20)
    await carriers.end()


# --- the end -----------------------------------------------------------------------------------------------------


def _held() -> tuple[int, set[str]]:
    return len(os.listdir("/proc/self/fd")), {thread.name for thread in threading.enumerate()}  # noqa: PTH208


async def cancelled_at_any_moment_nothing_stays(sandbox: LocalEnvironment, scratch: Path) -> None:
    source = scratch / "source"
    source.mkdir()
    for number in range(300):
        (source / str(number)).write_bytes(b"x" * 10_000)
    await sandbox.upload_dir(source, "/files")
    await sandbox.download_dir("/files", scratch / "first")
    carriers = sandbox._running()._carriers  # pyright: ignore[reportPrivateUsage]
    await carriers.end()
    before = _held()
    for delay_ms in range(0, 60, 3):
        for work in (
            sandbox.upload_dir(source, f"/up-{delay_ms}"),
            sandbox.download_dir("/files", scratch / f"down-{delay_ms}"),
        ):
            task = asyncio.ensure_future(work)
            await asyncio.sleep(delay_ms / 1000)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
            await carriers.end()
            assert _held() == before
    await sandbox.download_dir("/files", scratch / "last")
    assert len(list((scratch / "last").iterdir())) == 300


def _wait_for_ever(stream: Stream, _check: Callable[[], None]) -> None:
    stream.receive()


_IDLE = {"work": "upload_dir", "path": "/idle", "limit_bytes": 1}
"""The other side waits, too."""


async def a_transfer_ends_with_its_sandbox(sandbox: LocalEnvironment, scratch: Path) -> None:
    async with running(make_sandbox(scratch / "other")) as other:
        way = other._running().carry  # pyright: ignore[reportPrivateUsage]
        transfer = asyncio.ensure_future(way(_IDLE, _wait_for_ever))
        await asyncio.sleep(0.2)
        before = _held()
        await other.stop(delete=True)
        with pytest.raises(SandboxLostError):
            await transfer
        assert _held() != before


async def a_transfer_that_takes_too_long_is_given_up(sandbox: LocalEnvironment, scratch: Path) -> None:
    before = _held()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfers, "TIMEOUT_SEC", 0.3)
        with pytest.raises(SandboxTimeoutError, match=r"longer than 0\.3 s"):
            await sandbox._running().carry(_IDLE, _wait_for_ever)  # pyright: ignore[reportPrivateUsage]
    assert _held() == before
    await output(sandbox, "echo lives")


BEHAVIOURS = behaviours_of(globals())
"""All of them."""

FOR_ROOT = (twenty_thousand_empty_files_pass, too_many_files_are_refused)
"""Files are counted in the archive, for any owner of the sandbox; so many take seconds."""

if __name__ == "__main__":
    run_as_program([behaviour for behaviour in BEHAVIOURS if behaviour not in FOR_ROOT])
