"""Fake /proc trees, as the kernel would show some processes, for the scripts that judge by /proc."""

import contextlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TTY = "tty"
"""A descriptor that is the terminal; any other name is a file of that name, ``pipe…`` a pipe."""


@dataclass(frozen=True)
class Thread:
    """One thread of a process, or the only one."""

    call: Sequence[int | str] | None = None
    """The system call's number and arguments; None where the kernel does not report it."""

    state: str = "S"
    place: str = "0"
    """The name of the place in the kernel where it sleeps."""


@dataclass(frozen=True)
class Process:
    """One process."""

    pid: int
    parent: int
    thread: Thread = Thread()
    group: int = 0
    """0: its own pid."""

    terminal_group: int = -1
    terminal: int = 34816
    """The device number of its controlling terminal: 34816 is the pane's, ``pts/0``, and 34817 is ``pts/1``."""

    name: str = "program"
    words: str = ""
    fds: Mapping[int, str] = field(default_factory=lambda: {0: TTY, 1: TTY, 2: TTY})
    fdinfo: Mapping[int, str] = field(default_factory=dict[int, str])
    memory: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    """Words of four bytes, by address."""

    others: Sequence[Thread] = ()
    runtime: int = 5000
    """Nanoseconds on a processor; 0 where the kernel does not count them."""

    start: int = 100
    listed_threads: int | None = None


def write_tree(root: Path, processes: Sequence[Process]) -> Path:
    """Write the tree below a new directory; return the path that replaces ``/proc``, next to the terminal's."""
    proc, files = root / "proc", root / "files"
    proc.mkdir(parents=True)
    files.mkdir()
    (root / TTY).touch()
    (root / "pts").mkdir()
    (root / "pts" / "1").touch()
    for process in processes:
        _write_process(proc, files, process, [other for other in processes if other.parent == process.pid])
    (proc / "uptime").write_text("1000.00 0.00\n")
    return proc


def _write_process(proc: Path, files: Path, process: Process, children: Sequence[Process]) -> None:
    home = proc / str(process.pid)
    _write_thread(home, process, process.thread, children)
    for index, thread in enumerate((process.thread, *process.others)):
        _write_thread(home / "task" / str(process.pid + index), process, thread, children if index == 0 else ())
    (home / "comm").write_text(f"{process.name}\n")
    (home / "cmdline").write_text(process.words.replace(" ", "\0") + "\0" * bool(process.words))
    (home / "fd").mkdir()
    (home / "fdinfo").mkdir()
    for number, name in process.fds.items():
        (home / "fd" / str(number)).symlink_to(_target(proc, files, name))
        (home / "fdinfo" / str(number)).write_text(process.fdinfo.get(number, "pos:\t0\n"))
    with (home / "mem").open("wb") as memory:
        for address, words in process.memory.items():
            memory.seek(address)
            memory.write(struct.pack(f"={len(words)}I", *words))


def _write_thread(place: Path, process: Process, thread: Thread, children: Sequence[Process]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    count = process.listed_threads if process.listed_threads is not None else 1 + len(process.others)
    fields = [thread.state, process.parent, process.group or process.pid, 1, process.terminal, process.terminal_group]
    fields += [0] * 11 + [count, 0, process.start, 0]
    # A name may contain the bracket that ends it.
    (place / "stat").write_text(f"{process.pid} ({process.name}) ) {' '.join(map(str, fields))}\n")
    (place / "children").write_text("".join(f"{child.pid} " for child in children))
    if process.runtime:
        (place / "schedstat").write_text(f"{process.runtime} 0 1\n")
    if thread.call is not None:
        words = [str(thread.call[0]), *(word if isinstance(word, str) else hex(word) for word in thread.call[1:])]
        (place / "syscall").write_text(" ".join([*words, *["0x0"] * (7 - len(words)), "0x7ffd", "0x7ffe"]) + "\n")
    (place / "wchan").write_text(thread.place)


def _target(proc: Path, files: Path, name: str) -> Path:
    if name == TTY:
        return proc.parent / TTY
    if name.startswith("pts/"):
        return proc.parent / name
    path = files / name
    with contextlib.suppress(FileExistsError):
        if name.startswith("pipe"):
            os.mkfifo(path)
        else:
            path.touch(exist_ok=False)
    return path
