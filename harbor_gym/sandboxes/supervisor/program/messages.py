"""The messages from the caller to its sandboxes' supervisors, typed on both sides and checked on arrival. Stdlib only.

Named tuples and not data classes: that module's imports would lengthen each start of the program.
"""

import functools
import json
import os
from types import NoneType, UnionType
from typing import Any, NamedTuple, cast, get_args, get_origin

NAMESPACES = os.CLONE_NEWPID | os.CLONE_NEWIPC | os.CLONE_NEWUTS | os.CLONE_NEWNET | os.CLONE_NEWCGROUP
"""A sandbox's own namespaces, beside those of mounts and users."""

OPEN_FILES, MAX_OPEN_FILES = 1024, 4096
"""Soft and hard limit of open files of one process in a sandbox.

The machine has one limit of open files for all (fs.file-max), and the trainer's own limit is often a hundred times
these. They are Linux's defaults (INR_OPEN_CUR, INR_OPEN_MAX): the first is enough for ordinary programs, the second for
servers and compilers that raise it. ``harbor-gym doctor`` compares fs.file-max with the sum of all sandboxes.
"""
OPEN_FILES_OF_CALLER = 2 * MAX_OPEN_FILES
"""The lowest limit of open files of a process that starts sandboxes.

The kernel counts descriptors in transit in sockets by user, and refuses a process of that user to send any above its
own limit (unix(7), ETOOMANYREFS): a root inside that is the caller's user could stop the caller from running commands.
"""


ORDINARY_IDS, MORE_IDS, HIGH_IDS = 1 << 16, 1 << 19, 1 << 7
"""Numbers of ids of a sandbox with a range of its own: below 65536, above, and single ones above those for its image.

The kernel has 340 places for such ids in a map, and no 4096 ranges of more than 128.
"""
FIRST_OWN_ID = 0x70000000
"""First id of the ranges: above those that systemd gives to containers and below 2^31, where no account or subordinate
range is.
"""


class CgroupLimits(NamedTuple):
    """Limits on all processes of one sandbox together. None is no limit."""

    memory_bytes: int | None = None
    cpus: float | None = None
    max_processes: int | None = None
    processors: tuple[int, ...] = ()
    """The machine's processors on which they run, ascending; empty is no limit.

    They inherit them from the supervisor, which needs no right and no group. A process can choose others for itself
    (taskset): how much it gets is ``cpus``.
    """


class Criu(NamedTuple):
    """The program that dumps and restores processes, as this machine has it."""

    program: str
    version: str
    notes: str
    """What it found of the kernel, in base64, as it keeps that in /run."""

    limit_ms: int
    """It is killed after so long: less than its caller waits."""


POOL = "198.18.0.0/15"
"""Where a sandbox with an allowlist finds all listed names: addresses that nobody has (RFC 2544)."""


class Allowlist(NamedTuple):
    """All that a sandbox may reach."""

    names: tuple[str, ...]
    """Host names, as :class:`egress.names.Names` takes them."""

    networks: tuple[str, ...]
    """As ``a.b.c.d/n``, or of IPv6: none contains another, and none has a part that no packet may reach."""


class NetworkChange(NamedTuple):
    """The network that a running sandbox gets."""

    is_public: bool
    allowlist: Allowlist | None
    """None, where it is not public: none at all."""


class Proxied(NamedTuple):
    """What a sandbox's proxy has to know."""

    names: tuple[str, ...]
    networks: tuple[str, ...]
    """Those of the allowlist."""

    closed_networks: tuple[str, ...]
    """To which no name may lead."""

    name_server: str
    """Where the sandbox believes its resolver."""

    is_rootless: bool
    """Whether the caller is an ordinary user."""


HOST_NAME = "sandbox"
"""The host name in every image's /etc."""


class SupervisorConfig(NamedTuple):
    """The configuration of one sandbox for its supervisor."""

    parent: int
    """The caller's process: the sandbox ends with it."""

    layers: tuple[str, ...]
    """Directories of the image, the topmost first; none where ``image`` mounts it."""

    mountpoint: str
    """An empty directory of the cache."""

    storage_bytes: int
    """What may be written."""

    slirp4netns: str | None
    """The program's path."""

    has_network: bool
    """Whether it starts with a public network."""

    may_have_network: bool
    """Whether it may get one later."""

    allowlist: Allowlist | None
    """With which it starts."""

    may_have_allowlist: bool
    """Whether it may get one later."""

    name_server: str
    etc: dict[str, str]
    """File of /etc to be written → its content."""

    directories: dict[str, int | None]
    """Directories to make, and their modes; None leaves theirs."""

    is_rootless: bool
    """Whether the caller is an ordinary user."""

    has_own_ids: bool
    """Whether its users have ids that nobody else has."""

    high_ids: tuple[int, ...]
    """Those of its ids that are above a range's own."""

    filters: tuple[str, ...]
    """System call filters, each the kernel's instructions in base64."""

    closed_networks: tuple[str, ...]
    """Networks that no packet may reach, as ``a.b.c.d/n``."""

    cgroups: dict[str, tuple[int, str]]
    """Controller → version and directory of the group to make."""

    limits: CgroupLimits

    image: tuple[str, ...] = ()
    """A FUSE program that serves the image, and its arguments before the mount point."""

    overlay: tuple[str, ...] = ()
    """A FUSE program that serves the overlay, and its arguments before the layers; none where the kernel does."""

    is_copy: bool = False
    """Whether it begins with the files of a dump."""

    users: tuple[str, ...] = ()
    """Users of its accounts whose ids the caller asks for."""

    shares_network: bool = False
    """Whether it has the machine's network instead of one of its own."""

    host_name: str = HOST_NAME
    network_of: int = 0
    """The first process of a sandbox whose network it has instead of one of its own; 0 for none."""

    devices: tuple[str, ...] = ()
    """Its devices in networks between services, by which its packets may go anywhere in these."""


def own_namespaces(config: SupervisorConfig) -> int:
    """Return those of :data:`NAMESPACES` that a sandbox has for itself."""
    return NAMESPACES & ~(os.CLONE_NEWNET if config.shares_network else 0)


class Target(NamedTuple):
    """A running sandbox, for processes that enter it."""

    init: int
    """Its first process."""

    start_time: str
    """That process's start, which tells reused pids apart."""

    ids: tuple[tuple[int, int, int], ...]
    """The map of its user namespace, if it has one of its own: ``kernel.ids.Extents``."""

    cgroups: dict[str, tuple[int, str]]
    is_rootless: bool
    filters: tuple[str, ...]
    limits: CgroupLimits = CgroupLimits()
    namespaces: int = NAMESPACES
    """Those of :data:`NAMESPACES` that are its own; an ordinary user can't enter the machine's."""


class Identity(NamedTuple):
    """A user by numbers."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


class CommandSpec(NamedTuple):
    """One command with its user, directory and environment."""

    command: str
    """Text for the sandbox's shell; with ``argv`` only the command's name in errors."""

    user: str
    cwd: str
    env: dict[str, str]
    argv: tuple[str, ...] = ()
    """A program, by its path or by its name in PATH, and its arguments: run without a shell; empty for none."""

    joins_outputs: bool = False
    """Whether standard error goes where standard output goes."""

    directory: str = ""
    """A directory that the user makes first, for himself alone; nothing happens where he can't. Empty for none."""

    dropped: tuple[int, ...] = ()
    """Capabilities that it and all of its children lack."""

    no_new_privileges: bool = False
    """Whether no setuid program gives it rights."""

    # The sandbox fills in the following fields.
    identity: Identity | None = None
    """The user's ids before the policy; None: to be looked up in the sandbox's own accounts."""

    rank: str = ""
    """One of :data:`kernel.capabilities.RANKS`, which decides whose memory and files it can open."""

    is_root: bool = False
    """Whether it is the parent of all below it whose own parent ends."""


class MessageError(ValueError):
    """A message has another form than expected: the caller's code is another version, or broken."""


def as_object(message: Any) -> Any:
    """Return a message as JSON values."""
    if hasattr(message, "_fields"):
        return {name: as_object(value) for name, value in zip(message._fields, message, strict=True)}
    if isinstance(message, dict):
        return {name: as_object(value) for name, value in message.items()}  # pyright: ignore[reportUnknownVariableType]  # whatever it is
    return message


def to_json(message: Any) -> str:
    """Return a message as text."""
    return json.dumps(as_object(message))


def parse[T](kind: type[T], data: object) -> T:
    """Return a message of a kind from JSON values.

    Raises:
        MessageError: A field is missing, unknown or of another type; the text names it.
    """
    return cast("T", _checked(kind, data, kind.__name__))


def _checked(kind: Any, value: Any, name: str) -> Any:
    if type(value) is kind:
        return value
    if hasattr(kind, "_fields"):
        return _record(kind, value, name)
    origin, arguments = _shape(kind)
    if origin is UnionType:
        return None if value is None and NoneType in arguments else _checked(arguments[0], value, name)
    if origin is dict and isinstance(value, dict):
        return {_checked(str, k, name): _checked(arguments[1], v, f"{name}[{k!r}]") for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]  # any JSON
    if origin is tuple and isinstance(value, list):
        kinds = [arguments[0]] * len(value) if arguments[-1] is ... else list(arguments)  # pyright: ignore[reportUnknownArgumentType]  # any JSON
        if len(kinds) == len(value):  # pyright: ignore[reportUnknownArgumentType]  # any JSON
            return tuple(_checked(k, v, f"{name}[{n}]") for n, (k, v) in enumerate(zip(kinds, value, strict=True)))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # any JSON
    elif kind is float and type(value) is int:
        return value
    raise MessageError(f"{name}: expected {kind}, got {type(value).__name__}")


@functools.cache
def _shape(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


def _record(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise MessageError(f"{name}: expected an object, got {type(value).__name__}")
    given: dict[str, Any] = value
    if different := given.keys() ^ set(kind._fields):
        raise MessageError(f"{name}: missing or unknown: {', '.join(sorted(map(str, different)))}")
    return kind(**{field: _checked(kind.__annotations__[field], given[field], f"{name}.{field}") for field in given})
