"""Clean a sandbox up before grading: list its processes, stop them, and make the verifier's directories.

It runs in a child of the supervisor that has entered the sandbox, without programs of the sandbox.
"""

import contextlib
import os
import signal
import stat
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import accounts
from grading import directories as dirs
from grading import removal, settling
from kernel import ipc
from kernel.ids import Ids, UnknownIdError
from kernel.procfs import read_stat

_PAUSE_SEC = 0.005
_MAX_WORDS_BYTES = 4096
_MAX_ACCOUNT_BYTES = 10_000
_MAX_LISTED = 2500
"""Limit of the processes in a baseline's answer. A sandbox has at most 1024 unless an option sets more."""
_MAX_NAMES = 10
_MAX_KEPT = 128
"""Processes that may run on while the verifier does. A fork bomb's would leave it none; no service needs as many."""
_FIRST = 1
_SHELLS_OPTION = b"--rcfile"
"""The word after the program in the command line of the terminal's shell (``scripts/open.bash``)."""


class _Process(NamedTuple):
    parent: int
    identity: str
    """``pid:start``, the start in clock ticks since boot, which tells reused pids apart."""


def do(work: str, arguments: dict[str, Any], ids: Ids) -> dict[str, Any]:
    """Do one part of the clean-up by name. To be called in the sandbox's namespaces, except the user namespace.

    Raises:
        OSError: The kernel refused a call.
    """
    if works := _OF_DIRECTORIES.get(work):
        return works(**arguments, ids=ids)
    return {"baseline": take_baseline, "stop": stop, "wait_until_idle": settling.wait_until_idle}[work](**arguments)


def take_baseline(directories: list[str]) -> dict[str, Any]:
    """Return the sandbox's processes, System V objects and accounts, and owner and mode of some directories."""
    identities = [process.identity for process in _living_processes().values()]
    known = accounts.read()
    if sum(len(field) + 4 for lines in known for fields in lines for field in fields) > _MAX_ACCOUNT_BYTES:
        known = accounts.Accounts([], [])
    return {
        "processes": sorted(identities)[:_MAX_LISTED],
        "ipc": ipc.list_objects(),
        "accounts": known,
        "directories": {path: state for path in directories if (state := removal.state_of(path)) is not None},
    }


def open_grading(directories: dict[str, list[int]], *, is_full: bool, ids: Ids) -> dict[str, Any]:
    """Make the directories that grading needs again if they are missing or replaced by other entries.

    Args:
        directories: Path → owner, group and mode, as in the answer of :func:`take_baseline`.
        is_full: Whether there was no room for them, which is only passed on.
        ids: The mapping of the sandbox's user ids.

    Returns:
        The ``problem``, if there is one, ``is_full``, and which of them are ``empty``.
    """
    os.umask(0o022)
    with contextlib.suppress(OSError):
        _remove_pipes()
    problems = [removal.make_again(path, state, ids.outside(0)) for path, state in directories.items()]
    empty = [path for path in directories if removal.is_empty_directory(path)]
    return {"problem": "; ".join(filter(None, problems)), "is_full": is_full, "empty": empty}


def _remove_pipes() -> None:
    """Remove each FIFO right in /etc, or link to one: programs that look up a user or a library would wait for it."""
    place = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            with contextlib.suppress(OSError):
                if stat.S_ISFIFO(os.stat(name, dir_fd=place).st_mode):
                    os.unlink(name, dir_fd=place)
    finally:
        os.close(place)


def stop(
    own: list[str],
    ipc_objects: list[str],
    terminal: list[int],
    leftovers: str,
    grace_sec: float,
    deadline_sec: float,
    *,
    keeps: bool,
) -> dict[str, Any]:
    """Stop all processes except some and their descendants, then remove System V objects.

    Args:
        own: The processes to spare, as in the answer of :func:`take_baseline`.
        ipc_objects: The System V objects to spare.
        terminal: Processes that are killed at once, the shell first.
        leftovers: The terminal's directory, to be removed; processes with it in their command line are not counted.
            Empty: none.
        grace_sec: Seconds from SIGTERM to SIGKILL.
        deadline_sec: Seconds for the whole stop.
        keeps: Stop nothing and remove nothing, unless there are only the terminal's processes, the terminal's were
            stopped by a signal, or there are so many processes that the verifier may find no room for its own.

    Returns:
        How many processes were ``stopped``, ``kept``, and ``left`` at the deadline; the ``names`` of those stopped.
    """
    spared, counted = frozenset(own), _Counted(leftovers, terminal[0] if terminal else 0)
    ends = time.monotonic() + deadline_sec
    victims, _ = _sorted(spared)
    counted.add(victims)
    if keeps and 0 < len(counted.identities) <= _MAX_KEPT and not any(map(_is_stopped, terminal)):
        return {"stopped": 0, "left": 0, "kept": len(counted.identities), "names": []}
    for pid in victims:
        _signal(pid, signal.SIGKILL if pid in terminal else signal.SIGTERM)
    kills_from = time.monotonic() + grace_sec
    while (victims := _sorted(spared)[0]) and time.monotonic() < kills_from:
        counted.add(victims)
        time.sleep(_PAUSE_SEC)
    looks = 2  # a process that is replaced by its child may be missed in a single look
    while looks and time.monotonic() < ends:
        victims, has_others = _sorted(spared)
        counted.add(victims)
        if has_others:
            _kill(victims)
        elif not _kill_everybody():
            break
        looks = looks - 1 if not victims else 2
        if looks:
            time.sleep(_PAUSE_SEC)
    left = _sorted(spared)[0]
    if not keeps:
        ipc.remove_objects(frozenset(ipc_objects))
    if leftovers:
        removal.remove(leftovers)
    return {"stopped": len(counted.identities), "left": len(left), "kept": 0, "names": sorted(counted.names)}


def reset_verifier_dirs(directories: list[str], owner: str, ids: Ids) -> dict[str, Any]:
    """Empty the verifier's directories and give them to root, so that no leftover file can pass for a verdict.

    Args:
        directories: The verifier's output, then others.
        owner: The user to give the output to; empty makes it writable for all.
        ids: The mapping of the sandbox's user ids.

    Returns:
        The ``problem``, if there is one.
    """
    os.umask(0o022)
    try:
        uid = ids.outside(accounts.identity(owner, accounts.read())[0]) if owner else None
    except (accounts.UnknownAccountError, UnknownIdError) as exc:
        return {"problem": str(exc)}
    root = ids.outside(0)
    for path in directories:
        removal.remove_unless_directory(path)
    problems = [removal.empty_as_roots(path, root) for path in directories]
    removal.hand_over(directories[0], uid)
    return {"problem": "; ".join(filter(None, problems))}


_OF_DIRECTORIES: dict[str, Callable[..., dict[str, Any]]] = {
    "open_grading": open_grading,
    "reset_verifier_dirs": reset_verifier_dirs,
    "path_kind": dirs.path_kind,
    "ensure_dirs": dirs.ensure,
    "empty_dirs": dirs.empty,
    "reset_dirs": dirs.reset,
}


class _Counted:
    """The stopped processes without the terminal's, whose command lines name its directory.

    A job that the shell did not execute another program for has the shell's own command line, and is the policy's, also
    after the shell has ended.
    """

    def __init__(self, directory: str, shell: int) -> None:
        self.identities: set[str] = set()
        self.names: set[str] = set()
        """Names of some of them."""
        self._passed: set[str] = set()
        self._directory = directory.encode()
        self._shell = shell

    def add(self, victims: dict[int, _Process]) -> None:
        for pid, process in victims.items():
            if process.identity not in self._passed:
                self._passed.add(process.identity)
                if not self._directory or self._is_the_policys(pid):
                    self.identities.add(process.identity)
                    if len(self.names) < _MAX_NAMES:
                        self.names.add(_name(pid))

    def _is_the_policys(self, pid: int) -> bool:
        if words := _words(pid):
            is_job = pid != self._shell and words.split(b"\0", 2)[1:2] == [_SHELLS_OPTION]
            return is_job or self._directory not in words
        # A process without a command line has erased it, or is ending by itself, like the terminal's client.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return not read_stat(pid).is_ending
        return False


def _words(pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        handle = os.open(f"/proc/{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(handle, _MAX_WORDS_BYTES)
        finally:
            os.close(handle)
    return b""


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:  # noqa: PTH123  # as above
            return name.read().rstrip("\n")
    except OSError:
        return "a process that has ended"


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return read_stat(pid).state in "Tt"
    return False


def _living_processes() -> dict[int, _Process]:
    """Return all living processes of the sandbox except its first and this one."""
    found: dict[int, _Process] = {}
    myself = os.getpid()
    for name in os.listdir("/proc"):  # noqa: PTH208  # pathlib would cost 20 ms of imports at every start
        if name.isdecimal() and int(name) not in (_FIRST, myself):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                process = _read(int(name))
                if process is not None:
                    found[int(name)] = process
    return found


def _read(pid: int) -> _Process | None:
    stat = read_stat(pid)
    return None if stat.has_exited else _Process(stat.parent, f"{pid}:{stat.start_time}")


def _sorted(spared: frozenset[str]) -> tuple[dict[int, _Process], bool]:
    """Return the processes to stop, and whether there are others."""
    processes = _living_processes()
    own: set[int] = {pid for pid, process in processes.items() if process.identity in spared}
    victims: dict[int, _Process] = {}
    for pid, process in processes.items():
        line: list[int] = []
        above = pid
        while above in processes and above not in own and above not in line:
            line.append(above)
            above = processes[above].parent
        if above in own:
            own.update(line)
        else:
            victims[pid] = process
    return victims, bool(own)


def _kill(victims: dict[int, _Process]) -> None:
    """Stop all the processes, then kill them, so that processes that fork are caught after some rounds."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in victims:
            _signal(pid, number)


def _kill_everybody() -> bool:
    """Kill all processes except the first and this one at once, which forking can't escape; False if there are none."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
