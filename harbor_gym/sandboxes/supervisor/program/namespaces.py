"""Build one sandbox: an overlay on tmpfs for its files, namespaces of its own, and its first process.

Three processes take part. The supervisor mounts the files. The *builder*, its child, makes the network namespace while
it is still the supervisor's user, then the user namespace and the others. Its child, already PID 1 of the sandbox,
mounts /dev, /proc and /sys, changes the root, and becomes the static init. Both are the static program, which makes
calls that the supervisor has listed.

The network namespace belongs to the supervisor's user namespace: root inside can't touch its rules or devices.

Source: namespaces(7), user_namespaces(7), the kernel's filesystems/overlayfs.rst.
"""

import contextlib
import functools
import os
import signal
import struct
from collections.abc import Sequence
from typing import NamedTuple, Self

import files
from child import set_limits
from fuse import Served
from kernel import cgroups, packet_filter
from kernel.calls import (
    CAP_DAC_READ_SEARCH,
    CAP_SYS_PTRACE,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    become_user,
    bind_read_only,
    bind_shifted,
    bound_capabilities,
    leave_user,
    mount,
    mount_by,
    pivot_root,
    write_file,
)
from kernel.capabilities import RANKS
from kernel.ids import Ids
from kernel.steps import AT_EMPTY_PATH, AT_FDCWD, KEPT, Steps, failure
from messages import SupervisorConfig

READ_ONLY_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
"""Settings of the whole machine."""
OF_INIT = ("1/oom_score_adj", "1/oom_adj")
"""By these root inside could make the kernel kill the first process, and with it the sandbox, before all others."""
HIDDEN_PROC = (
    "kcore", "keys", "timer_list", "sched_debug", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "slabinfo",
    "vmallocinfo",
)  # fmt: skip
"""Files that reveal the whole machine's memory, keys and log."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "core": "/proc/kcore",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_TTY_GROUP, MAX_TERMINALS = 5, 64
"""The machine has a few thousand pseudo-terminals for all its sandboxes."""
_PROCESSORS = "devices/system/cpu"
_SHM_BYTES = 64 << 20
"""Docker's own default for /dev/shm."""
_BYTES_PER_FILE, _MIN_FILES = 8 << 10, 1 << 14
"""Room for as many files as a disk of the size would have, and half as many again: each takes memory of the kernel."""
_RESERVE_PART, _LEAST_RESERVE_BYTES, _LEAST_RESERVE_FILES = 8, 64 << 20, 1 << 12
"""The storage for grading (the tests and their output), above the policy's limit."""
_FULL_BYTES, _FULL_FILES = 1 << 20, 1 << 6
"""With less than this there is no room for grading."""
_NET_SETTINGS = {"ip_unprivileged_port_start": "0", "ping_group_range": "0 2147483647"}
"""Lets root inside bind port 80, although it has no rights in its network namespace."""
_OWN = os.CLONE_NEWNS | os.CLONE_NEWIPC | os.CLONE_NEWUTS | os.CLONE_NEWPID | os.CLONE_NEWCGROUP
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REPORT_BYTES = 2000
_LONG = struct.Struct("l")
_UP = b"up"


class NamespaceBuildError(Exception):
    """The sandbox can't be made; the message states why."""


class Layers(NamedTuple):
    """An image's layers, mounted in the working directory as ``0``, the topmost, ``1`` and so on."""

    number: int
    is_rootless: bool
    """Whether they are mounted in a user namespace."""

    @classmethod
    def of(cls, config: SupervisorConfig) -> Self:
        """Return those of a sandbox."""
        return cls(len(config.layers) or 1, config.is_rootless)

    @property
    def lowers(self) -> str:
        """The overlay's ``lowerdir``."""
        return ":".join(map(str, range(self.number)))

    @property
    def notes(self) -> str:
        """Further options: in a user namespace the overlay keeps its notes in attributes that a user may write."""
        return ",userxattr" if self.is_rootless else ""


def mount_place(config: SupervisorConfig, ids: Ids) -> None:
    """Make a private mount namespace with the memory for a sandbox's files, which becomes the working directory.

    All written files go to memory, at most ``storage_bytes``.
    """
    os.unshare(os.CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    place: str = config.mountpoint
    mount_memory(place, config.storage_bytes, mode="0711")
    os.chdir(place)
    make_overlay_places(".", ids)


def mount_memory(place: str, storage_bytes: int, *, mode: str) -> None:
    """Mount a tmpfs for a sandbox's files on a directory."""
    options = f"mode={mode},size={storage_bytes},nr_inodes={_files_of(storage_bytes)}"
    mount("harbor-gym", place, "tmpfs", MS_NODEV, options)


def _files_of(storage_bytes: int) -> int:
    return max(_MIN_FILES, storage_bytes // _BYTES_PER_FILE)


def open_reserve(storage_bytes: int) -> bool:
    """Enlarge the tmpfs of a sandbox's files, the working directory's, by the reserve for grading.

    Args:
        storage_bytes: What the policy may write.

    Returns:
        Whether there was no room left.

    Raises:
        OSError: The kernel refuses.
    """
    state = os.statvfs(".")
    is_full = state.f_bfree * state.f_frsize < _FULL_BYTES or state.f_ffree < _FULL_FILES
    size = storage_bytes + max(storage_bytes // _RESERVE_PART, _LEAST_RESERVE_BYTES)
    files_count = _files_of(storage_bytes)
    _resize(size, files_count + max(files_count // _RESERVE_PART, _LEAST_RESERVE_FILES))
    return is_full


def close_reserve(storage_bytes: int) -> None:
    """Take back the unused part of the space that :func:`open_reserve` gave."""
    state = os.statvfs(".")
    used_bytes, used_files = (state.f_blocks - state.f_bfree) * state.f_frsize, state.f_files - state.f_ffree
    with contextlib.suppress(OSError):  # a process that the task keeps has written more meanwhile
        _resize(max(storage_bytes, used_bytes), max(_files_of(storage_bytes), used_files))


def _resize(size: int, files_count: int) -> None:
    mount("none", ".", None, MS_REMOUNT | MS_NODEV, f"size={size},nr_inodes={files_count}")


def make_overlay_places(directory: str, ids: Ids) -> None:
    """Make the directories for :func:`mount_overlay`, owned by the sandbox's root."""
    root = ids.outside(0)
    for name in ("upper", "work", "root"):
        os.mkdir(f"{directory}/{name}", 0o755)  # noqa: PTH102  # pathlib would cost 20 ms of imports at every start
    for name in ("upper", "work"):
        # Before the mount, because the overlay keeps the owner that its root had then.
        os.chown(f"{directory}/{name}", root, root)


def serve_files(config: SupervisorConfig, first: int, served: list[Served]) -> None:
    """Start the FUSE programs of the image and of the overlay, if there are any, in the working directory.

    Args:
        config: Names the programs.
        first: A descriptor of the static program.
        served: Gets those that were started.

    Raises:
        OSError: The kernel refuses, or the image's program ended.
    """
    if config.image:
        os.mkdir("0", 0o755)  # noqa: PTH102  # as above
        # It reads what a task's author has made: of root's rights it needs that to read any file.
        served.append(Served(config.image, "0", first, flags=MS_RDONLY, kept=(CAP_DAC_READ_SEARCH,)))
    if config.overlay:
        served[0].wait()
        here = config.mountpoint
        layers = f"lowerdir={here}/0,upperdir={here}/upper,workdir={here}/work"
        served.append(Served((*config.overlay, "-o", layers), "root", first))


def mount_root(config: SupervisorConfig, ids: Ids, user_namespace: int, served: list[Served]) -> None:
    """Mount the image's layers, each once, and the sandbox's own overlay on them, in the working directory."""
    # Short names: the options of mount(2) must fit one page, and an image may have 127 layers.
    for number, layer in enumerate(config.layers):
        os.mkdir(str(number), 0o755)  # noqa: PTH102  # as above
        if ids.is_shifted:
            bind_shifted(layer, str(number), user_namespace)
        else:
            mount(layer, str(number), None, MS_BIND)
    for program in served:
        program.wait()
    if not config.overlay:
        mount_overlay(Layers.of(config), ".")


def mount_overlay(layers: Layers, directory: str, *, is_plain: bool = False) -> None:
    """Mount ``root`` in a directory that has ``upper`` and ``work``, on the layers in the working directory.

    Args:
        layers: Those of the image.
        directory: The directory.
        is_plain: Let ``upper`` have all of what is written, with no references to the layers.
    """
    notes = layers.notes
    if is_plain and not notes:
        notes = ",redirect_dir=off,metacopy=off"  # as they are with the other notes
    options = f"lowerdir={layers.lowers},upperdir={directory}/upper,workdir={directory}/work{notes}"
    mount("overlay", f"{directory}/root", "overlay", MS_NODEV, options)


def mount_image(layers: Layers, directory: str) -> None:
    """Make and mount ``image`` in a directory: the layers in the working directory, read-only."""
    for name in ("none", "image"):
        os.mkdir(f"{directory}/{name}", 0o755)  # noqa: PTH102  # as above
    # Without an upper directory an overlay has two layers at least.
    options = f"lowerdir={directory}/none:{layers.lowers}{layers.notes}"
    mount("overlay", f"{directory}/image", "overlay", MS_NODEV | MS_RDONLY, options)


class NamespaceBuild:
    """Builds one sandbox.

    Args:
        config: The supervisor's configuration.
        ids: Whom its users are.
        first: A descriptor of the static program.
        cgroup_fds: Descriptors of its control groups.
        cgroup_mounts: Directories of the control groups, and where they are seen inside.
    """

    def __init__(
        self,
        config: SupervisorConfig,
        ids: Ids,
        first: int,
        cgroup_fds: list[int],
        cgroup_mounts: list[tuple[str, str]],
    ) -> None:
        self._config, self._ids, self._first = config, ids, first
        self._cgroup_fds, self._cgroup_mounts = cgroup_fds, cgroup_mounts
        self._from_builder, self._to_supervisor = os.pipe()
        self._from_supervisor, self._to_builder = os.pipe()
        self._log, self._report = os.pipe()
        self._stdin, self.keep_alive = os.pipe()
        """The sandbox ends when the second is closed."""
        self._up, self._stdout = os.pipe()
        self._builder = 0
        self._network = -1

    def begin(self) -> tuple[int, int]:
        """Start the builder; return descriptors of the network and the user namespace that it has made.

        Raises:
            NamespaceBuildError: The kernel refuses.
        """
        own = [self._to_supervisor, self._from_supervisor, self._stdin, self._stdout]
        if self._config.network_of:
            self._network = os.open(f"/proc/{self._config.network_of}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            own.append(self._network)
        steps = Steps(self._report, [*own, self._first, *self._cgroup_fds])
        self._make_namespaces(steps)
        self._become_init(steps)
        self._builder = steps.spawn(self._first)
        for handle in (*own, self._report):
            os.close(handle)
        if not os.read(self._from_builder, 1):
            raise self._failure()
        place = f"/proc/{self._builder}"
        uid_map, gid_map = self._ids.maps()
        write_file(f"{place}/uid_map", uid_map)
        write_file(f"{place}/gid_map", gid_map)
        return (
            os.open(f"{place}/ns/net", os.O_RDONLY | os.O_CLOEXEC),
            os.open(f"{place}/ns/user", os.O_RDONLY | os.O_CLOEXEC),
        )

    def finish(self) -> int:
        """Let the builder go on, wait for the sandbox's PID 1, and return its process id.

        Raises:
            NamespaceBuildError: The kernel refuses, or a directory can't be made.
        """
        os.write(self._to_builder, b"g")
        answer = os.read(self._from_builder, _LONG.size)  # a process id
        if len(answer) < _LONG.size or os.read(self._up, len(_UP)) != _UP:
            raise self._failure()
        os.waitpid(self._builder, 0)
        for handle in (self._from_builder, self._to_builder, self._log, self._up):
            os.close(handle)
        return _LONG.unpack(answer)[0]

    def kill(self) -> None:
        """End an unfinished build."""
        if self._builder:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._builder, signal.SIGKILL)

    def _failure(self) -> NamespaceBuildError:
        output = failure(os.read(self._log, _REPORT_BYTES))
        return NamespaceBuildError(output or "a process that builds the sandbox ended without a reason")

    def _make_namespaces(self, steps: Steps) -> None:
        steps.close_on_execute()
        if self._network >= 0:
            steps.call("setns", self._network, os.CLONE_NEWNET, what="enter another sandbox's network")
        elif not self._config.shares_network:
            steps.call("unshare", os.CLONE_NEWNET, what="make a network namespace")
        if self._ids.is_shifted:
            # The kernel charges its counts by user to the user that makes the namespace.
            leave_user(steps, self._ids.outside(0), self._ids.outside(0))
        steps.call("unshare", os.CLONE_NEWUSER, what="make a user namespace")
        steps.call("write", self._to_supervisor, "u", 1)
        steps.call("read", self._from_supervisor, steps.room(1), 1, least=1, what="its supervisor ended")
        become_user(steps, 0, 0, ())
        cgroups.join_by(steps, self._cgroup_fds)
        for name, value in self._ids.limits().items():
            steps.write_file(f"/proc/sys/user/{name}", str(value))
        steps.call("unshare", _OWN, what="make namespaces")
        steps.call("sethostname", self._config.host_name, len(self._config.host_name))
        steps.fork(self._to_supervisor)

    def _become_init(self, steps: Steps) -> None:
        mount_by(steps, "root", "root", None, MS_BIND)  # a mount made outside can't be moved
        dress(steps, "root", self._cgroup_mounts, self._config.limits.processors)
        pivot_root(steps, "root")
        if not self._config.is_copy:  # else all of this is there, as far as the policy left it
            steps.add(files.make_directories_by, *self._config.directories.items())
            steps.add(files.require_shell_by)
        steps.call("setsid")
        # One capability more than any command has: no process inside may inspect it or write its memory.
        steps.add(bound_capabilities, CAP_SYS_PTRACE)
        for target, handle in enumerate((self._stdin, self._stdout, self._report)):
            steps.call("dup3", handle, target, 0)
        set_limits(steps)
        steps.call("execveat", self._first, "", steps.pointers([steps.text("init")]), steps.pointers([]), AT_EMPTY_PATH)


def open_network(config: SupervisorConfig) -> None:
    """Switch on the loopback device of this process's network namespace, and set its packet filter.

    Raises:
        OSError: The kernel refuses.
    """
    packet_filter.raise_loopback()
    for name, value in _NET_SETTINGS.items():
        with contextlib.suppress(OSError):  # no group 2147483647 in an ordinary user's namespace
            write_file(f"/proc/sys/net/ipv4/{name}", value)
    if config.may_have_network:
        packet_filter.close_networks(config.closed_networks, config.name_server, devices=config.devices)


def dress(steps: Steps, root: str, cgroup_mounts: list[tuple[str, str]], own: Sequence[int]) -> None:
    """Mount /dev, /proc and /sys on a root directory, from inside the sandbox's namespaces but with the old root.

    ``own`` are its processors, which /sys names as those that are online; empty for the machine's.
    """
    steps.add(_dress_alike, root)
    if own:
        _write_processors(steps, f"{root}/sys", "online", ",".join(map(str, own)) + "\n")
    for source, target in cgroup_mounts:
        files.make_directory_by(steps, f"{root}{target}")
        bind_read_only(steps, source, f"{root}{target}", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _close(steps, f"{root}/sys")


def prepare(config: SupervisorConfig) -> None:
    """Encode the calls that are the same in each sandbox, or at least where the configuration is."""
    Steps.prepare(_dress_alike, "root")
    Steps.prepare(files.make_directories_by, *config.directories.items())
    Steps.prepare(files.require_shell_by)
    for kept in ((CAP_SYS_PTRACE,), *RANKS.values()):
        Steps.prepare(bound_capabilities, *kept)


def _dress_alike(steps: Steps, root: str) -> None:
    """Do what is the same in each sandbox."""
    for name in ("dev", "proc", "sys"):
        what = f"the image's /{name} is not a directory"
        steps.call("openat", AT_FDCWD, f"{root}/{name}", _DIRECTORY, keeps=True, what=what)
        steps.call("close", KEPT)
    _mount_devices(steps, f"{root}/dev")
    mount_by(steps, "proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    covers = [(f"{root}/proc/{name}", f"{root}/proc/{name}") for name in (*READ_ONLY_PROC, *OF_INIT)]
    covers += [("/dev/null", f"{root}/proc/{name}") for name in HIDDEN_PROC]
    for source, target in covers:
        bind_read_only(steps, source, target, MS_NOSUID | MS_NODEV | MS_NOEXEC, if_there=True)
    mount_sys(steps, f"{root}/sys")


def mount_sys(steps: Steps, directory: str) -> None:
    """Mount a /sys that has the machine's processors by number, no device, and room for control groups.

    The caller makes it read-only.
    """
    mount_by(steps, "tmpfs", directory, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755,size=64k,nr_inodes=32")
    for name in ("block", "dev/block", _PROCESSORS):
        files.make_directory_by(steps, f"{directory}/{name}")
    for name, numbers in processors().items():
        _write_processors(steps, directory, name, numbers)


def _write_processors(steps: Steps, directory: str, name: str, numbers: str) -> None:
    path = f"{directory}/{_PROCESSORS}/{name}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    steps.call("openat", AT_FDCWD, path, flags, 0o444, keeps=True, what=path)
    steps.call("write", KEPT, numbers, len(numbers), what=path)
    steps.call("close", KEPT)


@functools.cache
def processors() -> dict[str, str]:
    """Return what the machine's /sys tells of its processors, which /proc/cpuinfo shows as well: name → content.

    It is read once: call this where the machine's files are seen.
    """
    found: dict[str, str] = {}
    for name in ("online", "possible", "present"):
        with contextlib.suppress(OSError), open(f"/sys/{_PROCESSORS}/{name}", encoding="utf-8") as file:  # noqa: PTH123  # pathlib would cost 20 ms of imports
            found[name] = file.read()
    return found


def _mount_devices(steps: Steps, directory: str) -> None:
    mount_by(steps, "tmpfs", directory, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=64k,nr_inodes=64")
    for name in _DEVICES:
        path = f"{directory}/{name}"
        steps.call("openat", AT_FDCWD, path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644, keeps=True, what=path)
        steps.call("close", KEPT)
        # The device stays writable; its owner and mode are the machine's.
        bind_read_only(steps, f"/dev/{name}", path, MS_NOSUID | MS_NOEXEC)
    for name in ("pts", "shm"):
        steps.call("mkdirat", AT_FDCWD, f"{directory}/{name}", 0o755)
    terminals = f"newinstance,ptmxmode=0666,mode=0620,gid={_TTY_GROUP},max={MAX_TERMINALS}"
    mount_by(steps, "devpts", f"{directory}/pts", "devpts", MS_NOSUID | MS_NOEXEC, terminals)
    mount_by(steps, "shm", f"{directory}/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={_SHM_BYTES}")
    for name, target in _DEVICE_LINKS.items():
        steps.call("symlinkat", target, AT_FDCWD, f"{directory}/{name}")
    _close(steps, directory)


def _close(steps: Steps, directory: str) -> None:
    mount_by(steps, "none", directory, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC)


def files_bytes() -> int:
    """Return how much memory the sandbox's files take. Reads the working directory's file system."""
    state = os.statvfs(".")
    return (state.f_blocks - state.f_bfree) * state.f_frsize
