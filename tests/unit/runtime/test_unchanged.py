"""What is kept of a folder is found anew after each change of one of its files."""

import os
import time
from collections.abc import Callable
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


def test_nothing_is_kept_of_a_folder_with_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("one", encoding="utf-8")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    settle()
    results = UntilChanged[str]()
    before = results.get(folder, text_of(folder))
    (tmp_path / "elsewhere").write_text("two", encoding="utf-8")
    assert results.get(folder, text_of(folder)) != before


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
