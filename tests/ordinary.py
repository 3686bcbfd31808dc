"""Commands run as an ordinary user of this machine, made for that and removed again."""

import contextlib
import os
import pwd
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

_USER = "harbor-gym-test"
_REPOSITORY = Path(__file__).parents[1]
_FIRST_ID, _IDS = 1 << 30, 65536


@contextlib.contextmanager
def ordinary_user() -> Generator[tuple[str, Path]]:
    """Make a user with subordinate ids, and a place for its home; remove both at the end."""
    _remove()
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", _USER], check=True)
    try:
        ids = f"{_FIRST_ID}-{_FIRST_ID + _IDS - 1}"
        subprocess.run(["usermod", "--add-subuids", ids, "--add-subgids", ids, _USER], check=True)
        # Not in a test's own folder, which only root may enter.
        with tempfile.TemporaryDirectory(dir="/tmp") as home:
            yield _USER, Path(home)
    finally:
        _remove()


def _remove() -> None:
    subprocess.run(["userdel", _USER], capture_output=True, check=False)


def run_as(user: str, home: Path, *argv: str, base: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user in a mount namespace of its own, where this Python and these sources can be read.

    Args:
        user: Who.
        home: A directory to mount its home on, in memory: gone with the command.
        argv: What, in the repository.
        base: The offline base, to be found in the user's cache.
    """
    number = pwd.getpwnam(user).pw_uid
    bases = home / ".cache/harbor_gym/bases"
    lines = ["set -e", *_make_readable(home, [Path(sys.base_prefix), Path(sys.prefix), _REPOSITORY])]
    lines += [
        f"mount -t tmpfs -o mode=0700,uid={number},gid={number} tmpfs {home}",
        f"mkdir -p {bases} {home}/tmp && touch {bases / base.name} && chown -R {number}:{number} {home}",
        f"mount --bind /proc/self/fd/3 {bases / base.name}",
        f"cd {_REPOSITORY}",
        f"exec setpriv --reuid {number} --regid {number} --clear-groups --inh-caps=-all {shlex.join(argv)} 3<&-",
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": f"{home}/tmp", "LANG": "C.UTF-8"}
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"exec 3<{base}\n" + "\n".join(lines)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


def _make_readable(spare: Path, wanted: list[Path]) -> Iterator[str]:
    """Cover directories that only root may enter, and show nothing there but what is wanted."""
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
