"""The server: OpenEnv's application behind the guard."""

import contextlib
import functools
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import uvicorn
from fastapi import Request
from fastapi.responses import JSONResponse
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.types import ServerMode

from harbor_gym._runtime.files import why_unreadable
from harbor_gym._runtime.interrupts import exit_on_sigterm
from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.openenv.config import TOKEN_VARIABLE, ServerConfig, find_token
from harbor_gym.adapters.openenv.connections import bounded_protocol
from harbor_gym.adapters.openenv.environment import HarborTerminalEnvironment
from harbor_gym.adapters.openenv.episodes import served_episodes
from harbor_gym.adapters.openenv.guard import Guard
from harbor_gym.adapters.openenv.models import TerminalAction, TerminalObservation, TerminalState
from harbor_gym.adapters.openenv.suite import TaskSuite
from harbor_gym.episode.task import require_sandbox
from harbor_gym.errors import UsageError

ENV_NAME = "harbor_terminal"
"""The environment's name in the paths of OpenEnv's task API."""

_SHUTDOWN_SEC = 60
"""Longest wait of an ending server for its sandboxes to stop, in seconds."""

_SPARE_CONNECTIONS = 64
"""Most requests with the token, besides the sessions, that are served at once. Others are refused unread."""

_SESSIONS_BESIDE_THE_LIMIT = frozenset({"/mcp", "/harness", "/reset", "/step", "/state"})
"""OpenEnv's paths that start or show sandboxes outside the limit of sessions: they have no route."""

logger = logging.getLogger(__name__)


def create_app(config: ServerConfig, token: str) -> Guard:
    """Return the ASGI application, for a server of your own. Reads the tasks and checks the sandbox; blocks.

    Set your server's limit on a WebSocket's messages to ``max_request_bytes`` (uvicorn: ``ws_max_size``), because this
    application receives only complete ones.

    Args:
        config: The server's configuration. Its address is not used.
        token: The token that clients must send.

    Raises:
        UsageError: A task's source or a setting is wrong.
        TaskError: A directory is not a usable Harbor task.
        MissingDependencyError: The sandbox needs a program, a package or a key that is missing.
    """
    suite = TaskSuite.resolve(
        config.tasks,
        where=config.where,
        test_fraction=config.test_fraction,
        test_tasks=config.test_tasks,
        seed=config.seed,
        episode=config.env,
    )
    require_sandbox(config.env)
    episodes = served_episodes()
    app = create_fastapi_app(
        functools.partial(HarborTerminalEnvironment, suite, config, episodes),
        TerminalAction,
        TerminalObservation,
        max_concurrent_envs=config.max_sessions,
        env_name=ENV_NAME,
        state_cls=TerminalState,
        mode=ServerMode.PRODUCTION,  # without /reset and /step, which start sandboxes outside the limit of sessions
    )
    routes = app.router.routes
    routes[:] = [route for route in routes if getattr(route, "path", "") not in _SESSIONS_BESIDE_THE_LIMIT]
    app.router.on_shutdown.insert(0, functools.partial(get_portal().run, episodes.close))
    app.add_exception_handler(UsageError, _answer_misuse)
    return Guard(
        app,
        token=token,
        max_body_bytes=config.max_request_bytes,
        max_connections=config.max_sessions + _SPARE_CONNECTIONS,
        request_timeout_sec=config.request_timeout_sec,
        idle_timeout_sec=config.idle_timeout_sec,
    )


async def _answer_misuse(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=400)


class TerminalServer:
    """A server of Harbor tasks in this process: a context manager that serves on a thread, or :meth:`serve`.

    Args:
        config: The server's configuration.

    Raises:
        HarborGymError: As :func:`create_app`, or the certificate or the address can't be used.

    Example::

        with TerminalServer(ServerConfig(env=env, tasks=("tasks",), port=0)) as server:
            client = HarborTerminalClient(server.url, token=server.token)
    """

    def __init__(self, config: ServerConfig) -> None:
        self.token, self.is_token_generated = find_token(config)
        self._app = create_app(config, self.token)
        logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)
        self._config = config
        self._server = uvicorn.Server(_load(self._settings(), config))
        self._socket = _listen(config)
        self._address: tuple[str, int] = self._socket.getsockname()[:2]
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address at which the server listens."""
        host, port = self._address
        scheme = "http" if self._config.ssl_certfile is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def serve(self) -> None:
        """Serve until SIGINT or SIGTERM, then stop every sandbox. Blocks; in the main thread.

        Raises:
            SystemExit: After SIGTERM, with status 143.
            KeyboardInterrupt: After SIGINT.
        """
        with self._socket, contextlib.ExitStack() as stack:
            stack.callback(exit_on_sigterm())  # uvicorn raises the signal again at its end
            self._server.run(sockets=[self._socket])

    def __enter__(self) -> Self:
        """Serve on a thread. The socket already listens, so a client may connect at once."""
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="harbor-gym-openenv")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close every session and stop every sandbox."""
        self._server.should_exit = True
        assert self._thread is not None
        self._thread.join()
        self._socket.close()

    def _settings(self) -> uvicorn.Config:
        config = self._config
        return uvicorn.Config(
            self._app,
            log_config=None,  # the program configures its own logging
            log_level="warning",
            access_log=False,
            server_header=False,
            ws_max_size=config.max_request_bytes,
            ws_per_message_deflate=False,
            http=bounded_protocol(config.request_timeout_sec),
            timeout_graceful_shutdown=_SHUTDOWN_SEC,
            ssl_certfile=config.ssl_certfile,
            ssl_keyfile=config.ssl_keyfile,
        )


def serve(config: ServerConfig, show: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM. Blocks; in the main thread.

    Args:
        config: The server's configuration.
        show: Called with each line for the user: the address, and a generated token.

    Raises:
        HarborGymError: As :class:`TerminalServer`.
    """
    server = TerminalServer(config)
    if not _is_loopback(config.host) and config.ssl_certfile is None:
        logger.warning("listening on %s without TLS: others on the network can read the token", config.host)
    if server.is_token_generated:
        show(f"{TOKEN_VARIABLE}={server.token}")
    show(f"serving at {server.url}")
    server.serve()


def _is_no_refusal(record: logging.LogRecord) -> bool:
    # uvicorn logs an error for each refused handshake, so anybody could fill a disk with them.
    return record.getMessage() != "ASGI callable returned without completing handshake."


def _load(settings: uvicorn.Config, config: ServerConfig) -> uvicorn.Config:
    try:
        settings.load()  # reads the certificate, which uvicorn otherwise reads only when it serves
    except OSError as exc:  # also ssl.SSLError
        files = " and ".join(str(file) for file in (config.ssl_certfile, config.ssl_keyfile) if file is not None)
        raise UsageError(f"the certificate in {files} can't be used: {why_unreadable(exc)}: name PEM files") from exc
    return settings


def _listen(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=128)
    except OSError as exc:
        raise UsageError(f"can't listen on {config.host} port {config.port}: {exc}") from exc


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
