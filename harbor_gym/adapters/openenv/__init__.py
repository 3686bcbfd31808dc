"""Harbor tasks behind OpenEnv (extra ``openenv``): a served terminal, and its client.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harbor_gym.adapters.openenv.client import HarborTerminalClient as HarborTerminalClient
    from harbor_gym.adapters.openenv.config import TOKEN_VARIABLE as TOKEN_VARIABLE
    from harbor_gym.adapters.openenv.config import ServerConfig as ServerConfig
    from harbor_gym.adapters.openenv.environment import HarborTerminalEnvironment as HarborTerminalEnvironment
    from harbor_gym.adapters.openenv.models import TerminalAction as TerminalAction
    from harbor_gym.adapters.openenv.models import TerminalCommand as TerminalCommand
    from harbor_gym.adapters.openenv.models import TerminalObservation as TerminalObservation
    from harbor_gym.adapters.openenv.models import TerminalState as TerminalState
    from harbor_gym.adapters.openenv.remote import RemoteTerminalEnv as RemoteTerminalEnv
    from harbor_gym.adapters.openenv.server import TerminalServer as TerminalServer
    from harbor_gym.adapters.openenv.server import create_app as create_app
    from harbor_gym.adapters.openenv.server import serve as serve
    from harbor_gym.adapters.openenv.suite import TaskSuite as TaskSuite
else:
    from harbor_gym._runtime.imports import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".client": "HarborTerminalClient",
            ".config": "TOKEN_VARIABLE ServerConfig",
            ".environment": "HarborTerminalEnvironment",
            ".models": "TerminalAction TerminalCommand TerminalObservation TerminalState",
            ".remote": "RemoteTerminalEnv",
            ".server": "TerminalServer create_app serve",
            ".suite": "TaskSuite",
        },
        requires=("openenv", "fastapi", "uvicorn", "websockets"),
        install='"harbor-gym[openenv]"',
    )
