"""The MCP servers of one phase: their tools, and the calls of these."""

import asyncio
import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from harbor.models.task.config import MCPServerConfig

from harbor_gym._runtime.harbor_versions import mcp_headers
from harbor_gym.episode.mcp.connections import (
    Connection,
    HttpConnection,
    ServerError,
    ServerLostError,
    SseConnection,
    StdioConnection,
)
from harbor_gym.episode.mcp.relay import Relay, can_relay
from harbor_gym.errors import HarborGymError, TaskError, TaskUnsupportedError, printable
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition, tool_schema
from harbor_gym.terminal.transports.attach import start_piped

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

_START_SEC = 30.0
"""Seconds that a server may take until its tools are known."""

_RETRY_SEC = 0.25
"""Pause before another attempt at an address where no server listens yet."""

_MAX_NAME_CHARS = 64
"""Longest name of a tool that endpoints accept (OpenAI's, Anthropic's)."""

_MAX_SCHEMA_CHARS = 64_000
"""Limit on the schemas of all tools in the prompt."""

_NO_BASH = (
    "its address is reached by bash, which the image lacks: install bash, or set mcp_tools to False for the address "
    "in the instruction"
)
_MAX_SCHEMA_LEVELS = 100
"""Limit on the nesting of a tool's schema, which others render again: chat templates, agents."""

_MAX_PAGES = 20
_MAX_ERROR_CHARS = 500
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool's call."""

    head: str
    """The tool's name in brackets, with ``failed`` if the call failed."""

    text: str
    """The result, or why there is none."""

    is_error: bool
    """Whether the call failed."""

    duration_sec: float


class McpServers:
    """The servers of a phase. Its owner opens and closes it.

    Args:
        environment: The sandbox.
        user: The policy's user; None is the environment's default user.
        configs: The servers, as the task declares them. Only the servers get the values of this process's variables
            in their headers.
    """

    def __init__(
        self,
        environment: "BaseEnvironment",
        user: str | int | None,
        configs: Sequence[MCPServerConfig],
    ) -> None:
        self._servers = [_Server(environment, user, config) for config in configs]
        self._tools: dict[str, tuple[_Server, str]] = {}
        self.tools: tuple[ToolDefinition, ...] = ()
        """The tools, named ``SERVER__TOOL``, with the descriptions and schemas that the servers declare."""

        self.problems: dict[str, str] = {}
        """Name of a server without tools → why, after :meth:`open`."""

    async def open(self, *, is_first: bool = True) -> None:
        """Start the servers or connect to them, and learn their tools.

        Args:
            is_first: Whether no policy was in the sandbox yet. A server that does not answer is then the task's
                failure; later it only has no tools, and :attr:`problems` says why.

        Raises:
            TaskError: A server does not answer or declares tools that can't be used, before a policy was there.
            TaskUnsupportedError: The sandbox runs no command with pipes.
            SandboxLostError: The sandbox is gone.
        """
        for server in self._servers:
            limit = asyncio.timeout(_START_SEC)
            try:
                async with limit:
                    self._add(server, await server.list_tools())
                continue
            except ServerError as exc:
                problem = str(exc)
            except TimeoutError:
                if not limit.expired():
                    raise
                problem = f"no answer within {_START_SEC:g} s {server.problem}".strip()
            problem = printable(_brief(problem))
            await server.disconnect()
            if is_first:
                raise TaskError(f"the MCP server {server.name} of the task can't be used: {problem}")
            self.problems[server.name] = problem

    async def call(self, call: ToolCall, *, timeout_sec: float) -> ToolResult:
        """Call a tool and return its result.

        A server that had ended, or was silent twice in a row, is started or connected to again.

        Args:
            call: The call, with a name of :attr:`tools`.
            timeout_sec: Longest wait in seconds.
        """
        started = time.monotonic()
        server, name = self._tools[call.name]
        limit = asyncio.timeout(timeout_sec)
        try:
            async with limit:
                text, is_error = await server.call(name, json.loads(call.arguments))
        except TimeoutError:
            if not limit.expired():
                raise
            text, is_error = f"no answer within {timeout_sec:g} s", True
            if server.is_late:
                await server.disconnect()
            server.is_late = not server.is_late
        except (ServerError, HarborGymError) as exc:
            # A sandbox that is gone fails the next typed command; a broken server may be the policy's doing.
            text, is_error = _brief(str(exc)), True
            if not isinstance(exc, ServerError) or isinstance(exc, ServerLostError):
                await server.disconnect()
        else:
            server.is_late = False
        head = f"[{call.name} failed]" if is_error else f"[{call.name}]"
        return ToolResult(head, printable(text), is_error, time.monotonic() - started)

    async def close(self) -> None:
        """End the servers that were started, and every connection. Idempotent."""
        for server in self._servers:
            await server.disconnect()

    def forget(self) -> None:
        """Remove the sockets of the connections after their event loop has ended."""
        for server in self._servers:
            server.forget()

    def _add(self, server: "_Server", found: Sequence[ToolDefinition]) -> None:
        """Add a server's tools, all or none of them.

        Raises:
            ServerError: They can't be used.
        """
        own = dict[str, str]()
        tools = list(self.tools)
        for tool in found:
            name = _NO_NAME.sub("_", f"{server.name}__{tool.name}")[:_MAX_NAME_CHARS]
            if name in own or name in self._tools:
                raise ServerError(f"it declares a second tool with the name {name}")
            own[name] = tool.name
            tools.append(ToolDefinition(name, tool.description, tool.parameters))
        size = sum(len(json.dumps(tool_schema(tool))) for tool in tools)
        if size > _MAX_SCHEMA_CHARS:
            raise ServerError(
                f"its tools and those of the servers before it take {size} characters of the prompt; at most "
                f"{_MAX_SCHEMA_CHARS} are taken"
            )
        self.tools = tuple(tools)
        self._tools |= {name: (server, its) for name, its in own.items()}


class _Server:
    """One server, connected or not."""

    def __init__(self, environment: "BaseEnvironment", user: str | int | None, config: MCPServerConfig) -> None:
        self.name = config.name
        self._environment, self._user, self._config = environment, user, config
        self._relay: Relay | None = None
        self._connection: Connection | None = None
        self._has_tools = False
        self.problem = ""
        """Why the last attempt to connect at the start failed."""

        self.is_late = False
        """Whether the last call had no answer in time."""

    async def list_tools(self) -> list[ToolDefinition]:
        """Connect and return the tools under the server's own names."""
        while True:
            try:
                connection = await self._connected()
                break
            except ServerLostError as exc:
                if self._config.transport == "stdio":
                    raise
                await self.disconnect()
                if not self.problem and not await can_relay(self._environment, self._user):
                    raise ServerError(_NO_BASH) from exc
                self.problem = f"({exc})"
                # A server that the image starts may listen a moment later.
                await asyncio.sleep(_RETRY_SEC)
        tools: list[ToolDefinition] = []
        params: dict[str, Any] = {}
        for _ in range(_MAX_PAGES if self._has_tools else 0):
            page = await connection.request("tools/list", params)
            tools += [_definition(tool) for tool in _listed(page, "tools")]
            if not isinstance(cursor := page.get("nextCursor"), str):
                break
            params = {"cursor": cursor}
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Return a call's result as text, and whether the tool says that it failed."""
        connection = await self._connected()
        result = await connection.request("tools/call", {"name": name, "arguments": dict(arguments)})
        return _as_text(result), result.get("isError") is True

    async def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        relay, self._relay = self._relay, None
        try:
            if connection is not None:
                await connection.close()
        finally:
            if relay is not None:
                await relay.close()

    def forget(self) -> None:
        if self._relay is not None:
            self._relay.remove()

    async def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._connection = await self._connect()
            try:
                self._has_tools = "tools" in await connection.initialize()
            except BaseException:
                await self.disconnect()
                raise
        return self._connection

    async def _connect(self) -> Connection:
        config = self._config
        if config.transport == "stdio":
            command = f"exec {shlex.join([config.command or '', *config.args])}"
            process = await start_piped(self._environment, command, user=self._user)
            if process is None:
                raise self._unsupported()
            return StdioConnection(process)
        address = urlsplit(config.url or "")
        try:
            host, port = address.hostname, address.port or {"http": 80, "https": 443}[address.scheme]
        except (KeyError, ValueError):
            host, port = None, 0
        if host is None:
            raise TaskError(f"the MCP server {self.name} of the task has no address that can be used: {config.url}")
        self._relay = relay = Relay(self._environment, self._user, host, port)
        await relay.open()
        kind = SseConnection if config.transport == "sse" else HttpConnection
        return kind(config.url or "", mcp_headers(config), relay.path)

    def _unsupported(self) -> TaskUnsupportedError:
        return TaskUnsupportedError(
            f"{type(self._environment).__name__} runs no command with pipes, so that the MCP server {self.name} can't "
            "be the policy's tool there: set mcp_tools to False for its address in the instruction, or take a local, "
            "docker or apptainer sandbox"
        )


def _definition(tool: Mapping[str, Any]) -> ToolDefinition:
    name, description, schema = tool.get("name"), tool.get("description"), tool.get("inputSchema")
    if not isinstance(name, str):
        raise ServerError("it declares a tool without a name")
    parameters = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {"type": "object", "properties": {}}
    if _is_deeper(parameters, _MAX_SCHEMA_LEVELS):
        raise ServerError(f"it declares a tool whose schema has more than {_MAX_SCHEMA_LEVELS} levels")
    return ToolDefinition(name, description if isinstance(description, str) else "", parameters)


def _is_deeper(value: object, levels: int) -> bool:
    match value:
        case dict():
            inner = cast("dict[str, Any]", value).values()
        case list():
            inner = cast("list[Any]", value)
        case _:
            return False
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inner)


def _as_text(result: Mapping[str, Any]) -> str:
    """Return a result's content as text; other content is replaced by a description."""
    content = [_part(part) for part in _listed(result, "content")]
    if not content and result.get("structuredContent") is not None:
        try:
            return json.dumps(result["structuredContent"], ensure_ascii=False)
        except RecursionError:
            raise ServerError("its answer has too many levels") from None
    return "\n".join(content)


def _part(part: Mapping[str, Any]) -> str:
    match part:
        case {"type": "text", "text": str() as text}:
            return text
        case {"type": "resource", "resource": {"text": str() as text}}:
            return text
        case {"type": "resource", "resource": {"uri": str() as uri}} | {"type": "resource_link", "uri": str() as uri}:
            return f"[resource {uri:.200}]"
        case {"type": ("image" | "audio") as kind, "data": str() as data}:
            return f"[{kind} of {len(data) * 3 // 4} bytes, which can't be shown here]"
        case _:
            return "[content of a kind that can't be shown here]"


def _listed(found: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    listed = found.get(key)
    return [item for item in cast("list[Any]", listed) if isinstance(item, dict)] if isinstance(listed, list) else []


def _brief(text: str) -> str:
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}…"
