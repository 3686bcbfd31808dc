"""Sources of a trainer's tasks: sandboxes of its own process, or a server."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from harbor_gym.adapters.openenv.client import HarborTerminalClient
from harbor_gym.adapters.openenv.remote import RemoteTerminalEnv
from harbor_gym.adapters.openenv.suite import TRAIN, TaskSuite
from harbor_gym.config import TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.pool import shared_pool


@dataclass(frozen=True)
class LocalTasks:
    """Tasks in sandboxes that this process starts. Picklable."""

    suite: TaskSuite
    """The tasks."""

    config: TerminalEnvConfig
    """The sandbox and the budgets. The episode's task replaces its ``task_dir``."""

    split: str = TRAIN
    """The split of the tasks."""

    pool_size: int | None = None
    """Sandboxes that a warm pool keeps ready for each task; None starts one per episode."""

    def bind(self, task: object, seed: int | None = None) -> Callable[[], AsyncTerminalGymEnv]:
        """Return a function that makes environments of one task, for the portal's loop.

        Args:
            task: A prompt of :meth:`TaskSuite.rows`, a row, or an index in the split; else ``seed`` chooses.
            seed: Chooses the task at ``seed`` modulo the number of tasks; None draws one at random.

        Raises:
            UsageError: There is no such task.
        """
        chosen = self.suite.choose(self.split, index_in(task), None, seed).task
        config = self.config.model_copy(update={"task_dir": chosen.path})
        return functools.partial(_make_env, config, self.pool_size)


@dataclass(frozen=True)
class ServedTasks:
    """Tasks of a server (``harbor-gym openenv``). Picklable."""

    url: str
    """The server's address."""

    token: str | None = field(default=None, repr=False)
    """The server's token; None takes the environment variable ``HARBOR_GYM_OPENENV_TOKEN``."""

    split: str = TRAIN
    """The split of the tasks."""

    def bind(self, task: object, seed: int | None = None) -> Callable[[], RemoteTerminalEnv]:
        """Return a function that makes sessions of one task, for any event loop.

        Args:
            task: As for :meth:`LocalTasks.bind`; the server refuses an unknown task.
            seed: Chooses the task at ``seed`` modulo the number of tasks; without it the server draws one per session.
        """

        def make_env() -> RemoteTerminalEnv:
            client = HarborTerminalClient(self.url, token=self.token)
            return RemoteTerminalEnv(client, split=self.split, index=index_in(task), seed=seed)

        return make_env


def index_in(task: object) -> int | None:
    """Return the index of the task that a prompt, a row or a number names; None if it names none."""
    match task:
        case bool():
            return None
        case int():
            return task
        case {"task_index": int(index)} | [{"task_index": int(index)}, *_]:
            return index
        case _:
            return None


def _make_env(config: TerminalEnvConfig, pool_size: int | None) -> AsyncTerminalGymEnv:
    pool = None if pool_size is None else shared_pool(config, size=pool_size)
    return AsyncTerminalGymEnv(config, pool=pool)
