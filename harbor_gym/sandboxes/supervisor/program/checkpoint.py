"""Dump the processes below one root to memory, with the files of their sandbox, and restore them in another sandbox.

CRIU does both. It runs inside the sandbox's own namespaces, so that it has no namespace and no mount to save. It loads
no file of the sandbox: it starts outside with its libraries, and enters before its first instruction (``_entering``).
It pauses twice for an answer: with ``query-ext-files`` when all processes are frozen and none is changed, where we
look for what it would leave out, and with ``post-dump``, where we copy the files.

Source: criu(8), criu's images/rpc.proto, images/inventory.proto, images/core.proto and images/sk-packet.proto,
prctl(2), prlimit(2), elf(5), ld.so(8).
"""

import base64
import contextlib
import errno
import mmap
import os
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kernel import cgroups, ipc
from kernel.calls import (
    CAP_SYS_RESOURCE,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    become_root,
    has_capability,
    memory_directory,
    message_queues,
    prctl,
)
from kernel.ids import Extents, outside_of
from kernel.procfs import read_stat
from left_out import (
    CheckpointError,
    Input,
    name_of,
    note_input,
    note_threads,
    put_back,
    require_none,
    set_noted,
    take_input,
)
from messages import Criu, SupervisorConfig

IMAGES, UPPER, SHM = "images", "upper", "shm"
"""Directories of a copy in memory."""
_LOG = "criu.log"
_DUMP, _NOTIFY = 1, 6
"""Of rpc.proto's criu_req_type."""
_BEFORE, _BEHIND = b"query-ext-files", b"post-dump"
"""CRIU's notification when all processes are frozen and none is changed; that when it is done and they still are."""
_MESSAGE_BYTES = 1 << 16
_MOST_PID = 1 << 22
_TREE_SEC, _VFORK_SEC, _PAUSE_SEC = 1.0, 0.5, 0.01
_FIRST = 1
_NOTES, _OUR_NOTES, _NOTES_HANDLE = b"/run/criu.kdat", b"/dev/fd/999", 999
"""The file in which CRIU caches the kernel's features, which in the sandbox the policy could write; ours instead."""
_NO_ERROR = "RLIMIT_NOFILE for self"
"""What CRIU logs as an error although it goes on."""
_REPLACED = "Can't create link remap for "
"""CRIU's message about a deleted file that has another name, or belongs to the image."""

_CAPABILITY = "security.capability"
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_ACL_ENTRY, _ACL_OF_ID = struct.Struct("<HHI"), (2, 8)
"""An entry behind the first four bytes: tag, rights, id; the tags whose id counts."""
_SETNS, _SETGROUPS, _SETRESUID, _SETRESGID, _PRCTL = 308, 116, 117, 119, 157
"""Of x86_64."""
_MAKES_PROCESSES = ("56", "58", "435")
"""Likewise clone, vfork and clone3, as /proc/PID/syscall shows them."""
_PR_SET_DUMPABLE = 4
_PIE, _X86_64, _LOAD, _EXECUTE, _PAGE_BYTES = 3, 62, 1, 1, 4096
_ENTRY = 24
"""The place of the first instruction's address."""
_NOTHING = 4096
_MARGIN_BYTES = 64 << 20
_LAST_DESCRIPTOR = 1 << 20
_FULL_BYTES = 1 << 20
_UNPACK = ("/bin/tar", "--extract", "--preserve-permissions", "--same-owner", "--numeric-owner", "--acls", "--xattrs",
           "--xattrs-include=*", "--file=-")  # fmt: skip


class HarmError(CheckpointError):
    """CRIU was killed while its code ran in the dumped processes, which may be damaged."""


# --- protocol buffers, as far as CRIU's need them ---------------------------------------------------------------------


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes, int]]:
    """Yield each field's number, its value, and where that begins."""
    place = 0

    def varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            byte = message[place]
            place += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while place < len(message):
        key = varint()
        at = place
        match key & 7:
            case 0:
                yield key >> 3, varint(), at
            case 2:
                length = varint()
                yield key >> 3, message[place : place + length], place
                place += length
            case 1 | 5 as width:
                size = 8 if width == 1 else 4
                yield key >> 3, message[place : place + size], place
                place += size
            case kind:
                raise CheckpointError(f"CRIU wrote a field of kind {kind}")


# --- in a child of the supervisor, which is in the sandbox's namespaces but the user's and the mounts' ----------------


class Place(NamedTuple):
    """One sandbox, seen from a child of its supervisor."""

    init: int
    """A descriptor of its first process."""

    mounts: int
    home: int
    """Descriptors of its mount namespace, and of the supervisor's."""

    files: int
    """A descriptor of the directory in which its ``upper`` is."""

    cgroup_fds: list[int]
    extents: Extents

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        """Be in the sandbox's mount namespace during the block."""
        os.setns(self.mounts, os.CLONE_NEWNS)
        try:
            yield
        finally:
            os.setns(self.home, os.CLONE_NEWNS)
            os.fchdir(self.files)


def room(config: SupervisorConfig) -> int:
    """Return a dump's limit in bytes: that of the sandbox's files and memory, at most half of the available memory.

    Processes that share memory since their fork have it in a dump several times.
    """
    with open("/proc/meminfo", encoding="utf-8") as lines:  # noqa: PTH123
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    own = config.storage_bytes + (config.limits.memory_bytes or available) + _MARGIN_BYTES
    return min(own, available // 2)


def dump(place: Place, criu: Criu, memory: int, root: int) -> dict[str, Any]:
    """Dump a process and its descendants, and the sandbox's files, while all are frozen. They resume afterwards.

    Args:
        place: The sandbox.
        criu: The program.
        memory: A descriptor of an empty directory.
        root: The process's id in the sandbox.

    Returns:
        The ``last`` process id that the dump has; or the ``harm`` that was done to the processes.

    Raises:
        CheckpointError: They can't be dumped; they run on undisturbed.
        OSError: The kernel refuses.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for name in (IMAGES, UPPER, SHM):
        os.mkdir(name, 0o755, dir_fd=memory)
    images = os.open(IMAGES, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=memory)
    with place.entered():
        if objects := [*ipc.list_objects(), *_message_queues()]:
            raise CheckpointError(
                f"there are System V objects or message queues, which CRIU would leave out: {', '.join(objects[:3])}"
            )
        pids = _await_only_tree(root)
        _require_no_vfork(pids)
        owner = _owner_of(pids)
        shm = os.open("/dev/shm", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    taken: list[Input] = []

    def take_input_out() -> None:
        with place.entered():
            tree = _split(root)[0]
            require_none(tree)
            note_threads(images, tree)
            taken.extend(take_input(tree))
            note_input(images, taken)

    def copy_files() -> None:
        with place.entered():
            put_back(taken)
            _require_no_others(root)
        for name, source in ((UPPER, "upper/."), (SHM, f"/proc/self/fd/{shm}/.")):
            target = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=memory)
            if name == UPPER or os.listdir(shm):  # noqa: PTH208
                _copy(source, target)
            else:
                os.fchmod(target, stat.S_IMODE(os.fstat(shm).st_mode))
            os.close(target)

    enter = [(_SETNS, place.mounts, os.CLONE_NEWNS)]
    if not has_capability(CAP_SYS_RESOURCE):
        # prlimit(2) then asks for the real ids of whom it looks at; the effective ones stay root's.
        enter += _becoming(owner, 0)
    sock, pid = _serve(criu, images, place, enter)
    try:
        _ask_for_dump(sock, pid, images, root, {_BEFORE: take_input_out, _BEHIND: copy_files})
    except HarmError as exc:
        return {"harm": str(exc)}
    except CheckpointError:
        _require_room(memory)
        raise
    finally:
        sock.close()
        with place.entered():
            _end_children()
            put_back(taken)
    _require_plain_messages(images)
    last = _prepare_images(images)
    return {"last": last}


def _require_room(memory: int) -> None:
    """Check that a dump's directory is not full.

    Raises:
        CheckpointError: It is.
    """
    room = os.statvfs(f"/proc/self/fd/{memory}")
    if room.f_bavail * room.f_frsize < _FULL_BYTES:
        most = room.f_blocks * room.f_frsize >> 20
        raise CheckpointError(f"its processes and files take more than {most} MiB of memory when copied") from None


def _ask_for_dump(
    sock: socket.socket, pid: int, images: int, root: int, at: Mapping[int | bytes, Callable[[], None]]
) -> None:
    # images_dir_fd, pid, leave_running, file_locks, log_level, log_file, notify_scripts, manage_cgroups and its mode
    # (ignore), ghost_limit, network_lock (skip)
    options = b"".join((
        _field(1, images), _field(2, root), _field(3, 1), _field(8, 1), _field(9, 2), _field(10, _LOG.encode()),
        _field(12, 1), _field(24, 0), _field(34, 0), _field(35, 64 << 20), _field(64, 3),
    ))  # fmt: skip
    failure, stage, criu = None, b"", os.pidfd_open(pid)
    with contextlib.suppress(ConnectionError):
        sock.send(_field(1, _DUMP) + _field(2, options))
    while True:
        answer = b""
        select.select((sock, criu), (), ())  # its own helpers may outlive it with the socket
        with contextlib.suppress(ConnectionError, BlockingIOError):
            answer = sock.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT)
        if not answer:
            # No freezer helps in between: its code has to run, and who traces a process is the only one who may.
            is_inside = stage == _BEFORE and failure is None
            raise (HarmError if is_inside else CheckpointError)(f"CRIU ended in the dump{_reason(images)}")
        fields = {number: value for number, value, _ in _fields(answer)}
        if fields[1] != _NOTIFY:
            break
        assert isinstance(fields[5], bytes)
        stage = next(value for number, value, _ in _fields(fields[5]) if number == 1)
        if stage in at:
            try:
                at[stage]()
            except (CheckpointError, OSError) as exc:
                failure = exc  # CRIU lets the processes go first
        with contextlib.suppress(ConnectionError):
            sock.send(_field(1, _NOTIFY) + _field(3, failure is None))
    os.close(criu)
    if failure is not None:
        raise failure
    if not fields[2]:
        raise CheckpointError(f"the processes can't be dumped{_reason(images)}")


def pass_ids(last: int) -> None:
    """Make the sandbox's next processes have ids above ``last``: restored processes take the others."""
    pid = os.fork()
    if pid == 0:
        try:
            handle = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC)
            os.write(handle, str(last).encode())  # of the writer's own namespace
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def restore(place: Place, criu: Criu, memory: int, source: Extents) -> dict[str, Any]:
    """Restore a dump below the first process of a sandbox in which nothing else runs.

    Raises:
        CheckpointError: It can't be restored.
        OSError: The kernel refuses.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    images = os.open(IMAGES, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=memory)
    log = os.memfd_create("log", 0)
    with place.entered():
        if others := _processes().keys() - {_FIRST, os.getpid()}:
            raise CheckpointError(f"process {min(others)} of the new sandbox may have an id of the dump's")
        shm = os.open("/dev/shm", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    copied = os.open(SHM, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=memory)
    if os.listdir(copied):  # noqa: PTH208
        # Only the sandbox's own root can make files there, and has no ids but its own.
        state = os.statvfs(f"/proc/self/fd/{shm}")
        room = memory_directory(state.f_blocks * state.f_frsize)
        moved = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=room)
        _copy(f"/proc/self/fd/{copied}/.", moved)
        give(moved, source, place.extents)
        _copy(f"/proc/self/fd/{moved}/.", shm, place.init)
    os.fchmod(shm, stat.S_IMODE(os.fstat(copied).st_mode))  # cp lets a directory that is there keep its sticky bit

    def begin() -> None:
        cgroups.join(place.cgroup_fds)
        for target in (1, 2):
            os.dup2(log, target)

    # A change of ids closes a process's own files in /proc to it.
    enter = [
        (_SETNS, place.mounts, os.CLONE_NEWNS), (_SETNS, place.init, os.CLONE_NEWUSER), *_becoming((0, 0), 0),
        (_PRCTL, _PR_SET_DUMPABLE, 1),
    ]  # fmt: skip
    arguments = ("restore", "--images-dir", f"/proc/self/fd/{images}", "--restore-detached", "--manage-cgroups=ignore",
                 "--network-lock=skip", "--file-locks", "--unprivileged", "-v1")  # fmt: skip
    pid = _start(criu, arguments, (images, place.mounts, place.init), begin, enter)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise CheckpointError(f"the processes can't be restored{_why(os.pread(log, _MESSAGE_BYTES, 0))}")
    with place.entered():
        set_noted(images)
    return {}


def unpack(archive: int, most_bytes: int) -> int:
    """Return a descriptor of a directory in memory with a dump that was packed, which is read from its offset on.

    Raises:
        CheckpointError, OSError: It can't be done.
    """
    memory = memory_directory(most_bytes)
    if _run((*_UNPACK, "--directory", f"/proc/self/fd/{memory}"), memory, stdin=archive):
        _require_room(memory)
        raise CheckpointError("the dump can't be unpacked")
    return memory


def fill(directory: str, memory: int, source: Extents, target: Extents) -> None:
    """Fill an empty directory with the files of a dump, as another sandbox's.

    Raises:
        CheckpointError, OSError: It can't be done.
    """
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    copied = os.open(UPPER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=memory)
    _copy(f"/proc/self/fd/{copied}/.", here)
    give(here, source, target)
    os.close(copied)
    os.close(here)


def _serve(criu: Criu, images: int, place: Place, enter: Sequence[tuple[int, ...]]) -> tuple[socket.socket, int]:
    """Start CRIU as a server of one request; return the socket to it, and its process id."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def begin() -> None:
        # It opens the images by the process that made its socket: itself.
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(far, [b"s"], [other.fileno()])
        os.dup2(own.fileno(), theirs.fileno())

    arguments, kept = ("swrk", str(theirs.fileno())), (images, theirs.fileno(), place.mounts)
    pid = _start(criu, arguments, kept, begin, enter)
    far.close()
    theirs.close()
    ours.close()
    _, handles, *_ = socket.recv_fds(near, 1, 1)
    near.close()
    if not handles:
        os.waitpid(pid, 0)
        raise CheckpointError("CRIU does not start")
    return socket.socket(fileno=handles[0]), pid


def _start(
    criu: Criu,
    arguments: Sequence[str],
    kept: Sequence[int],
    begin: Callable[[], None],
    enter: Sequence[tuple[int, ...]],
) -> int:
    """Fork CRIU, which enters the sandbox's namespaces by the calls ``enter``. Return its process id."""
    program = _entering(criu.program, enter)
    notes = _in_memory("notes", base64.b64decode(criu.notes))
    plugins = memory_directory(_NOTHING, 0o755)
    pid = os.fork()
    if pid:
        for handle in (program, notes, plugins):
            os.close(handle)
        _watch(pid, criu.limit_ms)
        return pid
    try:
        begin()
        os.dup2(notes, _NOTES_HANDLE)
        for handle in (plugins, *kept):
            os.set_inheritable(handle, True)
        # It loads each plugin that lies there.
        variables = {"CRIU_LIBS_DIR": f"/proc/self/fd/{plugins}", "PATH": "/nonexistent", "XDG_RUNTIME_DIR": "/dev"}
        os.execve(program, ["criu", "--no-default-config", *arguments], variables)
    except BaseException as exc:  # a forked child must never return into its parent's code
        with contextlib.suppress(OSError):
            os.write(2, f"Error: {exc}\n".encode())
    finally:
        os._exit(127)


def _watch(pid: int, limit_ms: int) -> None:
    """Fork a watchdog that kills CRIU after the limit, also if the policy stopped it; what is frozen then resumes."""
    watched = os.pidfd_open(pid)
    if os.fork():
        os.close(watched)
        return
    try:
        os.dup2(watched, 3)
        os.closerange(4, _LAST_DESCRIPTOR)
        poll = select.poll()
        poll.register(3, select.POLLIN)
        if not poll.poll(limit_ms):
            signal.pidfd_send_signal(3, signal.SIGKILL)
    finally:
        os._exit(0)


def _entering(path: str, calls: Sequence[tuple[int, ...]]) -> int:
    """Return CRIU's program in memory, so that it enters and takes its notes from a descriptor, and writes none.

    The kernel copies it: this process would take a page at a time for each change of so long a text.

    Args:
        path: The program.
        calls: System calls that it makes before its own first instruction, and ends where one fails.

    Raises:
        CheckpointError: It is another CRIU than the ones known here.
    """
    program = os.memfd_create("criu", os.MFD_CLOEXEC)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:  # noqa: PTH123
        notes = text.find(_NOTES)
        if notes < 0 or text.find(_NOTES, notes + 1) >= 0:
            raise CheckpointError(f"{path} is another CRIU than the ones known here")
        copied = 0
        while copied < len(text):
            copied += os.sendfile(program, file.fileno(), copied, len(text) - copied)
        for place, changed in ((notes, _OUR_NOTES.ljust(len(_NOTES), b"\0")), *_first_instructions(text, calls)):
            os.pwrite(program, changed, place)
    return program


def _becoming(real: tuple[int, int], effective: int) -> list[tuple[int, ...]]:
    user, group = real
    return [(_SETGROUPS, 0, 0), (_SETRESGID, group, effective, effective), (_SETRESUID, user, effective, effective)]


def _first_instructions(program: mmap.mmap, calls: Sequence[tuple[int, ...]]) -> list[tuple[int, bytes]]:
    """Return the changes of a program, each with its place, by which it makes these system calls first.

    Its interpreter has loaded and prepared all its libraries then, so that they are this machine's. Inside, the
    interpreter would obey files that the policy writes: /etc/ld.so.preload, and those where a library is looked for.

    Raises:
        CheckpointError: It is no program of this machine, or has no room for them.
    """
    # r12 keeps rdx, which the interpreter hands over.
    code = b"\x49\x89\xd4"
    for number, *arguments in calls:
        code += b"\xb8" + struct.pack("<I", number)
        for register, value in zip((b"\xbf", b"\xbe", b"\xba"), arguments, strict=False):
            code += register + struct.pack("<I", value)
        # syscall; if eax != 0: exit_group(127)
        code += b"\x0f\x05\x85\xc0\x74\x0c\xbf\x7f\0\0\0\xb8\xe7\0\0\0\x0f\x05"
    code += b"\x4c\x89\xe2\xe9"
    kind, machine, entry, table = struct.unpack_from("<HH4xQQ", program, 16)
    if program[:5] != b"\x7fELF\x02" or (kind, machine) != (_PIE, _X86_64):
        raise CheckpointError("CRIU is no program of this machine's kind (x86_64)")
    size, count = struct.unpack_from("<HH", program, 54)
    for number in range(count):
        kind, rights, offset, address, _, length = struct.unpack_from("<IIQQQQ", program, table + number * size)
        if kind == _LOAD and rights & _EXECUTE:
            end, start = offset + length, address + length
            code += struct.pack("<i", entry - (start + len(code) + 4))
            # The rest of its last page comes from the file too.
            if len(code) > -end % _PAGE_BYTES or any(program[end : end + len(code)]):
                break
            return [(_ENTRY, struct.pack("<Q", start)), (end, code)]
    raise CheckpointError("CRIU's program has no room for the calls that enter a sandbox")


def _in_memory(name: str, content: bytes) -> int:
    handle = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _message_queues() -> list[str]:
    """Return the POSIX message queues of the sandbox, as ``mqueue:/NAME``."""
    try:
        directory = message_queues()
    except OSError as exc:
        if exc.errno == errno.ENODEV:  # a kernel without them
            return []
        raise
    try:
        return [f"mqueue:/{name}" for name in os.listdir(f"/proc/self/fd/{directory}")]  # noqa: PTH208
    finally:
        os.close(directory)


# --- processes --------------------------------------------------------------------------------------------------------


def _processes() -> dict[int, int]:
    """Return process → parent of the sandbox whose /proc is mounted here."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = read_stat(int(name))
                if not stat.has_exited or stat.state == "Z":
                    found[int(name)] = stat.parent
    return found


def _split(root: int) -> tuple[list[int], list[int]]:
    """Return the processes of the tree, and all others but the first and this one."""
    processes = _processes()
    tree: set[int] = {root} & processes.keys()
    grows = True
    while grows:
        more = {pid for pid, parent in processes.items() if parent in tree} - tree
        tree |= more
        grows = bool(more)
    return sorted(tree), sorted(processes.keys() - tree - {_FIRST, os.getpid()})


def _await_only_tree(root: int) -> list[int]:
    """Return the processes of the tree when there are no others: the terminal's channel takes a moment to end."""
    deadline = time.monotonic() + _TREE_SEC
    while True:
        tree, others = _split(root)
        if not tree:
            raise CheckpointError("the terminal's first process is gone")
        if not others:
            return tree
        if time.monotonic() > deadline:
            raise CheckpointError(f"process {others[0]} ({name_of(others[0])}) is not below the terminal's first one")
        time.sleep(_PAUSE_SEC)


def _require_no_vfork(pids: Sequence[int]) -> None:
    """Refuse threads that wait in the kernel for a child of theirs, as by vfork(2): nothing stops them until it ends.

    Most children execute a program in a moment, which ends the wait.

    Raises:
        CheckpointError: One waits on.
    """
    deadline = time.monotonic() + _VFORK_SEC
    while waiting := next(filter(_waits_for_child, pids), 0):
        if time.monotonic() > deadline:
            raise CheckpointError(
                f"process {waiting} ({name_of(waiting)}) waits in the kernel for its child, as by vfork"
            )
        time.sleep(_PAUSE_SEC)


def _waits_for_child(pid: int) -> bool:
    """Return whether a thread of a process can't be stopped in one of the calls that make processes."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            if read_stat(int(thread)).state != "D":
                continue
            with open(f"/proc/{pid}/task/{thread}/syscall", encoding="utf-8") as text:  # noqa: PTH123
                if text.read().split()[0] in _MAKES_PROCESSES:
                    return True
    return False


def _require_no_others(root: int) -> None:
    criu = {pid for pid, parent in _processes().items() if parent == os.getpid()}
    if others := [pid for pid in _split(root)[1] if pid not in criu]:
        raise CheckpointError(f"process {others[0]} ({name_of(others[0])}) is not below the terminal's first one")


def _end_children() -> None:
    """Kill CRIU, its children and its watchdog, also where the policy has stopped them."""
    while children := [pid for pid, parent in _processes().items() if parent == os.getpid()]:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _owner_of(pids: Sequence[int]) -> tuple[int, int]:
    """Return the user and group of the processes. Without CAP_SYS_RESOURCE all must have the same."""
    first: tuple[int, int] | None = None
    for pid in pids:
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as text:  # noqa: PTH123
                fields = dict(line.split(":", 1) for line in text if line.startswith(("Uid:", "Gid:")))
        except (FileNotFoundError, ProcessLookupError):
            continue
        users, groups = ({int(word) for word in fields[key].split()[:3]} for key in ("Uid", "Gid"))
        first = first or (min(users), min(groups))
        if (users, groups) != ({first[0]}, {first[1]}) and not has_capability(CAP_SYS_RESOURCE):
            raise CheckpointError(
                f"process {pid} ({name_of(pid)}) is another user's, and this machine's root has no CAP_SYS_RESOURCE"
            )
    if first is None:
        raise CheckpointError("the terminal's first process is gone")
    return first


# --- files ------------------------------------------------------------------------------------------------------------


def _copy(source: str, target: int, init: int | None = None) -> None:
    """Copy a directory's content with all that belongs to it, by the root of ``init``; no link is followed."""
    problems = os.memfd_create("problems", os.MFD_CLOEXEC)
    handles = (target, *(int(word) for word in source.split("/") if word.isdecimal()))
    argv = ("/bin/cp", "--archive", source, f"/proc/self/fd/{target}/")
    status = _run(argv, *handles, stderr=problems, init=init)
    # The line's end says why; before it stands the policy's path, of any length.
    first = os.pread(problems, _MESSAGE_BYTES, 0).decode("utf-8", "replace").partition("\n")[0]
    os.close(problems)
    if status:
        raise CheckpointError(f"the sandbox's files can't be copied: {first.rpartition(': ')[2] or f'status {status}'}")


def _run(argv: Sequence[str], *handles: int, stdin: int = 0, stderr: int = 2, init: int | None = None) -> int:
    """Run a program of the machine with these descriptors, by the root of ``init``; return its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            if init is not None:
                os.setns(init, os.CLONE_NEWUSER)
                os.setgroups([])
                become_root()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of ids takes it away
            for handle in handles:
                os.set_inheritable(handle, True)
            os.dup2(stdin, 0)
            os.dup2(stderr, 2)
            os.execve(argv[0], list(argv), {"LC_ALL": "C"})
        finally:
            os._exit(127)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def give(directory: int, source: Extents, target: Extents) -> None:
    """Give each file below a directory, and that, from a range of ids to another. No link is followed.

    Raises:
        UnknownIdError: A file has an id that the other range has not.
        OSError: The kernel refuses.
    """
    if source == target:
        return
    inside = [(outside, first, count) for first, outside, count in source]
    seen: set[tuple[int, int]] = set()

    def moved(number: int) -> int:
        for outside, first, count in inside:
            if outside <= number < outside + count:
                return outside_of(target, first + number - outside)
        raise CheckpointError(f"a file of the sandbox belongs to {number}, which is none of its ids")

    def move(name: str, parent: int, state: os.stat_result) -> None:
        if stat.S_ISCHR(state.st_mode) and state.st_rdev == 0:
            return  # a deletion, which is the overlay's own
        if state.st_nlink > 1 and not stat.S_ISDIR(state.st_mode):
            if (state.st_dev, state.st_ino) in seen:
                return
            seen.add((state.st_dev, state.st_ino))
        path = f"/proc/self/fd/{parent}/{name}" if name else f"/proc/self/fd/{parent}"
        follow = not name
        attributes: dict[str, bytes] = {}
        if not stat.S_ISLNK(state.st_mode):
            for attribute in os.listxattr(path, follow_symlinks=follow):
                if attribute in (_CAPABILITY, *_ACLS):
                    attributes[attribute] = os.getxattr(path, attribute, follow_symlinks=follow)
        os.chown(path, moved(state.st_uid), moved(state.st_gid), follow_symlinks=follow)
        if not stat.S_ISLNK(state.st_mode):
            # A change of owner takes setuid and setgid away, and capabilities.
            os.chmod(path, stat.S_IMODE(state.st_mode))  # noqa: PTH101
        for attribute, value in attributes.items():
            new = (_moved_acl if attribute in _ACLS else _moved_capability)(value, moved)
            os.setxattr(path, attribute, new, follow_symlinks=follow)
        if not stat.S_ISLNK(state.st_mode):
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns), follow_symlinks=follow)

    def walk(handle: int) -> None:
        with os.scandir(handle) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            state = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if stat.S_ISDIR(state.st_mode):
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
                try:
                    walk(below)
                finally:
                    os.close(below)
            move(name, handle, state)

    try:
        walk(directory)
    except RecursionError:
        raise CheckpointError("the sandbox's directories are too deep") from None
    move("", directory, os.fstat(directory))


def _moved_capability(value: bytes, moved: Callable[[int], int]) -> bytes:
    """Return security.capability with the id of another user namespace's root; see capabilities(7)."""
    if len(value) != 24:
        return value
    (root,) = struct.unpack_from("<I", value, 20)
    return value[:20] + struct.pack("<I", moved(root))


def _moved_acl(value: bytes, moved: Callable[[int], int]) -> bytes:
    """Return an access control list with other ids; see acl(5)."""
    entries = _ACL_ENTRY.iter_unpack(value[4:])
    return value[:4] + b"".join(
        _ACL_ENTRY.pack(tag, rights, moved(number) if tag in _ACL_OF_ID else number) for tag, rights, number in entries
    )


# --- images -----------------------------------------------------------------------------------------------------------


def _prepare_images(images: int) -> int:
    """Let the images be restored in any sandbox's user namespace; return the last process id that they have."""
    last = 0
    for name in os.listdir(images):
        handle = os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=images)
        try:
            # Nobody but CRIU ever has a descriptor of them.
            os.fchmod(handle, 0o644)
            if name == "pstree.img":
                last = _last_pid(os.pread(handle, 16 << 20, 0))
        finally:
            os.close(handle)
    _join_user_namespace(images)
    return last


_MAGIC_BYTES = 8
_ROOT_IDS, _USER_NAMESPACE = 3, 10
"""Fields of inventory_entry and of task_kobj_ids_entry."""
_QUEUES, _LENGTH, _CONTROL = "sk-queues.img", 2, 4
"""The image of sockets' messages, each behind its sk_packet_entry, and fields of that: its bytes, its descriptors."""


def _entries(image: bytes) -> Iterator[bytes]:
    place = _MAGIC_BYTES
    while place < len(image):
        (length,) = struct.unpack_from("<I", image, place)
        yield image[place + 4 : place + 4 + length]
        place += 4 + length


def _last_pid(image: bytes) -> int:
    # pid, ppid, pgid, sid, threads
    numbers: list[int] = []
    for entry in _entries(image):
        for number, value, _ in _fields(entry):
            if number in (1, 3, 4, 5):
                numbers += [value] if isinstance(value, int) else list(value)
    # An ended process that nobody has waited for has threads of any number.
    return max(number for number in numbers if number <= _MOST_PID)


def _require_plain_messages(images: int) -> None:
    """Check that no message which waits in a socket carries descriptors.

    CRIU dumps them. It restores one only where its descriptors are open when both ends of a socket pair are made: else
    it takes the pair for restored, without its messages and options (4.2's post_open_interconnected_master).

    Raises:
        CheckpointError: One does.
    """
    try:
        image = _content(images, _QUEUES)
    except FileNotFoundError:
        return
    place = _MAGIC_BYTES
    while place < len(image):
        (length,) = struct.unpack_from("<I", image, place)
        fields = {number: value for number, value, _ in _fields(image[place + 4 : place + 4 + length])}
        if _CONTROL in fields:
            raise CheckpointError("a message with a descriptor waits in a socket, which CRIU may leave out of a copy")
        data = fields[_LENGTH]
        assert isinstance(data, int)
        place += 4 + length + data


def _join_user_namespace(images: int) -> None:
    """Let the images say that CRIU itself was in its processes' user namespace: so it makes none at the restore.

    Raises:
        CheckpointError: CRIU wrote other images than the ones known here.
    """
    (name, *_) = [name for name in os.listdir(images) if name.startswith("ids-")]
    (theirs,) = (value for number, value, _ in _fields(_first_entry(images, name)) if number == _USER_NAMESPACE)
    inventory = _first_entry(images, "inventory.img")
    for number, value, start in _fields(inventory):
        if number == _ROOT_IDS and isinstance(value, bytes):
            for inner, own, at in _fields(value):
                if inner == _USER_NAMESPACE and isinstance(own, int) and isinstance(theirs, int):
                    if max(own, theirs) > 127:  # one byte each
                        break
                    handle = os.open("inventory.img", os.O_WRONLY | os.O_CLOEXEC, dir_fd=images)
                    os.pwrite(handle, bytes([theirs]), _MAGIC_BYTES + 4 + start + at)
                    os.close(handle)
                    return
    raise CheckpointError("CRIU wrote other images than the ones known here")


def _first_entry(images: int, name: str) -> bytes:
    return next(_entries(_content(images, name)))


def _content(images: int, name: str) -> bytes:
    handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=images)
    try:
        return os.pread(handle, os.fstat(handle).st_size, 0)
    finally:
        os.close(handle)


def _reason(images: int) -> str:
    try:
        handle = os.open(_LOG, os.O_RDONLY | os.O_CLOEXEC, dir_fd=images)
    except OSError:
        return ""
    size = os.fstat(handle).st_size
    return _why(os.pread(handle, _MESSAGE_BYTES, max(size - _MESSAGE_BYTES, 0)))


def _why(log: bytes) -> str:
    lines = log.decode("utf-8", "replace").splitlines()
    errors = [line.partition("Error ")[2].partition("): ")[2] or line for line in lines if "Error" in line]
    errors = [line for line in errors if _NO_ERROR not in line]
    if not errors:
        return ""
    replaced = errors[0].partition(_REPLACED)[2].partition(". Use")[0]
    return f": {replaced} was removed or replaced while a process has it open" if replaced else f": {errors[0].strip()}"
