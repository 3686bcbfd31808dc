"""Test whether this kernel can show a directory's files with other owners, as sandboxes with private ids need."""

import os

from kernel.calls import MS_PRIVATE, MS_REC, bind_shifted, mount, write_file
from kernel.ids import PROBE_RANGE, extents_of, written

_PLACE = "/tmp"


def refusal(directory: str) -> str:
    """Return why an overlay on a directory of shifted ids fails; empty if it works. Leaves nothing behind."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _try(directory)
        except BaseException as exc:  # a forked child must never return into its parent's code
            os.write(writer, str(exc).encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(writer)
    output = os.read(reader, 2000).decode()
    os.waitpid(pid, 0)
    return output


def _try(directory: str) -> None:
    up, ready = os.pipe()
    go, _held = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.unshare(os.CLONE_NEWUSER)
        os.write(ready, b"u")
        os.close(_held)
        os.read(go, 1)
        os._exit(0)
    os.close(ready)
    os.read(up, 1)
    try:
        _mount(directory, pid)
    finally:
        os.close(_held)
        os.waitpid(pid, 0)  # where PID 1 collects nothing, it would stay for ever


def _mount(directory: str, pid: int) -> None:
    for name in ("uid_map", "gid_map"):
        write_file(f"/proc/{pid}/{name}", written(extents_of(PROBE_RANGE)))
    user_namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    os.unshare(os.CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    os.chdir(directory)
    mount("probe", _PLACE, "tmpfs", 0)
    for name in ("lower", "upper", "work", "root"):
        os.mkdir(f"{_PLACE}/{name}")  # noqa: PTH102  # pathlib would cost 20 ms of imports
    bind_shifted(".", f"{_PLACE}/lower", user_namespace)
    os.chdir(_PLACE)
    mount("overlay", "root", "overlay", 0, "lowerdir=lower,upperdir=upper,workdir=work")
