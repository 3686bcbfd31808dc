"""Which branch of a process tree the memory watchdog kills."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from harbor_gym._runtime.procfs import read_stat
from harbor_gym.sandboxes.apptainer import watchdog
from harbor_gym.sandboxes.apptainer.watchdog import Member, enforce_limit, heaviest_branch
from tests.helpers.patience import PATIENCE_SEC

MIB = 1 << 20
HOG = "import sys; held = bytearray(96 << 20); print('up', flush=True); sys.stdin.read()"


def tree(*parents: int) -> list[Member]:
    """Return processes 1, 2, 3 … whose parents are the numbers given; 0 is the first process of the sandbox."""
    return [Member(pid, parent, 7) for pid, parent in enumerate(parents, start=1)]


def chosen(parents: list[int], held: list[int]) -> set[int]:
    return {item.pid for item in heaviest_branch(tree(*parents), dict(enumerate(held, start=1)))}


def test_a_hog_is_killed_without_the_shell_that_started_it() -> None:
    assert chosen([0, 1], [4, 200]) == {2}


def test_a_build_is_killed_whole_where_none_of_its_compilers_holds_most() -> None:
    assert chosen([0, 1, 2, 2, 2], [4, 1, 60, 60, 60]) == {2, 3, 4, 5}


def test_the_largest_of_several_commands_is_taken_and_the_others_stay() -> None:
    assert chosen([0, 0, 2], [90, 4, 110]) == {3}


def test_a_shell_that_holds_the_memory_itself_goes_with_its_children() -> None:
    assert chosen([0, 1, 1], [180, 20, 20]) == {1, 2, 3}


def test_an_orphan_counts_as_a_command_of_its_own() -> None:
    assert chosen([0, 999], [10, 200]) == {2}


def test_nobody_is_killed_where_there_is_nobody() -> None:
    assert heaviest_branch([], {}) == []


@pytest.fixture
def hog() -> Iterator[subprocess.Popen[str]]:
    """A process that holds 96 MiB."""
    with subprocess.Popen(
        [sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        yield child
        child.kill()


def show(monkeypatch: pytest.MonkeyPatch, member: Member) -> None:
    def members(_first: int) -> list[Member]:
        return [member]

    monkeypatch.setattr(watchdog, "members", members)


def watched(monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[str]) -> Member:
    """Make the watchdog see one process alone, below a first one."""
    stat = read_stat(process.pid)
    assert stat is not None
    member = Member(process.pid, 1, stat.start_time)
    show(monkeypatch, member)
    return member


def test_a_process_above_the_limit_is_killed_and_reported(
    monkeypatch: pytest.MonkeyPatch, hog: subprocess.Popen[str]
) -> None:
    member = watched(monkeypatch, hog)
    used, kill = enforce_limit(1, 100 * MIB)
    assert hog.wait(PATIENCE_SEC) == -9
    assert kill is not None
    assert kill.processes == (member,)
    assert 96 * MIB < used == kill.held_bytes < 200 * MIB
    assert "of 100 (memory_mb)" in str(kill)


def test_a_process_below_the_limit_lives(monkeypatch: pytest.MonkeyPatch, hog: subprocess.Popen[str]) -> None:
    watched(monkeypatch, hog)
    used, kill = enforce_limit(1, 1 << 30)
    assert (used > 96 * MIB, kill, hog.poll()) == (True, None, None)


def test_what_is_dying_already_is_counted_once(monkeypatch: pytest.MonkeyPatch, hog: subprocess.Popen[str]) -> None:
    member = watched(monkeypatch, hog)
    assert enforce_limit(1, 100 * MIB, frozenset({member})) == (0, None)
    assert hog.poll() is None


def test_a_process_that_got_the_number_of_a_dead_one_is_spared(
    monkeypatch: pytest.MonkeyPatch, hog: subprocess.Popen[str]
) -> None:
    member = watched(monkeypatch, hog)
    show(monkeypatch, Member(member.pid, 1, member.start_time - 1))
    enforce_limit(1, 100 * MIB)
    assert hog.poll() is None
