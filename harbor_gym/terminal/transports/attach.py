"""Start commands with pipes in the environments that support it.

Only this module uses private names of Harbor's Docker environment; a contract test checks them.
"""

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any, cast

from harbor_gym._runtime.processes import start_process
from harbor_gym.sandboxes.extensions import PipedProcess, SupportsExecArgv, SupportsExecPipes
from harbor_gym.terminal.sandbox_exec import lost_for_all_else

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment  # 0.3 s to import, and only its type is needed

_DOCKER_MODULE = "harbor.environments.docker.docker"
_LOOKUP_TIMEOUT_SEC = 20.0

logger = logging.getLogger(__name__)


def has_pipes(environment: "BaseEnvironment") -> bool:
    """Return whether :func:`exec_pipes` will start commands in this environment."""
    return isinstance(environment, SupportsExecPipes) and isinstance(environment, SupportsExecArgv)


async def exec_pipes(
    environment: "BaseEnvironment", command: str, *, user: str | int | None, directory: str = ""
) -> PipedProcess | None:
    """Start ``command`` in the sandbox with pipes; None if the environment supports no such thing.

    An environment does as :class:`harbor_gym.sandboxes.extensions.SupportsExecPipes`, which saves a process compared
    with ``exec_argv``; ``directory`` is what that makes of it.

    Raises:
        SandboxLostError: The sandbox is gone.
    """
    if not (isinstance(environment, SupportsExecPipes) and isinstance(environment, SupportsExecArgv)):
        return None
    with lost_for_all_else(environment, "take a command with pipes"):
        return await environment.exec_pipes(command, user=user, directory=directory)


async def start_piped(
    environment: "BaseEnvironment", command: str, *, user: str | int | None, directory: str = ""
) -> PipedProcess | None:
    """Start ``command`` in the sandbox with pipes, by ``exec_pipes`` or a process of this machine; None without either.

    Its standard error is discarded. A process of this machine ends with its standard input, and so with this process.

    Raises:
        SandboxLostError: The sandbox is gone.
        OSError: The process of this machine could not be started.
    """
    if (process := await exec_pipes(environment, command, user=user, directory=directory)) is not None:
        return process
    if (argv := await enter_argv(environment, command, user=user)) is None:
        return None
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    # In a session of its own: an interrupt typed at this machine's terminal must not reach it.
    return await start_process(*argv, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True)


async def enter_argv(environment: "BaseEnvironment", command: str, *, user: str | int | None) -> list[str] | None:
    """Return an argument vector for a process that runs ``command`` in the sandbox; None if there is none.

    An environment supplies one as :class:`harbor_gym.sandboxes.extensions.SupportsExecArgv`; for Harbor's Docker
    environment and its subclasses it is the engine's ``exec``.
    """
    if isinstance(environment, SupportsExecArgv):
        return environment.exec_argv(command, user=user)
    if _is_docker(environment):
        return await _docker_argv(environment, command, user)
    return None


def _is_docker(environment: "BaseEnvironment") -> bool:
    # An environment of that class has loaded its module already; others need not load it.
    module = sys.modules.get(_DOCKER_MODULE)
    return module is not None and isinstance(environment, module.DockerEnvironment)


async def _docker_argv(environment: "BaseEnvironment", command: str, user: str | int | None) -> list[str] | None:
    engine = docker_engine(environment)
    filters = (f"label=com.docker.compose.{key}={value}" for key, value in docker_labels(environment).items())
    listing = [*engine, "ps", "--quiet", "--no-trunc", *(word for text in filters for word in ("--filter", text))]
    containers = (await _output(listing)).split()
    if len(containers) != 1:
        logger.debug("expected one running container of %s, found %s", environment.session_id, containers)
        return None
    owner = [] if user is None else ["--user", str(user)]
    return [*engine, "exec", "--interactive", *owner, containers[0], "bash", "-c", command]


def docker_engine(environment: "BaseEnvironment") -> list[str]:
    """Return the words that call the engine of a Docker environment."""
    kind = cast("Any", type(environment))
    return list(kind.runtime().engine)


def docker_labels(environment: "BaseEnvironment") -> dict[str, str]:
    """Return the Compose labels (without their prefix) of a Docker environment's main container."""
    from harbor.environments.docker.docker import (
        MAIN_SERVICE_NAME,
        _sanitize_docker_compose_project_name,  # pyright: ignore[reportPrivateUsage]  # nothing public names the project
    )

    return {"project": _sanitize_docker_compose_project_name(environment.session_id), "service": MAIN_SERVICE_NAME}


async def _output(argv: list[str]) -> str:
    process = await start_process(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(_LOOKUP_TIMEOUT_SEC):
            output, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace")
