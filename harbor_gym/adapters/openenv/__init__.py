"""Harbor tasks behind OpenEnv (extra ``openenv``): a served terminal, its client, and token-exact sessions for TRL.

A name is imported when it is first used; without the extra that raises
:class:`harbor_gym.errors.MissingDependencyError`.
"""

from typing import TYPE_CHECKING

from harbor_gym._runtime.imports import lazy_names

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
    from harbor_gym.adapters.openenv.sessions import HarborTerminalSession as HarborTerminalSession
    from harbor_gym.adapters.openenv.sessions import HarborTerminalSessionFactory as HarborTerminalSessionFactory
    from harbor_gym.adapters.openenv.sources import LocalTasks as LocalTasks
    from harbor_gym.adapters.openenv.sources import ServedTasks as ServedTasks
    from harbor_gym.adapters.openenv.suite import TaskSuite as TaskSuite
    from harbor_gym.adapters.openenv.traces import training_trace as training_trace
    from harbor_gym.adapters.openenv.worker import TerminalRolloutWorker as TerminalRolloutWorker

__getattr__, __dir__ = lazy_names(
    __name__, __file__, requires=("openenv", "fastapi", "uvicorn", "websockets"), install='"harbor-gym[openenv]"'
)
