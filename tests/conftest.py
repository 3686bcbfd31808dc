"""Fixtures that every suite shares."""

import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from harbor_gym._runtime.cache import cache_dir
from tests.helpers.engines import ENGINES, require_engine, use_unpacked_engines
from tests.helpers.tasks import write_task

pytest_plugins = ["harbor_gym.testing.pytest_plugin", "tests.helpers.sharing"]

_LONGEST = (
    "test_two_nodes",
    "test_terminal",
    "test_worker",
    "test_resumed_run",
    "test_pretrained_run",
    "test_as_docker",
    "test_harbor_parity",
    "test_official_images",
    "test_sif_as_local",
    "test_terminal_channel",
    "test_harbor_server",
    "test_attacks",
    "test_rollout_executors",
    "test_embedded_server",
    "test_openenv_server",
    "test_embedded_policy",
    "test_broken_by_policy",
    "test_transfers",
    "test_trl_async",
    "test_demonstrations",
    "test_kill",
)
"""Files to begin with: where several processes share the tests, a long one at the end would leave the others idle."""

_FRAMEWORKS = (
    *("datasets", "gradio", "litellm", "matplotlib", "openai", "openenv", "pandas", "peft", "ray", "skyrl"),
    *("tinker", "tinker_cookbook", "torch", "transformers", "trl", "verifiers"),
)
"""Packages that take up to seconds to import, which each test process would spend before its first test."""

_STARTED = time.monotonic()
_SLOW_SEC = float(limit) if (limit := os.environ.get("HARBOR_GYM_SLOW_SEC")) else None
"""Seconds after which no slow test begins, where the run has a deadline; None is no limit."""

_IMPORTED = pytest.StashKey[list[str]]()

# How long an example takes depends more on the machine than on the code.
settings.register_profile("harbor-gym", deadline=None)
settings.register_profile("mutants", deadline=None, max_examples=25, derandomize=True, database=None)
settings.load_profile("harbor-gym")


def pytest_configure() -> None:
    """Hear SIGINT, and have programs that tests start hear it: a shell's background job is started deaf to it.

    Two libraries are kept from the network.
    """
    use_unpacked_engines()
    # Container images often set it: each of the many processes that tests start would compile its imports anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm downloads its prices
    os.environ["HARBOR_TELEMETRY"] = "0"  # else a job starts a process that outlives it
    os.environ["GOGC"] = "800"  # buildah, Docker's client and Apptainer end before they have garbage worth a search
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # else torch's threads spin on cores that other tests need
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep imported modules and collected tests out of each later search for garbage: it takes a tenth of the time.

    It is also made more seldom: frameworks make many objects when a test imports them, and hardly any garbage. Those
    that test modules imported are noted.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)
        gc.enable()
        session.config.stash[_IMPORTED] = [name for name in _FRAMEWORKS if name in sys.modules]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files; where slow tests have a deadline, end with them."""
    rank = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: (_SLOW_SEC is not None and _is_slow(item), rank.get(item.path.stem, len(_LONGEST))))


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ask for the engines that a test is marked with, before its fixtures need them."""
    if _SLOW_SEC is not None and _is_slow(item) and time.monotonic() - _STARTED > _SLOW_SEC:
        pytest.skip(f"slow, and this run began more than {_SLOW_SEC:g} s ago (HARBOR_GYM_SLOW_SEC)")
    for engine in ENGINES:
        if item.get_closest_marker(engine) is not None:
            require_engine(engine)


@pytest.fixture
def imported_when_collected(pytestconfig: pytest.Config) -> list[str]:
    """The frameworks that were imported once this process had collected its tests."""
    return pytestconfig.stash[_IMPORTED]


@pytest.fixture
def local_engine() -> None:
    """Skip or fail where no local sandbox can start."""
    require_engine("local")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache, and a process's memory of images, that nothing used before."""
    from harbor_gym.sandboxes.images import base_images, build

    monkeypatch.setenv("HARBOR_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_built", {})
    monkeypatch.setattr(base_images, "_unreachable", {})
    return cache_dir()


@pytest.fixture
def task_dir(tmp_path: Path) -> Path:
    """A task that is solved by writing ``done`` into /srv/answer."""
    return write_task(tmp_path / "task")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory that holds a tokenizer and nothing else."""
    from tests.helpers.chats.tokenizers import byte_level_tokenizer

    path = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every program that the test starts a folder for temporary files that nothing else uses."""
    path = tmp_path / "scratch"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    return path


@pytest.fixture(scope="session", autouse=True)
def own_temporary_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep temporary folders of this test process apart, so that a leak of ours is distinct from a neighbour's."""
    path = tmp_path_factory.mktemp("tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(path))
        patch.setattr(tempfile, "tempdir", str(path))
        yield path
