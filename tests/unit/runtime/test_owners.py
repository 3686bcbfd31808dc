"""Owners: a process is known for dead only when it is."""

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harbor_gym._runtime import owners
from harbor_gym._runtime.owners import Owner, is_alive, owner_label, run_id, temporary_prefix

PRINT_LABEL = (
    "from harbor_gym._runtime.owners import owner_label; import sys; print(owner_label(), flush=True); sys.stdin.read()"
)


@pytest.fixture
def me() -> Owner:
    found = Owner.find(owner_label())
    assert found is not None
    return found


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process, and the label that it gives itself."""
    command = [sys.executable, "-c", PRINT_LABEL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_this_process_is_alive(me: Owner) -> None:
    assert (me.pid, str(me)) == (os.getpid(), owner_label())
    assert is_alive(me)


def test_another_process_is_alive_until_it_is_killed(other: tuple[subprocess.Popen[str], str]) -> None:
    process, label = other
    assert label != owner_label()
    assert is_alive(label)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie still: nobody has asked for its status
    assert not is_alive(label)
    process.wait()
    assert not is_alive(label)


def test_a_pid_used_again_is_not_its_first_user(me: Owner) -> None:
    assert not is_alive(dataclasses.replace(me, start_time=me.start_time - 1))


def test_an_earlier_boot_of_this_machine_is_dead(me: Owner) -> None:
    assert not is_alive(dataclasses.replace(me, boot="0123456789ab"))


@pytest.mark.parametrize("what", ["host", "pid_namespace"])
def test_who_can_not_be_seen_from_here_may_be_alive(me: Owner, what: str) -> None:
    elsewhere = {"host": "0123456789ab", "pid_namespace": me.pid_namespace + 1}
    gone = dataclasses.replace(me, pid=2**22 + 1)
    assert not is_alive(gone)
    assert is_alive(dataclasses.replace(gone, **{what: elsewhere[what]}))


@pytest.mark.parametrize("text", ["", "harbor-gym-trial-x1y2", "0.0.0.0.0", "zz"])
def test_what_is_no_label_may_be_alive(text: str) -> None:
    assert Owner.find(text) is None
    assert is_alive(text)


def test_a_fork_is_an_owner_of_its_own() -> None:
    mine = owner_label(), run_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, f"{owner_label()} {run_id()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    label, run = os.read(read, 1000).decode().split()
    os.close(read)
    os.close(write)
    found = Owner.find(label)
    assert found is not None
    assert found.pid == child
    assert run != mine[1]
    assert (owner_label(), run_id()) == mine


def test_a_temporary_directory_names_its_owner(me: Owner) -> None:
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("trial")) as path:
        assert Path(path).name.startswith("harbor-gym-trial-")
        assert Owner.find(Path(path).name) == me


def test_a_system_without_proc_knows_processes_by_pid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(owners, "PROC", tmp_path)
    owners._owner_of.cache_clear()  # pyright: ignore[reportPrivateUsage]
    try:
        found = Owner.find(owner_label())
        assert found is not None
        assert (found.boot, found.pid_namespace, found.start_time) == ("0" * 12, 0, 0)
        assert is_alive(found)
        assert not is_alive(dataclasses.replace(found, pid=2**22 + 1))
    finally:
        owners._owner_of.cache_clear()  # pyright: ignore[reportPrivateUsage]


_WITHOUT_ID = """
import random, uuid
from pathlib import Path
from harbor_gym._runtime import owners
owners._MACHINE_ID = Path("/nowhere/machine-id")
uuid.getnode = lambda: random.getrandbits(48)
if {boot!r}:
    owners.boot_id = lambda: {boot!r}.strip()
print(owners.this_process().host)
"""


def host_of_a_process(boot: str = "") -> str:
    """Return the id of a machine without one, as a process makes it. Space is a boot without an id."""
    command = [sys.executable, "-c", _WITHOUT_ID.format(boot=boot)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_processes_of_a_machine_without_an_id_know_each_other() -> None:
    """Ubuntu's image has no ``/etc/machine-id`` and no program that lists network cards, so each node id is random."""
    assert host_of_a_process() == host_of_a_process()
    assert host_of_a_process() != host_of_a_process("another"), "another boot may be another machine's"
    assert host_of_a_process(" ") != host_of_a_process(" "), "where nothing is known, nobody is known to be dead"
