"""Harbor tasks from any source as a taskset of verifiers, and the reward of a verdict."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import override

import verifiers.v1 as vf
from pydantic import Field

from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.verifiers.outcome import Outcome
from harbor_gym.tasks import SourcedTask, read_instruction, resolve_tasks
from harbor_gym.tasks.receipts import audited_tasks
from harbor_gym.types import Severity


class HarborTaskData(vf.TaskData):
    """One Harbor task on this machine. ``prompt`` is its first instruction, for reports only."""

    task_dir: str
    """The task's directory."""

    digest: str
    """``sha256:…`` of the task's files."""

    source: str
    """The source that has the task."""

    commit: str | None = None
    """The git commit of the task."""


class HarborTask(vf.Task[HarborTaskData]):
    """A Harbor task. Harbor runs its sandbox and verifier; scoring reads the verdict that the harness recorded."""

    @property
    @override
    def key(self) -> str:
        """The task's name and the digest of its files, the same on every machine."""
        return f"{self.data.name}@{self.data.digest}"

    @vf.reward
    async def verdict(self, trace: vf.Trace) -> Mapping[str, float]:
        """Return the verifier's reward under its key.

        Raises:
            RuntimeError: The episode was never verified, because a timeout of verifiers ended it. The trace is then
                left out of training.
        """
        outcome = _outcome(trace)
        return {outcome.reward_name: outcome.reward}

    @vf.metric
    async def episode(self, trace: vf.Trace) -> Mapping[str, float]:
        """Return the verifier's other rewards as ``verifier/…``, and the episode's metrics."""
        return _outcome(trace).metrics


class HarborTasksetConfig(vf.TasksetConfig):
    """The tasks of the taskset."""

    tasks: list[str] = Field(default_factory=list)
    """Directories of tasks, ``git+URL@COMMIT#path/in/the/repository``, or a registry's ``org/name@ref``. Relative paths
    begin at the process's working directory."""

    registry_path: Path | None = None
    """A ``registry.json`` in which registry names are looked up."""

    registry_url: str | None = None
    """The address of a registry; without a path and an address, names are looked up in Harbor's registry."""

    download_dir: Path | None = None
    """Folder for fetched tasks; None is Harbor's cache."""

    require_audit: Path | None = None
    """Folder of a harbor-gym audit: tasks without a receipt there of their present files are left out."""

    refused_findings: Severity = Severity.ERROR
    """With ``require_audit``: leave out tasks with a finding as bad as this, too."""


class HarborTerminalTaskset(vf.Taskset[HarborTask, HarborTasksetConfig]):
    """Harbor tasks from directories, git repositories and registries, including multi-step tasks."""

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
        found = audited_tasks(found, self.config.require_audit, refused=self.config.refused_findings)
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
