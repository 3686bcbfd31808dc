"""Fixtures that every suite shares."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from harbor_gym.sandboxes.local.forkserver_client import forkserver_pid
from tests.helpers.engines import ENGINES, require_engine
from tests.helpers.tasks import write_task

_SETTLE_SEC = 5.0
_LONGEST = (
    "test_resumed_run",
    "test_train_recipe",
    "test_embedded_server",
    "test_terminal",
    "test_demonstrations",
    "test_kill",
)
"""Files to begin with: where several processes share the tests, a long one at the end would leave the others idle."""

# How long an example takes says more of the machine than of the code.
settings.register_profile("harbor-gym", deadline=None)
settings.register_profile("mutants", deadline=None, max_examples=25, derandomize=True, database=None)
settings.load_profile("harbor-gym")


def pytest_configure() -> None:
    """Hear SIGINT, and have programs that tests start hear it: a shell's background job is started deaf to it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share tests among processes by file and engine: a module's sandbox or server is started once."""
    rank = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(_LONGEST)))
    for item in items:
        parameters = callspec.id if (callspec := getattr(item, "callspec", None)) else ""
        engine = next((name for name in ("docker", "local") if name in parameters), "")
        item.add_marker(pytest.mark.xdist_group(f"{item.path.name} {engine}"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ask for the engines that a test is marked with, before its fixtures need them."""
    for engine in ENGINES:
        if item.get_closest_marker(engine) is not None:
            require_engine(engine)


@pytest.fixture
def task_dir(tmp_path: Path) -> Path:
    """A task that is solved by writing ``done`` into /srv/answer."""
    return write_task(tmp_path / "task")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have every program that the test starts keep its temporary folders in one that nothing else uses."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    return path


@pytest.fixture(scope="session", autouse=True)
def own_temporary_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep temporary folders of this test process apart, so that a leak of ours can be told from a neighbour's."""
    path = tmp_path_factory.mktemp("tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(path))
        patch.setattr(tempfile, "tempdir", str(path))
        yield path


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail the test if it leaves a process, a mount or a temporary folder of ours behind."""
    before = _traces()
    yield
    deadline = time.monotonic() + _SETTLE_SEC
    while (left := _traces() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"left behind: {sorted(left)}"


def _traces() -> set[str]:
    """What this process may leave: its descendants, mounts seen from here, temporary folders."""
    mounts = {f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if "harbor" in line}
    folders = {f"folder {path}" for path in Path(tempfile.gettempdir()).glob("harbor-gym*")}
    return mounts | folders | _descendants()


def _descendants() -> set[str]:
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        parents[int(entry.name)] = (int(rest.split()[1]), name)
    found: set[str] = set()
    for pid, (_, name) in parents.items():
        ancestor = pid
        while ancestor > 1 and ancestor != os.getpid():
            ancestor = parents.get(ancestor, (0, ""))[0]
        if ancestor == os.getpid() and pid != os.getpid():
            found.add(f"process {pid} {name}")
    # What starts local sandboxes lives as long as this process; test_local_sandbox.py has its end.
    return found - {f"process {pid} {name}" for pid, (_, name) in parents.items() if pid == forkserver_pid()}
