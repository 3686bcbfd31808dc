"""The sandbox's side of a transfer: find the place, then read or write there. No program of the sandbox takes part.

A path is followed here and not by the kernel: one name at a time, links too, each read and then followed from the
sandbox's own root, so that no file there leads to anything else, not even by the links of /proc.
"""

import contextlib
import errno
import json
import os
import select
import signal
import socket
import stat
from collections.abc import Generator
from typing import Any

import control_socket
from child import become_plain
from kernel.calls import PR_SET_PDEATHSIG, become_root, harden_self, prctl
from kernel.procfs import start_time
from messages import Target, parse
from trees.receiving import IntoSandbox, Receiver
from trees.records import ANYTHING, END, FILE, LOST, Allowance, Choice, Stream, StreamEndedError, TransferError, show
from trees.sending import Sender

_REQUEST_BYTES = 1 << 17
_MAX_LINKS = 40
"""Linux's own limit."""
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FULL = {errno.ENOSPC, errno.EDQUOT}


def serve(handle: int, target: object, view_namespace: int = -1) -> int:
    """Move files into and out of a living sandbox until the caller wants no more; return the exit status.

    Nothing of a transfer is kept for the next. Errors are reported on a transfer's stream; the caller ends this process
    after any.

    Args:
        handle: A socket of the caller's, which brings for each transfer its work (see :func:`carry`) and a stream.
        target: The sandbox.
        view_namespace: The verifier's view, where that is what the files are to be seen in.
    """
    os.set_inheritable(handle, False)
    control = socket.socket(fileno=handle)
    first = select.poll()
    try:
        root, pidfd = _enter_files(parse(Target, target), view_namespace)
        first.register(pidfd, select.POLLIN)
    except (ProcessLookupError, FileNotFoundError):
        root = -1
    while True:
        spec, streams = control_socket.receive(control, _REQUEST_BYTES)
        if not spec:
            return 0
        # The sandbox has ended, and only this process still keeps its files.
        if root < 0 or first.poll(0):
            Stream(streams[0]).send_error("the sandbox is gone", LOST)
            return 1
        carry(root, json.loads(spec), streams[0])
        os.close(streams[0])


def _enter_files(target: Target, view_namespace: int) -> tuple[int, int]:
    """Move this process to a living sandbox's files, as its root sees them.

    It stays out of the sandbox's other namespaces: no process inside can see, signal, read or stop it. For that it must
    be started outside, by the forkserver: an ordinary user's supervisor, once its children are the sandbox's, may start
    none elsewhere (EPERM from setns(2): its PID namespace is not its user namespace's).

    Returns:
        A descriptor of the root directory, and one of the sandbox's first process.

    Raises:
        ProcessLookupError: The sandbox is gone.
        FileNotFoundError: The sandbox is gone.
    """
    pidfd = os.pidfd_open(target.init)
    if start_time(target.init) != target.start_time:
        raise ProcessLookupError
    harden_self()
    become_plain()
    os.setns(pidfd, os.CLONE_NEWNS | os.CLONE_NEWUSER)
    become_root()
    if view_namespace >= 0:
        os.setns(view_namespace, os.CLONE_NEWNS)
        os.close(view_namespace)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.open("/", os.O_PATH | os.O_DIRECTORY), pidfd


def carry(root: int, spec: dict[str, Any], handle: int) -> None:
    """Do one transfer, and send its end or its error.

    Args:
        root: A descriptor of the sandbox's root directory.
        spec: ``work``, ``path`` (its bytes as Latin-1), ``limit_bytes``, and a directory's ``choice``.
        handle: The stream to the other side.
    """
    stream = Stream(handle)
    try:
        allowance = Allowance(spec["limit_bytes"])
        path = spec["path"].encode("latin-1")
        match spec["work"]:
            case "upload_file":
                _upload_file(root, path, stream, allowance)
            case "upload_dir":
                _upload_dir(root, path, stream, allowance)
            case "download_file":
                _download_file(root, path, stream, allowance)
            case _:
                _download_dir(root, path, stream, allowance, Choice(**spec["choice"]))
    except StreamEndedError:
        pass
    except (TransferError, ValueError) as exc:
        stream.send_error(str(exc))
    except OSError as exc:
        stream.send_error(_explain(exc))


def _explain(exc: OSError) -> str:
    hint = ": the sandbox's storage is full, give the task more storage_mb" if exc.errno in _FULL else ""
    at = f"{show(os.fsencode(exc.filename))}: " if isinstance(exc.filename, str | bytes) else ""
    return f"{at}{exc.strerror}{hint}"


def _upload_file(root: int, path: bytes, stream: Stream, allowance: Allowance) -> None:
    record = stream.receive()
    if record.kind != FILE:
        raise TransferError("no file comes")
    receiver = Receiver(stream, allowance, IntoSandbox())
    with _file_place(root, path) as (place, name):
        receiver.write_file(place, name or record.body, record)
    _confirm(stream)


@contextlib.contextmanager
def _file_place(root: int, path: bytes) -> Generator[tuple[int, bytes]]:
    """Find a file's destination; a dangling link there is replaced."""
    with contextlib.ExitStack() as opened:
        try:
            found = opened.enter_context(found_place(root, path, make=True))
        except FileNotFoundError:
            parent, _, name = path.rstrip(b"/").rpartition(b"/")
            place, rest = opened.enter_context(found_place(root, parent))
            if rest or name in (b"", b".", b".."):
                raise
            found = place, name
        yield found


def _upload_dir(root: int, path: bytes, stream: Stream, allowance: Allowance) -> None:
    with found_place(root, path, make=True) as (place, name):
        made = make_directory(place, name) if name else os.open(".", _LISTED, dir_fd=place)
        try:
            Receiver(stream, allowance, IntoSandbox()).receive_tree(made)
        finally:
            os.close(made)
    _confirm(stream)


def _confirm(stream: Stream) -> None:
    stream.send(END)
    stream.flush()


def _download_file(root: int, path: bytes, stream: Stream, allowance: Allowance) -> None:
    with found_place(root, path) as (place, name):
        if not name:
            raise TransferError("it is a directory, no file")
        handle = os.open(name, ANYTHING, dir_fd=place)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise TransferError("it is no ordinary file")
            Sender(stream, allowance).send_file(handle, name)
        finally:
            os.close(handle)


def _download_dir(root: int, path: bytes, stream: Stream, allowance: Allowance, choice: Choice) -> None:
    around: set[tuple[int, int]] = set()
    with found_place(root, path, around=around) as (place, name):
        if name:
            os.stat(name, dir_fd=place, follow_symlinks=False)
            raise TransferError("it is no directory")
        if _identity(place) in around:
            raise TransferError("a link leads to a directory that contains the link: all of that is not copied")
        handle = os.open(".", _LISTED, dir_fd=place)
        try:
            Sender(stream, allowance, choice).send_tree(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def found_place(
    root: int, path: bytes, *, make: bool = False, around: set[tuple[int, int]] | None = None
) -> Generator[tuple[int, bytes]]:
    """Follow a path from the sandbox's root.

    Args:
        root: A descriptor of the root directory.
        path: Of bytes, absolute or taken as such.
        make: Make directories on the way where they are missing, root's; not where a link leads.
        around: Takes the device and inode of each directory that contains a link on the way.

    Yields:
        A directory's descriptor and a name in it: empty where the path leads to that directory itself. Something that
        is no directory has the name, or, with ``make``, nothing yet.

    Raises:
        FileNotFoundError: The path does not exist, or a link dangles.
        OSError: The way leads through a file, or through too many links.
    """
    way = [os.open(".", _PLACE | os.O_DIRECTORY, dir_fd=root)]
    try:
        yield _follow(way, path, make=make, around=set() if around is None else around)
    finally:
        for handle in way:
            os.close(handle)


def _identity(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino


def _follow(way: list[int], path: bytes, *, make: bool, around: set[tuple[int, int]]) -> tuple[int, bytes]:
    """Follow a path; ``way`` holds the descriptors from the root on, to be closed by the caller."""
    parts = [(part, make) for part in reversed(path.split(b"/"))]
    """The parts still to follow, each with whether it may be made."""
    links = 0
    while parts:
        name, may_make = parts.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            if len(way) > 1:
                os.close(way.pop())
            continue
        is_last = all(part in (b"", b".") for part, _ in parts)
        try:
            handle = os.open(name, _PLACE, dir_fd=way[-1])
        except FileNotFoundError:
            if not may_make:
                raise
            if is_last:
                return way[-1], name
            os.close(make_directory(way[-1], name))
            handle = os.open(name, _PLACE, dir_fd=way[-1])
        kind = stat.S_IFMT(os.fstat(handle).st_mode)
        if kind == stat.S_IFDIR:
            way.append(handle)
            continue
        try:
            target = os.readlink(b"", dir_fd=handle) if kind == stat.S_IFLNK else b""
        finally:
            os.close(handle)
        if kind != stat.S_IFLNK:
            if is_last:
                return way[-1], name
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        around.update(map(_identity, way))
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        if target.startswith(b"/"):
            while len(way) > 1:
                os.close(way.pop())
        parts += [(part, False) for part in reversed(target.split(b"/"))]
    return way[-1], b""


def make_directory(place: int, name: bytes) -> int:
    """Make a directory owned by root that all may read, and open it."""
    os.mkdir(name, 0o700, dir_fd=place)
    handle = os.open(name, _LISTED | os.O_NOFOLLOW, dir_fd=place)
    os.fchown(handle, 0, 0)
    os.fchmod(handle, 0o755)
    return handle
