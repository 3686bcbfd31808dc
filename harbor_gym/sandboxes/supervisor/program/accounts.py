"""A sandbox's users and groups, read from its files before the policy's phase or now.

Imported by the supervisor, which runs by itself, and by the caller. Stdlib only.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

PASSWD, GROUP = "/etc/passwd", "/etc/group"
_FILE_BYTES, _READ_BYTES = 1 << 20, 1 << 15
_FIELDS = 4
_HOME_FIELD = 5
_LARGEST_ID = (1 << 31) - 1
"""Docker's own limit."""

type Lines = list[list[str]]
"""The lines of passwd or group, each as its fields."""

type Identity = tuple[int, int, tuple[int, ...], str]
"""A user id, a group id, all groups, and the home directory."""


class UnknownAccountError(Exception):
    """There is no such user or group; the message is for the caller."""


class Accounts(NamedTuple):
    """The content of passwd and group at one moment."""

    users: Lines
    groups: Lines


def read() -> Accounts:
    """Read the accounts of this process's root directory; unreadable files count as empty."""
    return Accounts(_lines(PASSWD), _lines(GROUP))


def _lines(path: str) -> Lines:
    """Read passwd or group.

    A FIFO in its place can't block, and a terminal does not become the reader's own, whose C-c would end it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        content = b""
        while len(content) < _FILE_BYTES and (chunk := os.read(handle, _READ_BYTES)):
            content += chunk
    except OSError:
        return []
    finally:
        os.close(handle)
    return fields_of(content.decode("utf-8", "replace"))


def fields_of(text: str) -> Lines:
    """Return the fields of each complete line of passwd or group."""
    return [fields for line in text.splitlines() if len(fields := line.split(":")) >= _FIELDS]


def identity(user: str, accounts: Accounts) -> Identity:
    """Resolve ``name``, ``uid``, ``name:group`` or ``uid:gid``.

    Raises:
        UnknownAccountError: There is no such user or group, or its number is out of range.
    """
    name, _, group = user.partition(":")
    uid = _number(name, accounts.users, PASSWD, "user")
    login, gid, home = "", 0, "/"
    for fields in accounts.users:
        if fields[2] == str(uid) and _is_id(fields[3]):
            login, gid = fields[0], int(fields[3])
            home = fields[_HOME_FIELD] if len(fields) > _HOME_FIELD and fields[_HOME_FIELD] else "/"
            break
    if group:
        gid = _number(group, accounts.groups, GROUP, "group")
        return uid, gid, (gid,), home
    members = [f for f in accounts.groups if login and login in f[3].split(",") and _is_id(f[2])]
    return uid, gid, (gid, *(int(fields[2]) for fields in members)), home


def ids_of(user: str, accounts: Accounts) -> tuple[int, ...]:
    """Return the ids that a user's processes have; empty if there is no such user."""
    try:
        uid, gid, groups, _ = identity(user, accounts)
    except UnknownAccountError:
        return ()
    return uid, gid, *groups


def known_identity(user: str, accounts: Accounts) -> Identity | None:
    """Return a user's ids from these accounts; None if they don't list the user or its group."""
    name = user.partition(":")[0]
    try:
        found = identity(user, accounts)
    except UnknownAccountError:
        return None
    is_listed = any(name in (fields[0], fields[2]) for fields in accounts.users)
    return found if is_listed else None


def _number(name: str, lines: Sequence[Sequence[str]], path: str, what: str) -> int:
    if name.isdecimal():
        if not _is_id(name):
            raise UnknownAccountError(f"{what} {name} is out of range")
        return int(name)
    for fields in lines:
        if fields[0] == name and _is_id(fields[2]):
            return int(fields[2])
    raise UnknownAccountError(f"{what} {name!r} is not in the sandbox's {path}")


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(_LARGEST_ID)) and int(text) <= _LARGEST_ID
