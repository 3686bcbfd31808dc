"""Sandboxes of an ordinary user, who acts as root of a user namespace that maps the user's subordinate ids.

Source: user_namespaces(7), subuid(5), newuidmap(1).
"""

from __future__ import annotations

import functools
import os
import platform
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from harbor_gym._runtime.processes import ask
from harbor_gym._runtime.procfs import text_or_empty

USER_NAMESPACE = ("--user", "--map-root-user", "--map-auto") if os.geteuid() != 0 else ()
"""Options of ``unshare`` for a user namespace whose root is the user and whose other ids are theirs; none for root."""

TUN = Path("/dev/net/tun")
"""The device of a sandbox's network."""

ALL_IDS = (1 << 32) - 1
"""The number of user ids, and of group ids, in the kernel."""
_MIN_IDS = 65536
_MIN_LINUX = (6, 6)
_PROBE_TIMEOUT_SEC = 10.0
_SWITCHES = {
    Path("/proc/sys/kernel/unprivileged_userns_clone"): ("0", "kernel.unprivileged_userns_clone=1"),
    Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"): (
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    Path("/proc/sys/user/max_user_namespaces"): ("0", "user.max_user_namespaces=10000"),
}
"""Setting → the value that denies ordinary users their namespaces, and the ``sysctl`` that allows them."""


def is_rootless() -> bool:
    """Return whether this process runs as an ordinary user."""
    return os.geteuid() != 0


def build_environment() -> dict[str, str]:
    """Return variables that make buildah, as root of a user namespace, use the ordinary user's store at home."""
    if not is_rootless():
        return {}
    return {
        "_CONTAINERS_USERNS_CONFIGURED": "done",
        "_CONTAINERS_ROOTLESS_UID": str(os.getuid()),
        "_CONTAINERS_ROOTLESS_GID": str(os.getgid()),
    }


@functools.cache
def refusal(min_linux: tuple[int, int] = _MIN_LINUX) -> tuple[str, str]:
    """Return why this user can't make sandboxes here, and what root can do about it; both empty where they can.

    Args:
        min_linux: The oldest version of Linux that will do; by default the first with user attributes on tmpfs.
    """
    if (too_old := age_refusal(min_linux))[0]:
        return too_old
    if (switched := switch_refusal())[0]:
        return switched
    if shutil.which("newuidmap") is None or shutil.which("newgidmap") is None:
        return "newuidmap and newgidmap are missing", "apt-get install -y uidmap"
    user = _user_name()
    for option, path in (("--add-subuids", Path("/etc/subuid")), ("--add-subgids", Path("/etc/subgid"))):
        if ids_in(text_or_empty(path), user, os.getuid()) < _MIN_IDS:
            return f"{user} has less than {_MIN_IDS} ids in {path}", f"usermod {option} 100000-165535 {user}"
    return _trial()


def age_refusal(min_linux: tuple[int, int] = _MIN_LINUX) -> tuple[str, str]:
    """Return whether the kernel is too old, and the remedy; see :func:`refusal`."""
    release = platform.release()
    if tuple(map(int, re.findall(r"\d+", release)[:2])) >= min_linux:
        return "", ""
    newest = ".".join(map(str, min_linux))
    return f"Linux {release} is too old for sandboxes of an ordinary user", f"boot Linux {newest} or newer"


def switch_refusal(switches: Mapping[Path, tuple[str, str]] = _SWITCHES) -> tuple[str, str]:
    """Return which kernel setting denies ordinary users namespaces, and what root can do; both empty if none does.

    On Ubuntu 24.04 it is AppArmor's.
    """
    for path, (refused, wanted) in switches.items():
        if text_or_empty(path) == refused:
            return f"no user namespaces for ordinary users ({path} is {refused})", f"sysctl -w {wanted}"
    return "", ""


def network_refusal(device: Path = TUN) -> tuple[str, str]:
    """Return why this user's sandboxes can have no network here, and what root can do; both empty where they can.

    udev lets every user open the device. Without udev only root may open it, or it is missing.
    """
    try:
        _open_once(device)
    except FileNotFoundError:
        why = f"{device} is missing"
    except OSError as exc:
        why = f"{device} can't be opened by {_user_name()} ({exc.strerror})"
    else:
        return "", ""
    by_hand = f"modprobe tun; mknod {device} c 10 200; chmod 666 {device}"
    return why, f"as root {by_hand} (inside a container, start that with --device {device})"


@functools.cache
def _open_once(device: Path) -> None:
    """Open a device, and close it. Only success is cached: the kernel takes milliseconds to close a TUN device.

    Raises:
        OSError: It can't be opened.
    """
    os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))


def docker_refusal(said: str) -> tuple[str, str]:
    """Return why this user may not ask Docker's daemon, and what root can do; both empty where that is not the matter.

    Args:
        said: What Docker's client printed when it failed.
    """
    if "permission denied" not in said:
        return "", ""
    user = _user_name()
    return f"{user} may not use Docker's socket", f"usermod --append --groups docker {user}, and log in again"


@functools.cache
def namespace_refusal(*options: str) -> str:
    """Return why this machine makes no namespaces, as ``unshare`` prints it; empty if it makes them.

    Args:
        options: Further options of ``unshare``.
    """
    argv = ["unshare", *options, "--mount", "--pid", "--fork", "--ipc", "--uts", "--net", "true"]
    done = ask(*argv, timeout_sec=_PROBE_TIMEOUT_SEC)
    return (done.stderr.strip() or f"status {done.returncode}") if done.returncode else ""


def _trial() -> tuple[str, str]:
    output = namespace_refusal(*USER_NAMESPACE, "--mount-proc")
    if not output:
        return "", ""
    if "map-auto" in output:
        return "unshare is older than 2.38", "install util-linux 2.38 or newer (Debian 12, Ubuntu 24.04)"
    return f"this machine refuses them namespaces ({output})", "inside a container, start that with --privileged"


def subordinate_ids() -> int:
    """Return how many subordinate ids this user has, of users and of groups."""
    user = _user_name()
    return min(ids_in(text_or_empty(path), user, os.getuid()) for path in (Path("/etc/subuid"), Path("/etc/subgid")))


def shared_ids() -> int:
    """Return how many ids, from 0 on, belong to a sandbox that uses this process's user namespace.

    The namespace's last id is reserved for programs that work on the sandbox.
    """
    return subordinate_ids() if is_rootless() else mapped_ids() - 1


def more_ids_hint() -> str:
    """Return how to give an ordinary user's sandboxes more user and group ids; empty for root's."""
    if not is_rootless():
        return ""
    return (
        f", give {_user_name()}, who has {subordinate_ids()} subordinate ids, one larger range "
        "(usermod --add-subuids, --add-subgids)"
    )


def mapped_ids() -> int:
    """Return how many ids from 0 on this process's user namespace has, for both users and groups."""
    return min(_mapped_ids(text_or_empty(Path("/proc/self") / name)) for name in ("uid_map", "gid_map"))


def mapped_ids_of_builds() -> int:
    """Return how many ids from 0 on a build has: for an ordinary user root's and the subordinate ones."""
    return 1 + subordinate_ids() if is_rootless() else mapped_ids()


def _mapped_ids(text: str) -> int:
    end = 0
    for first, _, count in sorted(tuple(map(int, line.split())) for line in text.splitlines()):
        end = first + count if first == end else end
    return end


def ids_in(text: str, user: str, uid: int) -> int:
    """Return how many subordinate ids a file like /etc/subuid (``name:first:count``) gives a user in one range."""
    rows = [line.split(":") for line in text.splitlines()]
    counts = [int(row[2]) for row in rows if len(row) == 3 and row[0] in (user, str(uid)) and row[2].isdecimal()]
    return max(counts, default=0)


def remove_tree(path: Path) -> None:
    """Remove a directory whose files may belong to the user's subordinate ids. Files that can't be removed stay."""
    shutil.rmtree(path, ignore_errors=True)
    if is_rootless() and path.exists():
        subprocess.run(["unshare", *USER_NAMESPACE, "rm", "-rf", "--", path], capture_output=True, check=False)


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"
