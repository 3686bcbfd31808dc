"""How one sandbox comes to be: an overlay on tmpfs for its files, bubblewrap for its first process."""

import contextlib
import os
import signal
import stat
from typing import Any, NoReturn

import cgroups
import syscalls
from inside import RequestError
from kernel import (
    KEPT_CAPABILITIES,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    bind_read_only,
    mount,
)

_READ_ONLY_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
"""Settings of the whole machine, which root could write without any capability. bubblewrap leaves /proc/sys open."""
_OF_INIT = ("1/oom_score_adj", "1/oom_adj")
"""Root inside could have the first process killed before all others, and the sandbox lost with it."""
_HIDDEN_PROC = ("kcore", "keys", "timer_list", "sched_debug", "kmsg")
_UNSHARED = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
"""Not --unshare-all: it makes a user namespace too, in which root's commands, being outside it, could do everything."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""bubblewrap binds the machine's own: root could change on the whole machine who may use them."""
_SHM_BYTES = 64 << 20
"""Docker's own default for /dev/shm."""
_BYTES_PER_FILE, _MIN_FILES = 8 << 10, 1 << 14
"""Room for as many files as a disk of the size would have, and half as many again: each takes memory of the kernel."""
_INIT = "echo up; exec >/dev/null 2>&1; while read -r _; do :; done"
"""PID 1: bash reaps what it inherits. Its stdin ends when the supervisor does, and the sandbox with it."""
_BASH = ("bash", "--norc", "--noprofile", "-c", _INIT)
_ANY_SHELL = f'b="{_INIT}"; if command -v bash >/dev/null 2>&1; then exec {" ".join(_BASH[:-1])} "$b"; fi; eval "$b"'


def mount_root(config: dict[str, Any]) -> None:
    """Mount the sandbox's files in a mount namespace of this process's own, and make their place the working directory.

    Everything written goes to memory, no more than ``storage_bytes`` of it.
    """
    os.unshare(os.CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    if not config["is_ordinary"]:
        for name in _DEVICES:
            # Can be written to all the same. bubblewrap keeps it so; its own --remount-ro would refuse all use.
            bind_read_only(f"/dev/{name}", f"/dev/{name}", MS_NOSUID)
    place: str = config["mountpoint"]
    storage: int = config["storage_bytes"]
    files = max(_MIN_FILES, storage // _BYTES_PER_FILE)
    mount("harbor-gym", place, "tmpfs", MS_NODEV, f"mode=0700,size={storage},nr_inodes={files}")
    os.chdir(place)
    # Short names: what mount(2) takes as options has to fit a page, and an image may have 127 layers.
    lowers = [str(number) for number in range(len(config["layers"]))]
    for name in (*lowers, "upper", "work", "root"):
        os.mkdir(name)  # noqa: PTH102  # pathlib would cost 20 ms of imports at every start
    for layer, name in zip(config["layers"], lowers, strict=True):
        mount(layer, name, None, MS_BIND)
    os.chmod("upper", 0o755)  # noqa: PTH101  # as above
    # In a user namespace an overlay's own notes are attributes that a user may write; else lower directories stay put.
    notes = ",userxattr" if config["is_ordinary"] else ""
    mount("overlay", "root", "overlay", MS_NODEV, f"lowerdir={':'.join(lowers)},upperdir=upper,workdir=work{notes}")


def guard_proc() -> None:
    """Cover what of /proc is the whole machine's. In the sandbox's namespaces, before any command runs there.

    bubblewrap would read the table of all mounts for each of these: 2 ms of a sandbox's start.
    """
    covers = [(f"/proc/{name}", f"/proc/{name}") for name in (*_READ_ONLY_PROC, *_OF_INIT)]
    covers += [("/dev/null", f"/proc/{name}") for name in _HIDDEN_PROC]
    for source, target in covers:
        if os.path.exists(target):  # noqa: PTH110  # pathlib would cost 20 ms of imports at every start
            bind_read_only(source, target, MS_NOSUID | MS_NODEV | MS_NOEXEC)


def files_bytes() -> int:
    """Return how much memory the sandbox's files take. Reads the working directory's file system."""
    state = os.statvfs(".")
    return (state.f_blocks - state.f_bfree) * state.f_frsize


def start_bwrap(
    config: dict[str, Any], joins: list[int], windows: list[tuple[str, str]]
) -> tuple[int, int, tuple[int, int]]:
    """Start bubblewrap in the control groups that ``joins`` leads to, with ``windows`` to be seen read-only inside.

    Returns:
        Its pid; a descriptor at whose close the sandbox ends; and what :func:`wait_for_init` needs.
    """
    log, rules = os.memfd_create("bwrap"), os.memfd_create("rules")
    os.write(rules, syscalls.program(os.uname().machine))
    os.lseek(rules, 0, os.SEEK_SET)
    stdin_read, keep_alive = os.pipe()
    up_read, up_write = os.pipe()
    # bubblewrap is the first process of a PID namespace, so that all it starts dies with it. By itself its second
    # process sets its death signal late: one whose first was killed before that waited for ever.
    os.unshare(os.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _become_bwrap(_bwrap_argv(config, windows, rules), joins, (stdin_read, up_write, log), rules)
    # There is no way back for an ordinary user's; it starts nothing else before it enters the sandbox's namespaces.
    for handle in (stdin_read, up_write, rules):
        os.close(handle)
    return pid, keep_alive, (up_read, log)


def wait_for_init(bwrap: int, answer: tuple[int, int]) -> int:
    """Return the pid of the sandbox's PID 1, bubblewrap's only child, when that runs.

    Raises:
        RequestError: bubblewrap refused, in its own words.
    """
    up_read, log = answer
    is_up = os.read(up_read, 16)
    said = os.pread(log, 2000, 0).decode("utf-8", "replace").strip()
    for handle in answer:
        os.close(handle)
    if not is_up:
        raise RequestError(said or "bubblewrap ended without a word")
    with open(f"/proc/{bwrap}/task/{bwrap}/children") as children:  # noqa: PTH123  # pathlib would cost 20 ms of imports
        return int(children.read())


def _become_bwrap(argv: list[str], joins: list[int], stdio: tuple[int, int, int], rules: int) -> NoReturn:
    try:
        for target, handle in enumerate(stdio):
            os.dup2(handle, target)
        cgroups.join(joins)
        os.set_inheritable(rules, True)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execve(argv[0], argv, dict(os.environ))
    except BaseException as exc:  # a forked child must never return into its parent's code
        os.write(2, str(exc).encode("utf-8", "replace"))
    finally:
        os._exit(126)


def _bwrap_argv(config: dict[str, Any], windows: list[tuple[str, str]], rules: int) -> list[str]:
    argv = [config["bwrap"], "--bind", f"{config['mountpoint']}/root", "/"]
    argv += ["--dev", "/dev", "--perms", "1777", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm"]
    argv += ["--remount-ro", "/dev", "--proc", "/proc"]
    if windows:
        argv += ["--tmpfs", "/sys", "--dir", "/sys/fs", "--dir", "/sys/fs/cgroup"]
        for source, target in windows:
            argv += ["--ro-bind", source, target]
        argv += ["--remount-ro", "/sys"]
    argv += [*_UNSHARED, "--hostname", "sandbox", "--die-with-parent", "--as-pid-1", "--new-session"]
    argv += ["--seccomp", str(rules), "--cap-drop", "ALL"]
    for name in KEPT_CAPABILITIES:
        argv += ["--cap-add", name.upper()]
    argv += ["--clearenv", "--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    return [*argv, "--chdir", "/", "--", *_init()]


def _init() -> tuple[str, ...]:
    """Return PID 1's arguments: bash itself where it is seen to be in its usual place, no link on the way."""
    with contextlib.suppress(OSError):
        modes = [os.lstat(path).st_mode for path in ("root/usr", "root/usr/bin", "root/usr/bin/bash")]
        if stat.S_ISDIR(modes[0]) and stat.S_ISDIR(modes[1]) and stat.S_ISREG(modes[2]) and modes[2] & stat.S_IXOTH:
            return (f"/usr/bin/{_BASH[0]}", *_BASH[1:])
    return ("/bin/sh", "-c", _ANY_SHELL)
