"""Processes as /proc records them, and files and directories that appear whole or not at all."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harbor_gym._runtime.files import publishing_once, replace_text, replacing
from harbor_gym._runtime.procfs import all_stats, descendants, read_stat, size_bytes


@contextmanager
def process(*argv: str, **options: object) -> Generator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]  # the test's own
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@pytest.mark.parametrize("name", ["plain", "a) Z (b", "two words", ") S 1 1", "new\nline", "bytes\udcff"])
def test_a_process_is_read_whatever_its_name_is(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    shutil.copy(shutil.which("cat") or "/bin/cat", program)
    with process(str(program)) as child:
        child.stdin.write(b"x\n")  # pyright: ignore[reportOptionalMemberAccess]
        child.stdin.flush()  # pyright: ignore[reportOptionalMemberAccess]
        assert child.stdout is not None
        assert child.stdout.readline() == b"x\n"
        stat = read_stat(child.pid)
        assert stat is not None
        assert (stat.pid, stat.parent, stat.group) == (child.pid, os.getpid(), os.getpgrp())
        assert stat.name == name.encode(errors="surrogateescape").decode(errors="replace")
        assert stat.state in "SR"
        assert not stat.has_exited


def test_one_that_was_not_waited_for_has_exited_and_one_that_was_is_none() -> None:
    with process("true") as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        stat = read_stat(child.pid)
        assert stat is not None
        assert stat.has_exited
        child.wait()
        assert read_stat(child.pid) is None


def test_processor_time_is_in_seconds() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with process(sys.executable, "-c", code) as child:
        assert child.stdout is not None
        child.stdout.readline()
        stat = read_stat(child.pid)
        assert stat is not None
        assert 0.25 <= stat.cpu_sec < 2
        assert stat.children_cpu_sec == 0


def test_descendants_are_found_below_other_descendants() -> None:
    with process("sh", "-c", "sleep 600 & echo $!; wait") as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert descendants(child.pid) == {grandchild}
        assert {child.pid, grandchild} <= descendants(os.getpid())
        assert {child.pid, grandchild} <= {stat.pid for stat in all_stats()}
        os.kill(grandchild, 9)


def test_sizes_are_in_bytes_and_none_where_the_kernel_has_none() -> None:
    assert size_bytes("meminfo", "MemTotal") == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert size_bytes("meminfo", "Mem") is None
    assert size_bytes("self/smaps_rollup", "Pss") in range(1 << 20, 1 << 40)
    assert size_bytes("0/smaps_rollup", "Pss") is None


def test_a_reader_finds_the_earlier_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    contents = {letter * 100_000 for letter in "abc"}
    replace_text(path, "a" * 100_000)
    is_over = threading.Event()
    seen: set[str] = set()

    def read() -> None:
        while not is_over.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        replace_text(path, "abc"[number % 3] * 100_000)
    is_over.set()
    reader.join()
    assert seen <= contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_a_block_that_raises_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    path.write_text("earlier")

    def write_half() -> None:
        with replacing(path) as partial:
            assert partial.suffix == ".png"
            partial.write_text("half")
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        write_half()
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_text_that_utf8_lacks_is_written_escaped(tmp_path: Path) -> None:
    replace_text(tmp_path / "text", "a\udcffb")
    assert (tmp_path / "text").read_bytes() == rb"a\udcffb"


def publish(directory: Path, text: str) -> None:
    with publishing_once(directory) as building:
        building.mkdir()
        (building / "text").write_text(text)


def test_the_directory_of_the_first_of_two_publishers_stays(tmp_path: Path) -> None:
    place = tmp_path / "parent" / "place"
    with publishing_once(place) as building:
        building.mkdir()
        (building / "text").write_text("second")
        assert not place.exists()
        publish(place, "first")
    assert (place / "text").read_text() == "first"
    assert list(place.parent.iterdir()) == [place]


def test_a_directory_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        publish(tmp_path / "place", None)  # pyright: ignore[reportArgumentType]  # it fails half-way
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_a_directorys_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("a file")
    with pytest.raises(NotADirectoryError):
        publish(tmp_path / "place", "text")
    assert (tmp_path / "place").read_text() == "a file"
