"""What the sandboxes of one Compose project share: networks between them, and volumes.

The networks' bridges are in a namespace of their own, which no process is in: it goes with the last supervisor that has
a descriptor of it. The volumes are memory, mounted in the place of the supervisor that makes them; it lends each as a
mount without a name, which another supervisor gives a place in its sandbox.

Source: network_namespaces(7), mount_setattr(2), open_tree(2).
"""

import contextlib
import errno
import os
import stat
from collections.abc import Sequence

from grading.view import reached
from kernel import bridge
from kernel.calls import (
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REMOUNT,
    attach,
    clone_tree,
    close_mount,
    mount,
    set_mount,
    unmount,
    write_file,
)
from kernel.ids import Ids

_OWN = "/proc/self/ns/net"
_FORWARDING = "/proc/sys/net/ipv4/ip_forward"
_SHM = "/dev/shm"


def make_networks(count: int) -> int:
    """Return a descriptor of a new network namespace with so many bridges, ``br0`` and so on, that nothing leaves.

    Raises:
        OSError: The kernel refuses.
    """
    own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.unshare(os.CLONE_NEWNET)
        write_file(_FORWARDING, "0")  # a new namespace has the machine's setting
        for number in range(count):
            bridge.make(f"br{number}")
        return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.setns(own, os.CLONE_NEWNET)
        os.close(own)


def join_networks(
    networks: int, devices: Sequence[str], joined: Sequence[tuple[int, str]], port: int, *, bits: int
) -> None:
    """Give this process's network namespace, a sandbox's, a device in each of some networks.

    Args:
        networks: The descriptor of :func:`make_networks`.
        devices: The devices' names.
        joined: For each, the network's number and the sandbox's address in it.
        port: The sandbox's number in the project.
        bits: Length of the networks' prefixes.

    Raises:
        OSError: The kernel refuses.
    """
    write_file(_FORWARDING, "0")  # else another sandbox's packets would leave by this one's way out
    own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.setns(networks, os.CLONE_NEWNET)
        try:
            for place, (device, (number, _)) in enumerate(zip(devices, joined, strict=True)):
                bridge.plug(f"br{number}", f"p{port}.{place}", own, device)
        finally:
            os.setns(own, os.CLONE_NEWNET)
    finally:
        os.close(own)
    for device, (_, address) in zip(devices, joined, strict=True):
        bridge.raise_device(device, address, bits)


class Volumes:
    """The volumes that one supervisor makes for a project. To be used in its own mount namespace, at its place."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def lend(self, name: str, size_bytes: int, part: str = "", makes: str = "", *, makes_file: bool = False) -> int:
        """Return a mount without a name of a volume, made at the first call.

        Args:
            name: The volume's name: a file name.
            size_bytes: Its size, when it is made.
            part: A path in it instead of its root.
            makes: A path below that, whose missing directories are made, root's: another mount comes there. A
                sandbox's own supervisor can't make them, as it is no owner of the volume's files.
            makes_file: Whether the last of them is a file.

        Raises:
            OSError: The kernel refuses, or it has no such path.
        """
        place = f"volume-{name}"
        if name not in self._made:
            os.mkdir(place, 0o755)  # noqa: PTH102  # pathlib would cost 20 ms of imports at every start
            mount("harbor-gym", place, "tmpfs", MS_NODEV | MS_NOSUID, f"mode=0755,size={size_bytes}")
            self._made.add(name)
        names = [name for name in part.split("/") if name]
        # What the image's author has put there is not followed: a link would lead to the machine's own files.
        inside = None if ".." in names else reached(os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), names)
        if inside is None:
            raise OSError(errno.ENOENT, f"the volume has no {part!r}, or only behind a link")
        try:
            _make_below(inside, [name for name in makes.split("/") if name], makes_file=makes_file)
            return clone_tree(inside)
        finally:
            os.close(inside)


class Attached:
    """The mounts that a sandbox has beside those of every sandbox. Used in its mount namespace."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, bool]] = {}
        """Where there is one → a descriptor of it, and whether it is read-only."""

    def volume(self, tree: int, target: str, ids: Ids, user_namespace: int, *, is_read_only: bool) -> None:
        """Mount a volume's tree, whose owners are then those of the sandbox, on a path that is made if missing.

        Args:
            tree: A mount without a name, of a directory or a file.
            target: The path.
            ids: Whom the sandbox's users are.
            user_namespace: A descriptor of the sandbox's; -1 where its ids are the machine's.
            is_read_only: Whether nothing may be written by this mount.

        Raises:
            OSError: The kernel refuses (a memory file system with other owners needs Linux 6.3).
        """
        target = os.path.realpath(target)
        _make_target(target, ids.outside(0), is_directory=stat.S_ISDIR(os.fstat(tree).st_mode))
        set_mount(tree, user_namespace if ids.is_shifted else -1, is_read_only=is_read_only)
        attach(tree, target)
        self._places[target] = os.open(target, os.O_PATH | os.O_CLOEXEC), is_read_only

    def memory(self, target: str, ids: Ids, *, size_bytes: int, mode: int, may_execute: bool = False) -> None:
        """Mount empty memory on a directory that is made if missing.

        Raises:
            OSError: The kernel refuses.
        """
        owner, target = ids.outside(0), os.path.realpath(target)
        _make_target(target, owner, is_directory=True)
        size = f",size={size_bytes}" if size_bytes else ""
        flags = MS_NODEV | MS_NOSUID | (0 if may_execute else MS_NOEXEC)
        mount("tmpfs", target, "tmpfs", flags, f"mode={mode:o},uid={owner},gid={owner}{size}")
        self._places[target] = os.open(target, os.O_PATH | os.O_CLOEXEC), False

    def carried(self, paths: Sequence[str]) -> dict[str, int]:
        """Return what a view has of these mounts, as mounts without a name: path → descriptor, which the caller closes.

        A view has each read-only mount, and of the others what is at, above or below one of the paths that it carries.
        """
        trees: dict[str, int] = {}
        for target, (place, is_read_only) in self._places.items():
            has_all = is_read_only or any(f"{target}/".startswith(f"{path.rstrip('/')}/") for path in paths)
            below = [path for path in paths if path.startswith(f"{target}/")]
            for path in [target] if has_all else below:
                names = [name for name in path[len(target) :].split("/") if name]
                if (source := reached(os.dup(place), names)) is not None:
                    trees[path] = clone_tree(source)
                    os.close(source)
        return trees

    def files_bytes(self) -> int:
        """Return how much memory the files of these mounts take, whoever wrote them."""
        found: dict[int, int] = {}
        for place, _ in self._places.values():
            state = os.fstatvfs(place)
            found[os.fstat(place).st_dev] = (state.f_blocks - state.f_bfree) * state.f_frsize
        return sum(found.values())

    def take_off(self, target: str) -> None:
        """Unmount what was mounted on a path, and remove the directory if it is empty."""
        os.close(self._places.pop(target)[0])
        unmount(target)
        with contextlib.suppress(OSError):
            os.rmdir(target)  # noqa: PTH106  # as above


def resize_shm(size_bytes: int) -> None:
    """Change the size of the sandbox's shared memory. In its mount namespace.

    Raises:
        OSError: The kernel refuses.
    """
    mount("shm", _SHM, None, MS_REMOUNT | MS_NOSUID | MS_NODEV, f"size={size_bytes}")


def close_root() -> None:
    """Let nothing write to the sandbox's own files; other mounts stay as they are. In its mount namespace.

    Raises:
        OSError: The kernel refuses.
    """
    close_mount("/")


def _make_below(directory: int, names: Sequence[str], *, makes_file: bool) -> None:
    """Make what is missing of a path below a directory, through no link."""
    place = os.dup(directory)
    try:
        for depth, name in enumerate(names, 1):
            with contextlib.suppress(FileExistsError):
                if makes_file and depth == len(names):
                    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=place))
                else:
                    os.mkdir(name, 0o755, dir_fd=place)
            if depth < len(names):
                below = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
                os.close(place)
                place = below
    finally:
        os.close(place)


def _make_target(path: str, owner: int, *, is_directory: bool) -> None:
    """Make what is missing of a path, root's."""
    names = [name for name in path.split("/") if name]
    for depth in range(1, len(names) + 1):
        above = "/" + "/".join(names[:depth])
        if os.path.exists(above):  # noqa: PTH110  # as above
            continue
        if depth < len(names) or is_directory:
            os.mkdir(above, 0o755)  # noqa: PTH102  # as above
        else:
            os.close(os.open(above, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        os.chown(above, owner, owner)
    if os.path.isdir(path) != is_directory:  # noqa: PTH112  # as above
        kind = "a file" if is_directory else "a directory"
        raise OSError(errno.ENOTDIR, f"{path} is {kind} of the image")
