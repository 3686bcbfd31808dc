"""A call's way to another machine: its tasks by content, its files back, its exceptions unchanged."""

import asyncio
import dataclasses
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalConfig, TerminalEnvConfig
from harbor_gym._runtime.cache import cache_dir
from harbor_gym._runtime.rate_limit import set_start_gate
from harbor_gym.cluster.calls import CallPacker, PackedResult, accept_files, run_call
from harbor_gym.cluster.task_store import has_task, pack_task, task_path, unpack_task
from harbor_gym.config import AgentEpisodeConfig, EpisodeConfig
from harbor_gym.errors import SandboxLostError, SandboxThrottledError, TaskError
from harbor_gym.testing import FakeEnvironment, write_tiny_task
from tests.helpers.sandboxes.fake_episodes import fake_config

pytestmark = pytest.mark.usefixtures("own_cache", "nothing_left")


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = write_tiny_task(tmp_path / "here" / "my-task")
    script = path / "tests" / "test.sh"
    script.write_text("#!/bin/bash\n")
    script.chmod(0o755)
    (path / "tests" / "link").symlink_to("test.sh")
    return path


@dataclasses.dataclass
class Group:
    """A builder as an adapter's: a configuration, and where to write."""

    config: TerminalEnvConfig
    transcripts: Path


def run(packer: CallPacker, function: Any, *args: Any, **kwargs: Any) -> PackedResult:
    """Pack a call and run it as a node does."""
    call = packer.pack(function, args, kwargs)
    for digest in call.digests:
        unpack_task(packer.tasks[digest])
    return run_call(call)


def outcome(result: PackedResult) -> Any:
    import pickle

    return pickle.loads(result.payload)


def test_equal_tasks_have_one_digest_wherever_they_lie(task: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(task, tmp_path / "there" / "my-task", symlinks=True))
    os.utime(copy / "task.toml", (1, 1))
    assert pack_task(task) == pack_task(copy)
    changed = {pack_task(task).digest}
    (copy / "instruction.md").write_text("Something else.\n")
    changed.add(pack_task(copy).digest)
    (task / "tests" / "test.sh").chmod(0o644)
    changed.add(pack_task(task).digest)
    assert len(changed) == 3
    with pytest.raises(TaskError, match="nowhere"):
        pack_task(tmp_path / "nowhere")


def test_a_task_arrives_whole(task: Path) -> None:
    packed = pack_task(task)
    assert not has_task(packed.digest)
    first, second = unpack_task(packed), unpack_task(packed)
    assert first == second == task_path(packed.digest)
    assert first.name == "my-task"
    assert first.is_relative_to(cache_dir())
    assert (first / "tests" / "test.sh").stat().st_mode & stat.S_IXUSR
    assert (first / "tests" / "link").readlink() == Path("test.sh")
    assert pack_task(first) == packed
    assert [path.name for path in first.parent.parent.iterdir()] == [packed.digest]


def both(first: object, second: object) -> tuple[object, object]:
    return first, second


@pytest.mark.parametrize(
    "config",
    [
        TerminalEnvConfig(task_dir="", sandbox="local", terminal=TerminalConfig(rows=7), max_turns=3),
        AgentEpisodeConfig(task_dir="", agent="terminus-2", agent_options={"api_base": "{gateway_url}"}),
    ],
)
def test_a_configuration_is_the_nodes_own_and_its_task_travels_once(task: Path, config: EpisodeConfig) -> None:
    packer, config = CallPacker(None), config.model_copy(update={"task_dir": task})
    result = run(packer, both, config, second=config)
    first, second = outcome(result)
    assert first.task_dir == task_path(next(iter(packer.tasks))) != task
    assert first.model_copy(update={"task_dir": task}) == config == second.model_copy(update={"task_dir": task})
    assert len(packer.tasks) == 1


def test_files_below_the_output_folder_come_back(task: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    group = Group(TerminalEnvConfig(task_dir=task, recording_path=output / "casts" / "a.cast"), output / "transcripts")

    def write(group: Group) -> tuple[Path, Path | None]:
        for path in (group.transcripts / "b" / "one.json", group.config.recording_path):
            assert path is not None
            path.parent.mkdir(parents=True)
            path.write_text(path.name)
        return group.transcripts, group.config.recording_path

    result = run(CallPacker(output), write, group)
    transcripts, cast = outcome(result)
    assert not output.exists()
    assert not transcripts.exists()
    assert cast is not None
    assert not cast.is_relative_to(output)
    output.mkdir()
    accept_files(result, output)
    files = {path.relative_to(output).as_posix(): path.read_text() for path in output.rglob("*") if path.is_file()}
    assert files == {"casts/a.cast": "a.cast", "transcripts/b/one.json": "one.json"}


def test_a_calls_exception_comes_back_as_it_was(task: Path) -> None:
    def fail() -> None:
        raise SandboxLostError("gone").attach({"trial_log": "the end"}, trial_dir=None)

    result = run(CallPacker(None), fail)
    error = outcome(result)
    assert result.is_error
    assert isinstance(error, SandboxLostError)
    assert error.diagnostics == {"trial_log": "the end"}
    assert result.files == b""


def test_what_ends_the_worker_leaves_no_folder() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(CallPacker(None), stop)


async def test_every_start_asks_the_gate_and_reports_throttling(tmp_path: Path) -> None:
    class Gate:
        def __init__(self) -> None:
            self.asked, self.pauses = 0, list[float]()

        async def acquire(self) -> None:
            await asyncio.sleep(0)
            self.asked += 1

        def back_off(self, seconds: float) -> None:
            self.pauses.append(seconds)

    gate = Gate()
    set_start_gate(gate)
    try:
        async with AsyncTerminalGymEnv(fake_config(tmp_path / "task")) as env:
            await env.reset()
            await env.reset()
        assert (gate.asked, gate.pauses) == (2, [])
        async with AsyncTerminalGymEnv(fake_config(tmp_path / "task", sandbox=f"{__name__}:Throttled")) as env:
            with pytest.raises(SandboxThrottledError):
                await env.reset()
        assert (gate.asked, gate.pauses) == (3, [7.0])
    finally:
        set_start_gate(None)


class Throttled(FakeEnvironment):
    async def start(self, force_build: bool) -> None:
        raise SandboxThrottledError("later", 7.0)
