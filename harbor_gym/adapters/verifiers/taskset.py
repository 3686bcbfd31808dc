"""Any source of Harbor tasks as a taskset of verifiers, and the worth of a verdict there."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import override

import verifiers.v1 as vf
from pydantic import Field

from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.verifiers.outcome import Outcome
from harbor_gym.tasks import SourcedTask, read_instruction, resolve_tasks


class HarborTaskData(vf.TaskData):
    """One Harbor task on this machine. ``prompt`` is its first instruction, for reports; Harbor gives the policy its
    own."""

    task_dir: str
    """Its directory."""

    digest: str
    """``sha256:…`` of its files."""

    source: str
    """The source that named it."""

    commit: str | None = None
    """The git commit it was taken from."""


class HarborTask(vf.Task[HarborTaskData]):
    """A Harbor task. Its sandbox and its verifier are Harbor's; scoring reads the verdict that the harness left."""

    @property
    @override
    def key(self) -> str:
        """The task's name and the digest of its files, the same on every machine."""
        return f"{self.data.name}@{self.data.digest}"

    @vf.reward
    async def verdict(self, trace: vf.Trace) -> Mapping[str, float]:
        """Return the verifier's reward under its key.

        Raises:
            RuntimeError: The episode was never verified, because a timeout of verifiers cut it. It is an error then and
                not a reward: the trace is left out of training.
        """
        outcome = _outcome(trace)
        return {outcome.reward_name: outcome.reward}

    @vf.metric
    async def episode(self, trace: vf.Trace) -> Mapping[str, float]:
        """Return the verifier's other rewards as ``verifier/…``, and what the episode measured."""
        return _outcome(trace).metrics


class HarborTasksetConfig(vf.TasksetConfig):
    """Which tasks."""

    tasks: list[str] = Field(default_factory=list)
    """Directories of tasks, ``git+URL@COMMIT#path/in/the/repository``, or a registry's ``org/name@ref``. Relative ones
    are resolved where the process runs."""

    registry_path: Path | None = None
    """A ``registry.json`` to look registry names up in."""

    registry_url: str | None = None
    """The address of one; with neither, ``org/name`` is looked up in Harbor's registry."""

    download_dir: Path | None = None
    """Where what is fetched lies; None is Harbor's cache."""


class HarborTerminalTaskset(vf.Taskset[HarborTask, HarborTasksetConfig]):
    """Harbor tasks from directories, git repositories and registries; multi-step and Dockerfile-only ones too."""

    @override
    def load(self) -> Iterator[HarborTask]:
        """Fetch the tasks and yield them in the order of their sources. Blocks.

        Raises:
            ValueError: There is no source, or one can't be read.
            TaskError: A task is wrong, or can't be fetched.
        """
        if not self.config.tasks:
            raise ValueError('the taskset has no tasks: give env.taskset.tasks, for example ["path/to/tasks"]')
        found = get_portal().call(
            resolve_tasks,
            self.config.tasks,
            registry_path=self.config.registry_path,
            registry_url=self.config.registry_url,
            download_dir=self.config.download_dir,
        )
        for task in found:
            yield HarborTask(_data(task), self.config.task)


def _data(task: SourcedTask) -> HarborTaskData:
    fields = {
        "name": task.name,
        "prompt": read_instruction(task),
        "task_dir": str(task.path.absolute()),
        "digest": task.digest,
        "source": task.source,
        "commit": task.commit,
    }
    return HarborTaskData.model_validate(fields)


def _outcome(trace: vf.Trace) -> Outcome:
    if (outcome := Outcome.of_trace(trace)) is None:
        raise RuntimeError(
            f"there is no verdict (stop condition: {trace.stop_condition}): verifiers cut the episode before it was "
            "graded. Use terminal_env.time_limit_sec or a limit of turns or tokens: such an episode is graded"
        )
    return outcome
