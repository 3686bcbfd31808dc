"""Harbor tasks behind OpenEnv (extra ``openenv``): a served terminal, its client, and token-exact sessions for TRL.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harbor_gym.errors import MissingDependencyError

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

_HOMES = {
    "HarborTerminalClient": "client",
    "HarborTerminalEnvironment": "environment",
    "HarborTerminalSession": "sessions",
    "HarborTerminalSessionFactory": "sessions",
    "LocalTasks": "sources",
    "RemoteTerminalEnv": "remote",
    "ServedTasks": "sources",
    "ServerConfig": "config",
    "TOKEN_VARIABLE": "config",
    "TaskSuite": "suite",
    "TerminalAction": "models",
    "TerminalCommand": "models",
    "TerminalObservation": "models",
    "TerminalRolloutWorker": "worker",
    "TerminalServer": "server",
    "TerminalState": "models",
    "create_app": "server",
    "serve": "server",
    "training_trace": "traces",
}

_PACKAGES = ("openenv", "fastapi", "uvicorn", "websockets")

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if missing := [package for package in _PACKAGES if find_spec(package) is None]:
        message = f'harbor_gym.adapters.openenv needs {missing[0]}: pip install "harbor-gym[openenv]"'
        raise MissingDependencyError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
