"""Commands run as an ordinary user of this machine, made for that and removed again."""

import asyncio
import contextlib
import os
import pwd
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from harbor_gym._runtime.rootless import TUN, switch_refusal
from tests.helpers.bases import ensure_base_tar
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.local import make_sandbox, running
from tests.helpers.sharing import locked, shared_folder
from tests.helpers.tasks import BASE

_PREFIX = "harbor-gym-test-"
"""Of each user's name; the id of the test process that made it follows."""

_REPOSITORY = ROOT
_FIRST_ID, _IDS, _RANGES = 1 << 30, 65536, 4096
_FIRST_USER = 50000


@contextlib.contextmanager
def rootless_user() -> Generator[tuple[str, Path]]:
    """Make a user of this process's own, with subordinate ids, and a place for its home; remove both at the end.

    Skips the calling test where the kernel was set to give ordinary users no namespaces, as Ubuntu 24.04's is.
    """
    why, fix = switch_refusal()
    if why:
        pytest.skip(f"{why}: {fix}")
    user = f"{_PREFIX}{os.getpid()}"
    number = os.getpid() % _RANGES
    first = _FIRST_ID + number * _IDS
    ids = f"{first}-{first + _IDS - 1}"
    with _accounts():
        for known in pwd.getpwall():
            pid = known.pw_name.removeprefix(_PREFIX)
            if pid != known.pw_name and (known.pw_name == user or not Path(f"/proc/{pid}").exists()):
                _remove(known.pw_name)
        # Its ids are the same each time, and none are chosen for it: its files are used again.
        own_ids = ["--uid", str(_FIRST_USER + number), "-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0"]
        subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", *own_ids, user], check=True)
        subprocess.run(["usermod", "--add-subuids", ids, "--add-subgids", ids, user], check=True)
    try:
        # Not in a test's own folder, which only root may enter.
        with tempfile.TemporaryDirectory(dir="/tmp") as home:
            yield user, Path(home)
    finally:
        with _accounts():
            _remove(user)


@contextlib.contextmanager
def _accounts() -> Generator[None]:
    """Wait until no other test process changes accounts: the programs that do it give up where another one runs."""
    with locked(Path("/etc")):  # the files in it are replaced at every change
        yield


def _remove(user: str) -> None:
    subprocess.run(["userdel", user], capture_output=True, check=False)


def run_as(
    user: str, home: Path, *argv: str, base: Path, tun_mode: str = "666", around: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command as a user in a mount namespace of its own, where this Python and these sources can be read.

    Its store has the tests' base image, as ``.ci/bases.py`` made it once for all test processes of a run, and the
    image of most sandboxes.

    Args:
        user: The user's name.
        home: A directory to mount its home on, in memory: gone with the command.
        argv: The command, run in the repository.
        base: The root file system of that image.
        tun_mode: Mode of /dev/net/tun there, apart from this machine's own.
        around: A command that runs as root around all this, given its command at the end.
    """
    made = _make_home(user, home, base)
    if isinstance(made, subprocess.CompletedProcess):
        return made
    return _run(user, home, *argv, base=base, tun_mode=tun_mode, copied_from=made, around=around)


def _make_home(user: str, home: Path, base: Path) -> Path | subprocess.CompletedProcess[str]:
    """Return the home that the run's first user made, by its number, or what failed."""
    with shared_folder("rootless-homes") as shared:
        if found := [path for path in shared.iterdir() if path.name.isdecimal()]:
            return found[0]
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=shared))
        words = shlex.join([sys.executable, ".ci/bases.py", BASE])
        words = f"{words} && exec {shlex.join([sys.executable, '-m', __name__])}"
        made = _run(user, home, "sh", "-c", words, base=base, copied_to=partial)
        if made.returncode:
            return made
        return partial.rename(shared / str(pwd.getpwnam(user).pw_uid - _FIRST_USER))


_GIVE = """
import os, stat, sys
top, users, giver, taker, first, count = sys.argv[1], *map(int, sys.argv[2:])
def owner(now):
    if now == users + giver:
        return users + taker
    ids = first + giver * count
    return now + (taker - giver) * count if ids <= now < ids + count else now
names = [os.path.join(parent, name) for parent, folders, files in os.walk(top) for name in (*folders, *files)]
for name in (top, *names):
    status = os.lstat(name)
    os.lchown(name, owner(status.st_uid), owner(status.st_gid))
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o6000:
        os.chmod(name, stat.S_IMODE(status.st_mode))  # the change of the owner took setuid and setgid
"""
"""Makes one user's files, and those of its subordinate ids, another's; each user goes by its number."""


async def run_rootless(*arguments: str, tun_mode: str = "666") -> subprocess.CompletedProcess[str]:
    """Run this Python as a new user, see :func:`run_as`; a failure fails the test."""
    base = await ensure_base_tar()

    def run() -> subprocess.CompletedProcess[str]:
        with rootless_user() as (user, home):
            return run_as(user, home, sys.executable, *arguments, base=base, tun_mode=tun_mode)

    done = await asyncio.to_thread(run)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def _run(
    user: str,
    home: Path,
    *argv: str,
    base: Path,
    tun_mode: str = "666",
    copied_from: Path | None = None,
    copied_to: Path | None = None,
    around: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    number = pwd.getpwnam(user).pw_uid
    bases = home / ".cache/harbor_gym/bases"
    given = (home, _FIRST_USER, copied_from.name, number - _FIRST_USER, _FIRST_ID, _IDS) if copied_from else ()
    lines = [
        *("set -e", *_make_readable(home, [Path(sys.base_prefix), Path(sys.prefix), _REPOSITORY])),
        f"mount -t tmpfs -o mode=0700,uid={number},gid={number} tmpfs {home}",
        f"cp -a {copied_from}/. {home} && {shlex.join([sys.executable, '-ISc', _GIVE, *map(str, given)])}"
        if copied_from
        else f"mkdir -p {bases} {home}/tmp && touch {bases / base.name} && chown -R {number}:{number} {home}",
        f"mknod -m {tun_mode} {home}/tun c 10 200 && mount --bind {home}/tun {TUN}",
        f"mount --bind /proc/self/fd/3 {bases / base.name}",
        f"cd {_REPOSITORY}",
        f"setpriv --reuid {number} --regid {number} --clear-groups --inh-caps=-all {shlex.join(argv)} 3<&-",
    ]
    if copied_to:
        lines += [f"umount {bases / base.name} {TUN}", f"rm {home}/tun", f"cp -a {home}/. {copied_to}"]
    kept = {name: os.environ[name] for name in ("PATH", "GOGC")}
    environment = {**kept, "HOME": str(home), "TMPDIR": f"{home}/tmp", "LANG": "C.UTF-8"}
    return subprocess.run(
        [*around, "unshare", "--mount", "--propagation", "private", "sh", "-c", f"exec 3<{base}\n" + "\n".join(lines)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


def _make_readable(spare: Path, wanted: list[Path]) -> Iterator[str]:
    """Cover directories that only root may enter, and show only the wanted paths there."""
    closed = {path: found for path in wanted if (found := next(filter(_is_closed, reversed(path.parents)), None))}
    yield f"mount -t tmpfs tmpfs {spare}"
    for number, path in enumerate(closed):
        yield f"mkdir {spare}/{number} && mount --rbind {path} {spare}/{number}"
    for directory in sorted(set(closed.values())):
        yield f"mount -t tmpfs -o mode=0755 tmpfs {directory}"
    for number, path in enumerate(closed):
        yield f"mkdir -p {path} && mount --rbind {spare}/{number} {path}"


def _is_closed(directory: Path) -> bool:
    return not directory.stat().st_mode & 0o001


async def _build_image() -> None:
    async with running(make_sandbox(Path.home() / "tmp" / "first")):
        pass


if __name__ == "__main__":
    asyncio.run(_build_image())
