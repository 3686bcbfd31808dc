"""Harbor tasks behind OpenEnv (extra ``openenv``): a served terminal, its client, and token-exact sessions for TRL.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

from harbor_gym._runtime.imports import lazy_names

if TYPE_CHECKING:
    from harbor_gym.adapters.openenv.client import HarborTerminalClient
    from harbor_gym.adapters.openenv.config import TOKEN_VARIABLE, ServerConfig
    from harbor_gym.adapters.openenv.environment import HarborTerminalEnvironment
    from harbor_gym.adapters.openenv.models import TerminalAction, TerminalCommand, TerminalObservation, TerminalState
    from harbor_gym.adapters.openenv.remote import RemoteTerminalEnv
    from harbor_gym.adapters.openenv.server import TerminalServer, create_app, serve
    from harbor_gym.adapters.openenv.sessions import HarborTerminalSession, HarborTerminalSessionFactory
    from harbor_gym.adapters.openenv.sources import LocalTasks, ServedTasks
    from harbor_gym.adapters.openenv.suite import TaskSuite
    from harbor_gym.adapters.openenv.traces import training_trace
    from harbor_gym.adapters.openenv.worker import TerminalRolloutWorker

__all__ = [
    "TOKEN_VARIABLE",
    "HarborTerminalClient",
    "HarborTerminalEnvironment",
    "HarborTerminalSession",
    "HarborTerminalSessionFactory",
    "LocalTasks",
    "RemoteTerminalEnv",
    "ServedTasks",
    "ServerConfig",
    "TaskSuite",
    "TerminalAction",
    "TerminalCommand",
    "TerminalObservation",
    "TerminalRolloutWorker",
    "TerminalServer",
    "TerminalState",
    "create_app",
    "serve",
    "training_trace",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "client": ("HarborTerminalClient",),
        "config": ("ServerConfig", "TOKEN_VARIABLE"),
        "environment": ("HarborTerminalEnvironment",),
        "models": ("TerminalAction", "TerminalCommand", "TerminalObservation", "TerminalState"),
        "remote": ("RemoteTerminalEnv",),
        "server": ("TerminalServer", "create_app", "serve"),
        "sessions": ("HarborTerminalSession", "HarborTerminalSessionFactory"),
        "sources": ("LocalTasks", "ServedTasks"),
        "suite": ("TaskSuite",),
        "traces": ("training_trace",),
        "worker": ("TerminalRolloutWorker",),
    },
    requires=("openenv", "fastapi", "uvicorn", "websockets"),
    install='"harbor-gym[openenv]"',
)
