"""What is kept of a folder is found anew after each change of one of its files."""

import _thread
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harbor_gym._runtime import unchanged
from harbor_gym._runtime.unchanged import UntilChanged
from harbor_gym.sandboxes.images import build
from harbor_gym.sandboxes.images.build import ImageSource, content_hash


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose last change is long ago for its file system."""
    folder = tmp_path / "task"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test.sh").write_text("exit 0\n", encoding="utf-8")
    settle()
    return folder


def settle() -> None:
    time.sleep(0.2)


def text_of(folder: Path) -> Callable[[], str]:
    return lambda: "".join(
        f"{path.name} {path.stat().st_mode:o} {path.read_text(encoding='utf-8')}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )


def unread(*_: object) -> str:
    raise AssertionError("the folder was read again")


def write_same_size(folder: Path) -> None:
    """Change a file and restore its time of modification, as ``cp -p`` and ``rsync -t`` do."""
    script = folder / "tests" / "test.sh"
    before = script.stat()
    script.write_text("exit 1\n", encoding="utf-8")
    os.utime(script, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_file(folder: Path) -> None:
    (folder / "new").write_text("exit 1\n", encoding="utf-8")
    (folder / "new").replace(folder / "tests" / "test.sh")


CHANGES: dict[str, Callable[[Path], object]] = {
    "same size and time": write_same_size,
    "replaced": replace_file,
    "added": lambda folder: (folder / "tests" / "more.sh").write_text("", encoding="utf-8"),
    "removed": lambda folder: (folder / "tests" / "test.sh").unlink(),
    "renamed": lambda folder: (folder / "tests" / "test.sh").rename(folder / "tests" / "run.sh"),
    "executable": lambda folder: (folder / "tests" / "test.sh").chmod(0o755),
}


def test_a_folder_without_a_change_is_read_once(folder: Path) -> None:
    results = UntilChanged[str]()
    found = results.get(folder, text_of(folder))
    assert results.get(folder, unread) == found


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_folder_is_read_again(folder: Path, change: str) -> None:
    results = UntilChanged[str]()
    before = results.get(folder, text_of(folder))
    CHANGES[change](folder)
    at_once = results.get(folder, text_of(folder))
    assert at_once != before
    settle()
    assert results.get(folder, text_of(folder)) == at_once


def test_nothing_is_kept_while_a_further_change_could_have_the_same_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged, "_FINE_NS", 3600 * 10**9)
    results = UntilChanged[str]()
    results.get(folder, text_of(folder))
    with pytest.raises(AssertionError, match="read again"):
        results.get(folder, unread)


@pytest.mark.parametrize("target", ["{outside}", "../elsewhere", "tests/../../elsewhere", "tests/deep/up/elsewhere"])
def test_nothing_is_kept_of_a_folder_with_a_link_out_of_it(folder: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "elsewhere").write_text("one", encoding="utf-8")
    (folder / "tests" / "deep").mkdir()
    if "up" in target:
        (folder / "tests" / "deep" / "up").symlink_to("../../..")
    (folder / "link").symlink_to(target.format(outside=tmp_path / "elsewhere"))
    settle()
    results = UntilChanged[str]()
    before = results.get(folder, text_of(folder))
    (tmp_path / "elsewhere").write_text("two", encoding="utf-8")
    assert results.get(folder, text_of(folder)) != before


@pytest.mark.parametrize("target", ["../test.sh", "./more/../test.sh", "../../tests"])
def test_a_folder_with_links_within_it_is_read_again_after_a_change(folder: Path, target: str) -> None:
    (folder / "tests" / "more").mkdir()
    link = folder / "tests" / "more" / "link"
    link.symlink_to(target)
    settle()
    results = UntilChanged[str]()
    before = results.get(folder, text_of(folder))
    if ".." not in target.lstrip("./"):
        assert results.get(folder, unread) == before
    write_same_size(folder)
    settle()
    changed = results.get(folder, text_of(folder))
    assert changed != before
    link.unlink()
    link.symlink_to("nothing")
    settle()
    assert results.get(folder, lambda: "the link's target") == "the link's target"


class CountingLock:
    """A lock that counts who has come to it."""

    arrived = 0

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()

    def __enter__(self) -> None:
        CountingLock.arrived += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_threads_that_ask_during_a_look_share_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look, looks, began, goes_on = unchanged._state, list[Path](), threading.Event(), threading.Event()  # pyright: ignore[reportPrivateUsage]  # the moment is the test

    def slow(place: Path) -> bytes | None:
        looks.append(place)
        began.set()
        assert goes_on.wait(60)
        return look(place)

    monkeypatch.setattr(unchanged, "_state", slow)
    results = UntilChanged[str]()
    with ThreadPoolExecutor(4) as pool:
        monkeypatch.setattr(unchanged, "Lock", CountingLock)
        first = pool.submit(results.get, folder, text_of(folder))
        assert began.wait(60)
        write_same_size(folder)
        later = [pool.submit(results.get, folder, text_of(folder)) for _ in range(3)]
        while CountingLock.arrived < 4:
            time.sleep(0.01)
        goes_on.set()
        found = {item.result() for item in later}
    assert first.result()
    assert len(looks) == 2, "one that had begun, and one for all who asked meanwhile"
    assert found == {text_of(folder)()}


def test_results_are_bounded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged, "_KEPT", 1)
    (tmp_path / "other").mkdir()
    settle()
    results = UntilChanged[str]()
    for place in (folder, tmp_path / "other"):
        results.get(place, text_of(place))
    results.get(tmp_path / "other", unread)
    with pytest.raises(AssertionError, match="read again"):
        results.get(folder, unread)


def test_a_build_context_is_read_again_only_after_a_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ImageSource(folder)
    first = content_hash(source)
    with monkeypatch.context() as patched:
        patched.setattr(build, "_context_hash", unread)
        assert content_hash(source) == first
    write_same_size(folder)
    assert content_hash(source) != first
