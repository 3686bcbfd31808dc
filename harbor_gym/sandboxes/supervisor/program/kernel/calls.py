"""The kernel calls that Python does not provide.

Source: capabilities(7), prctl(2), mount(2), mount_setattr(2), pivot_root(2), pid_namespaces(7).
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Collection, Sequence
from typing import Any

from kernel.capabilities import KEPT_CAPABILITIES
from kernel.steps import ANY, Steps

CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_RESOURCE = 2, 19, 24
_CAP_SYS_ADMIN = 21

_LAST_CAPABILITY = 63
_OF_FILES = 0b11111
"""CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER and CAP_FSETID."""
_KILLED_EARLY = b"500"
"""Counts half the memory limit more for a process: a sandbox's largest command is killed, never its PID 1."""
PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_CHILD_SUBREAPER = 1, 4, 8, 36
PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_CAPABILITY_VERSION_3 = 0x20080522
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_ATTR_RDONLY, _ATTR_NODEV, _ATTR_IDMAP = 0x1, 0x4, 0x100000
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _PIDFD_GETFD, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 438, 442
"""The same numbers on every architecture since Linux 5.1."""
_FSOPEN_CLOEXEC, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE, _FSMOUNT_CLOEXEC = 1, 1, 6, 1
_Header, _Data = ctypes.c_uint32 * 2, ctypes.c_uint32 * 6
_libc = ctypes.CDLL(None, use_errno=True)
_DROPPED_CAPABILITIES = [
    capability
    for capability in range(_LAST_CAPABILITY + 1)
    if capability not in KEPT_CAPABILITIES.values() and _libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) >= 0
]
"""All others that this kernel has, also those that this process lacks: a user namespace grants all again."""


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _call(number: int, what: str, *arguments: Any) -> int:
    full = [value if isinstance(value, bytes) else ctypes.c_long(value) for value in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *full), what)


def prctl(option: int, argument: int) -> None:
    """Call prctl(2) with one argument."""
    _checked(_libc.prctl(option, argument, 0, 0, 0), f"prctl {option}")


def pidfd_getfd(process: int, number: int) -> int:
    """Return a descriptor of this process's own for another one's; see pidfd_getfd(2)."""
    return _call(_PIDFD_GETFD, "pidfd_getfd", process, number, 0)


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Call mount(2)."""
    encoded = [None if value is None else value.encode() for value in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _checked(result, f"mount {kind or 'bind'} on {target}")


def mount_by(steps: Steps, source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Do the same by steps."""
    steps.call("mount", source, target, kind or 0, flags, options or 0, what=f"mount {kind or 'bind'} on {target}")


def bind_read_only(steps: Steps, source: str, target: str, flags: int, *, if_there: bool = False) -> None:
    """Bind a file or directory on another, read-only.

    Args:
        steps: Where to add the calls.
        source: The file or directory.
        target: The other.
        flags: Further ones of mount(2).
        if_there: Go on if one is missing.
    """
    missing = errno.ENOENT if if_there else 0
    steps.call(
        "mount", source, target, 0, MS_BIND, 0, what=f"mount bind on {target}", tolerates=missing, skips_after_error=1
    )
    mount_by(steps, "none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)


def bind_shifted(source: str, target: str, user_namespace: int) -> None:
    """Bind a directory on another, read-only, with its owners mapped by a user namespace's map of ids.

    Raises:
        OSError: The kernel (before 5.12) or the file system has no such mounts.
    """
    tree = open_tree(source)
    try:
        attributes = struct.pack("QQQQ", _ATTR_IDMAP | _ATTR_RDONLY | _ATTR_NODEV, 0, 0, user_namespace)
        what = f"map the ids of {source}"
        _call(_MOUNT_SETATTR, what, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
        attach(tree, target)
    finally:
        os.close(tree)


def set_mount(tree: int, user_namespace: int, *, is_read_only: bool) -> None:
    """Set what a mount without a place is to be.

    Args:
        tree: Its descriptor.
        user_namespace: Map its owners by this one's map of ids; -1 leaves them.
        is_read_only: Whether nothing may be written.

    Raises:
        OSError: The kernel or the file system has no such mounts.
    """
    shift = 0 if user_namespace < 0 else _ATTR_IDMAP
    attributes = struct.pack(
        "QQQQ", shift | _ATTR_NODEV | (_ATTR_RDONLY if is_read_only else 0), 0, 0, max(user_namespace, 0)
    )
    _call(_MOUNT_SETATTR, "set up a mount", tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))


def close_mount(place: str) -> None:
    """Let nothing write by a mount, which else stays as it is.

    Raises:
        OSError: The kernel (before 5.12) has no such call.
    """
    attributes = struct.pack("QQQQ", _ATTR_RDONLY, 0, 0, 0)
    _call(_MOUNT_SETATTR, f"make {place} read-only", _AT_FDCWD, place.encode(), 0, attributes, len(attributes))


def open_tree(source: str) -> int:
    """Return a descriptor of a mount of a directory, which :func:`attach` gives a place in any mount namespace."""
    return _call(_OPEN_TREE, f"open {source}", _AT_FDCWD, source.encode(), _OPEN_TREE_CLONE | os.O_CLOEXEC)


def clone_tree(place: int) -> int:
    """Do as :func:`open_tree` for a descriptor of a file or directory of this process's mount namespace."""
    return _call(_OPEN_TREE, "open a mount", place, b"", _OPEN_TREE_CLONE | _AT_EMPTY_PATH | os.O_CLOEXEC)


def attach(tree: int, target: str) -> None:
    """Mount what :func:`open_tree` returned on a directory."""
    _call(_MOVE_MOUNT, f"mount on {target}", tree, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH)


def memory_directory(size: int, mode: int = 0o711) -> int:
    """Return a descriptor of a directory in memory that has no name: it goes with its last descriptor.

    Raises:
        OSError: The kernel refuses.
    """
    return _nameless_mount("tmpfs", size=str(size), mode=oct(mode)[2:])


def message_queues() -> int:
    """Return a descriptor of the directory of POSIX message queues of this process's IPC namespace.

    Raises:
        OSError: The kernel refuses, or has none.
    """
    return _nameless_mount("mqueue")


def _nameless_mount(kind: str, **options: str) -> int:
    system = _call(_FSOPEN, f"open {kind}", kind.encode(), _FSOPEN_CLOEXEC)
    try:
        for key, value in options.items():
            _call(_FSCONFIG, f"set up {kind}", system, _FSCONFIG_SET_STRING, key.encode(), value.encode(), 0)
        _call(_FSCONFIG, f"make {kind}", system, _FSCONFIG_CMD_CREATE, 0, 0, 0)
        return _call(_FSMOUNT, f"mount {kind}", system, _FSMOUNT_CLOEXEC, MS_NOSUID | MS_NODEV | MS_NOEXEC)
    finally:
        os.close(system)


def pivot_root(steps: Steps, directory: str) -> None:
    """Make a mount point the mount namespace's root, so that no file outside of it can be reached."""
    steps.call("chdir", directory)
    steps.call("pivot_root", ".", ".")
    steps.call("umount2", ".", _MNT_DETACH)
    steps.call("chdir", "/")


def unmount(directory: str) -> None:
    """Unmount a directory: it is hidden at once, and released when no process uses it any more."""
    _checked(_libc.umount2(directory.encode(), _MNT_DETACH | _UMOUNT_NOFOLLOW), f"unmount {directory}")


def _capability_data() -> tuple[Any, Any]:
    header = _Header(_CAPABILITY_VERSION_3, 0)
    data = _Data()
    _checked(_libc.capget(header, data), "capget")
    return header, data


def has_capability(number: int) -> bool:
    """Return whether this process has a capability in effect."""
    _, data = _capability_data()
    return bool(data[3 * (number // 32)] >> number % 32 & 1)


def _clear_inheritable() -> None:
    header, data = _capability_data()
    data[2] = data[5] = 0
    _checked(_libc.capset(header, data), "capset")
    _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "clear ambient capabilities")


def drop_capabilities() -> None:
    """Give up every capability of this process that it has or may have."""
    header, _ = _capability_data()
    _checked(_libc.capset(header, _Data()), "capset")


def become_keeping_capabilities(uid: int, gid: int) -> None:
    """Become a user without losing root's capabilities."""
    prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header, data = _capability_data()
    data[0], data[3] = data[1], data[4]
    _checked(_libc.capset(header, data), "capset")


def use_files_as(uid: int, gid: int, groups: list[int], *, is_root: bool) -> None:
    """Let this process use files with a user's rights, and make the user the owner of its new files.

    The processes that it may signal, and those that may signal or open it, stay the same. Source: setfsuid(2),
    capabilities(7).
    """
    os.setgroups(groups)
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    header, data = _capability_data()
    data[0], data[3] = data[1] if is_root else data[1] & ~_OF_FILES, data[4]
    _checked(_libc.capset(header, data), "capset")
    not_dumpable()


def use_own_files() -> None:
    """Undo :func:`use_files_as`."""
    use_files_as(os.geteuid(), os.getegid(), [], is_root=True)


def become_root() -> None:
    """Become root of the user namespace that this process has just entered, and stay unreadable for its processes."""
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    not_dumpable()


def harden_self() -> None:
    """Make this process unreadable from inside the sandbox, and unable to import anything from there."""
    not_dumpable()
    _clear_inheritable()
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()


def not_dumpable() -> None:
    """Make this process unreadable for others of its user. A change of ids or of the user namespace undoes it."""
    prctl(_PR_SET_DUMPABLE, 0)


def return_free_memory() -> None:
    """Return freed pages to the kernel, if the C library can; see malloc_trim(3)."""
    if trim := getattr(_libc, "malloc_trim", None):
        trim(0)


class MemoryKills:
    """This process's rank among those that the kernel kills when memory runs out.

    To be made before :func:`harden_self`, after which an ordinary user may not open the file any more.
    """

    def __init__(self) -> None:
        self._handle = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)

    def prioritize(self) -> None:
        """Let the kernel kill this process and its later descendants before processes that did not call this."""
        os.write(self._handle, _KILLED_EARLY)
        os.close(self._handle)


def bound_capabilities(steps: Steps, *also_kept: int) -> None:
    """Give up the capabilities that a sandbox may not have for good; no setuid program restores them."""
    for capability in _DROPPED_CAPABILITIES:
        if capability not in also_kept:
            steps.call("prctl", _PR_CAPBSET_DROP, capability)


def lose_capabilities(steps: Steps, lost: Collection[int]) -> None:
    """Let no further program have these capabilities."""
    for capability in lost:
        steps.call("prctl", _PR_CAPBSET_DROP, capability)


def only_capabilities(steps: Steps, kept: Collection[int]) -> None:
    """Let the next program of root have these capabilities alone."""
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in kept:
            steps.call("prctl", _PR_CAPBSET_DROP, capability, tolerates=ANY)


def drop_privileges(steps: Steps, uid: int, gid: int, groups: Sequence[int], rank: Collection[int] = ()) -> None:
    """Become the user, with at most the capabilities of a sandbox and those of a rank, for good.

    Root gets a rank's capabilities at the next execve, from the bounding set. Other users must keep theirs over it:
    otherwise root of a lower rank could become such a user and access its processes.
    """
    steps.add(bound_capabilities, *rank)
    what = f"user id {uid} or one of its groups {groups} is none that this sandbox has"
    become_user(steps, uid, gid, groups, what=what, holds=rank if uid else ())


def leave_user(steps: Steps, uid: int, gid: int) -> None:
    """Turn root into a user who may still make namespaces."""
    steps.call("prctl", PR_SET_KEEPCAPS, 1)
    steps.call("setgroups", 0, 0)
    steps.call("setresgid", gid, gid, gid)
    steps.call("setresuid", uid, uid, uid)
    _set_capabilities(steps, (_CAP_SYS_ADMIN,), (_CAP_SYS_ADMIN,), ())


def _set_capabilities(
    steps: Steps, effective: Collection[int], permitted: Collection[int], inheritable: Collection[int]
) -> None:
    masks = [sum(1 << number for number in numbers) for numbers in (effective, permitted, inheritable)]
    data = struct.pack("6I", *(mask >> shift & 0xFFFFFFFF for shift in (0, 32) for mask in masks))
    steps.call("capset", steps.data(struct.pack("Ii", _CAPABILITY_VERSION_3, 0)), steps.data(data))


def become_user(
    steps: Steps, uid: int, gid: int, groups: Sequence[int], *, what: str = "", holds: Collection[int] = ()
) -> None:
    """Become a user, and stay unreadable for its processes.

    Args:
        steps: Where to add the calls.
        uid: The user.
        gid: The group.
        groups: All groups.
        what: What fails if there is no such user, for people.
        holds: The capabilities to keep, also over the next execve.
    """
    steps.call("setgroups", len(groups), steps.data(struct.pack(f"{len(groups)}I", *groups)), what=what)
    steps.call("setresgid", gid, gid, gid, what=what)
    if holds:
        steps.call("prctl", PR_SET_KEEPCAPS, 1)  # until execve
    steps.call("setresuid", uid, uid, uid, what=what)
    if uid:
        # The kernel takes them only from a root that the user namespace knows, so execve would still be root's.
        _set_capabilities(steps, holds, holds, holds)
    for number in holds:
        steps.call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number)
    steps.call("prctl", _PR_SET_DUMPABLE, 0)


def write_file(path: str, content: str) -> None:
    """Write to an existing file, in one call."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, content.encode())
    finally:
        os.close(handle)
