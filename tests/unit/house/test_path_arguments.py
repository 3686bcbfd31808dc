"""A path may be given as text or as any ``os.PathLike``, to every public function, class and configuration."""

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from harbor_gym import AsyncTerminalGymEnv, Snapshot, TerminalEnvConfig, UsageError
from harbor_gym.errors import MissingDependencyError
from harbor_gym.evaluation import note_evaluation, read_best
from harbor_gym.evaluation.best import Evaluated
from harbor_gym.report import episodes, write_page
from harbor_gym.tasks import find_tasks, resolve_tasks
from harbor_gym.transcripts import read_transcript, write_transcript
from harbor_gym.types import Transcript
from tests.helpers.sandboxes.fake_episodes import fake_config

MODULES = (
    *("checking", "cluster", "codecs", "evaluation", "gateway", "gymnasium", "harbor", "openenv", "report", "samplers"),
    *("skyrl", "tasks", "testing", "tinker", "trl", "verl"),
)
RESULTS = {
    *("DirectorySpec", "FakeEnvironment", "HarnessSettings", "Rollout", "SourcedTask", "TaskCheck", "TaskSuite"),
}
"""What the package makes itself, and Harbor's class with its own signatures."""


@dataclass(frozen=True)
class Place:
    """A path that is neither text nor a ``pathlib.Path``."""

    name: str

    def __fspath__(self) -> str:
        return self.name


def public(place: str) -> Iterator[Any]:
    module = importlib.import_module(place)
    for name in vars(module).get("__all__") or [name for name in dir(module) if name[0] != "_"]:
        if name not in RESULTS:
            yield getattr(module, name)


def takers(found: Any) -> Iterator[Any]:
    """Yield what can be called with arguments: a function, or a class and its methods."""
    if inspect.isfunction(found):
        yield found
    elif inspect.isclass(found) and not issubclass(found, BaseModel | BaseException | dict):
        yield found
        yield from (item for name, item in vars(found).items() if inspect.isfunction(item) and name[0] != "_")


@pytest.mark.parametrize("place", ["harbor_gym", *(f"harbor_gym.{name}" for name in MODULES)])
def test_no_public_argument_is_a_pathlib_path_alone(place: str) -> None:
    try:
        found = list(public(place))
    except MissingDependencyError as exc:
        pytest.skip(str(exc))
    assert found
    for taker in (taker for item in found for taker in takers(item)):
        for parameter in inspect.signature(taker).parameters.values():
            kind = parameter.annotation
            text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
            narrow = re.search(r"\bPath\b", text) and not re.search(r"\b(StrPath|PathLike)\b", text)
            assert not narrow, f"{taker.__qualname__}({parameter})"


async def test_a_snapshot_is_written_and_read_by_any_path(tmp_path: Path) -> None:
    async with AsyncTerminalGymEnv(fake_config(tmp_path / "task")) as env:
        await env.reset()
        snapshot = await env.snapshot()
    for path in (str(tmp_path / "text"), Place(str(tmp_path / "other"))):
        snapshot.write(path)
        assert Snapshot.read(path).observation == snapshot.observation
        going_on = TerminalEnvConfig(task_dir=tmp_path / "task", start_from=path)
        assert (going_on.start_from, going_on.sandbox) == (tmp_path / Path(path).name, snapshot.config.sandbox)
        Snapshot.remove(path)
        with pytest.raises(UsageError, match="it is not there"):
            Snapshot.read(path)


@pytest.mark.parametrize("kind", [str, Path, Place])
def test_a_configuration_takes_any_path(kind: Any, tmp_path: Path) -> None:
    config = TerminalEnvConfig(
        task_dir=kind("task:devops_task"), trials_dir=kind(str(tmp_path)), recording_path=kind("a.cast")
    )
    assert (config.task_dir.name, config.trials_dir, config.recording_path) == (
        "devops_task",
        tmp_path,
        Path("a.cast"),
    )


async def test_runs_tasks_and_transcripts_are_found_by_any_path(tmp_path: Path) -> None:
    fake_config(tmp_path / "tasks" / "one")
    run, place = str(tmp_path / "run"), Place(str(tmp_path / "tasks"))
    assert [path.name for path in find_tasks([place])] == ["one"]
    assert [task.name for task in await resolve_tasks(place)] == ["one"]
    assert [task.name for task in await resolve_tasks([place, str(tmp_path / "tasks" / "one")])] == ["one"]
    file = Place(f"{run}/transcripts/train/batch_0001/group_1/episode_001.json")
    write_transcript(file, Transcript(), labels={"task": "one"})
    assert read_transcript(file)[1]["task"] == "one"
    assert list(episodes(run)["task"]) == ["one"]
    assert write_page(run, f"{run}/page.html").path == tmp_path / "run/page.html"
    assert note_evaluation(run, Evaluated(1, "000001", 0.5, 8.0, 4)) == read_best(Place(run))
