"""Whatever an MCP server answers, over each transport, is a result or a ``ServerError``, and never ends an episode."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from harbor.models.task.config import MCPServerConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harbor_gym.episode.mcp import McpServers
from harbor_gym.errors import TaskError
from harbor_gym.formats.tool_text import ToolCall, declare_tools
from tests.helpers.patience import PATIENCE_SEC

type Answers = Mapping[str, bytes]
"""A method → all that is sent for it: a line on stdio, a response over HTTP, a stream of events where it is ``GET``."""

TRANSPORTS = ["stdio", "http", "sse"]
TOOL = {"name": "add", "inputSchema": {"type": "object", "properties": {}}}
RESULTS: Mapping[str, Any] = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}},
    "tools/list": {"tools": [TOOL]},
    "tools/call": {"content": [{"type": "text", "text": "42"}]},
}
METHODS = ["initialize", "notifications/initialized", "tools/list", "tools/call"]
"""What a client sends, in order."""

_LONGER_SEC = 6.0
"""For servers that answer, on a busy machine too; a few of the answers are waited for as long."""

LINES = """
import sys
given = open(sys.argv[1], "rb").read().split(b"\\0\\0LINE\\0\\0")
for line, answer in zip(sys.stdin, given):
    sys.stdout.buffer.write(answer)
    sys.stdout.flush()
"""


class OnThisMachine:
    """The ability of a sandbox that MCP servers need: commands with pipes."""

    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        return ["bash", "-c", command]


def result(method: str, value: object) -> bytes:
    """Return the JSON of a result, or a text that is no JSON."""
    number = {"initialize": 1, "tools/list": 2, "tools/call": 3}[method]
    whole = value if isinstance(value, str) else json.dumps(value)
    return f'{{"jsonrpc": "2.0", "id": {number}, "result": {whole}}}\n'.encode()


def response(body: bytes, head: bytes = b"", status: bytes = b"200 OK") -> bytes:
    length = b"content-length: %d\r\nconnection: close\r\n" % len(body)
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%b%b\r\n%b" % (status, length, head, body)


def answers(**changed: object) -> dict[str, bytes]:
    """Return the bodies of a good server, with results put in for ``initialize``, ``tools_list`` or ``tools_call``."""
    put = {name.replace("_", "/"): value for name, value in changed.items()}
    return {method: result(method, put.get(method, value)) for method, value in RESULTS.items()}


@contextlib.asynccontextmanager
async def serving(given: Answers, *, raw: Answers | None = None) -> AsyncGenerator[int]:
    """Serve both transports of HTTP: ``given`` are bodies, ``raw`` whole responses; yields the port."""
    whole, streams = raw or {}, list[asyncio.StreamWriter]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode(errors="replace")
            if head.startswith("GET"):
                begun = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
                writer.write(whole.get("GET", begun + given.get("GET", b"event: endpoint\ndata: /post\n\n")))
                await writer.drain()
                streams.append(writer)
                return
            (length,) = [line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length")]
            method = json.loads(await reader.readexactly(int(length)))["method"]
            body = given.get(method, b"")
            writer.write(whole.get(method, response(b"" if streams else body)))
            await writer.drain()
            for stream in streams:
                stream.write(b"data: " + body.rstrip(b"\n") + b"\n\n")
                await stream.drain()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for stream in streams:
            stream.close()


async def talk(
    transport: str, given: Answers, folder: Path, *, raw: Answers | None = None, call_sec: float = 1
) -> tuple[str, str]:
    """Open a server's tools as in a later phase and call one; return why it has no tools, or else the call's head."""
    async with contextlib.AsyncExitStack() as stack:
        if transport == "stdio":
            path = folder / "lines"
            path.write_bytes(b"\0\0LINE\0\0".join(given.get(method, b"") for method in METHODS))
            config = MCPServerConfig(
                name="box", transport="stdio", command=sys.executable, args=["-ISc", LINES, str(path)]
            )
        else:
            port = await stack.enter_async_context(serving(given, raw=raw))
            kind = "streamable-http" if transport == "http" else "sse"
            config = MCPServerConfig(name="box", transport=kind, url=f"http://127.0.0.1:{port}/")
        servers = McpServers(cast("Any", OnThisMachine()), None, [config])
        stack.push_async_callback(servers.close)
        await servers.open(is_first=False)
        if not servers.tools:
            return servers.problems.get("box", "no tools"), ""
        declare_tools(servers.tools).encode()  # as a tokenizer does
        called = await servers.call(ToolCall(servers.tools[0].name, "{}"), timeout_sec=call_sec)
        called.text.encode()
        return called.head, called.text


@pytest.fixture(autouse=True)
def short_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent server is given up on at once."""
    monkeypatch.setattr("harbor_gym.episode.mcp.servers._START_SEC", 0.7)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_good_server(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the cases below would show nothing."""
    monkeypatch.setattr("harbor_gym.episode.mcp.servers._START_SEC", PATIENCE_SEC)
    assert await talk(transport, answers(), tmp_path, call_sec=PATIENCE_SEC) == ("[box__add]", "42")


DEEP = '{"a":' * 1400 + "1" + "}" * 1400
ODD_RESULTS: Mapping[str, tuple[dict[str, object], str]] = {
    "a version that is an object": ({"initialize": {"protocolVersion": {"a": "\xe9"}}}, "no text"),
    "a version that is a list": ({"initialize": {"protocolVersion": ["\ud800"]}}, "no text"),
    "capabilities that are a list": ({"initialize": {"capabilities": [1]}}, "no tools"),
    "tools that are a number": ({"tools_list": {"tools": 7}}, "no tools"),
    "a tool without a name": ({"tools_list": {"tools": [{"name": 5}]}}, "without a name"),
    "two tools of one name": ({"tools_list": {"tools": [TOOL, TOOL]}}, "second tool with the name box__add"),
    "names that are one when cut": (
        {"tools_list": {"tools": [{"name": "a" * 90}, {"name": "a" * 91}]}},
        "second tool with the name",
    ),
    "schemas that fill the prompt": ({"tools_list": {"tools": [{**TOOL, "description": "x" * 64_000}]}}, "64000"),
    "a deep schema": ({"tools_list": f'{{"tools": [{{"name": "add", "inputSchema": {DEEP}}}]}}'}, "levels"),
    "surrogates in a description": (
        {"tools_list": {"tools": [{**TOOL, "name": "\ud800", "description": "\ud800\x1b[2J"}]}},
        "[box___]",
    ),
    "surrogates in a text": ({"tools_call": {"content": [{"type": "text", "text": "\ud800\0"}]}}, "[box__add]"),
    "a number of 5,000 digits": ({"tools_call": f'{{"content": {"9" * 5000}}}'}, "[box__add failed]"),
    "not a number": ({"tools_call": '{"structuredContent": [NaN, 1e400]}'}, "[box__add]"),
    "content that is deep": ({"tools_call": f'{{"structuredContent": {DEEP}}}'}, "[box__add"),
    "content that is text": ({"tools_call": {"content": "text"}}, "[box__add]"),
    "resources without an address": ({"tools_call": {"content": [{"type": "resource", "resource": 1}]}}, "[box__add]"),
}


@pytest.mark.parametrize("name", ODD_RESULTS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_odd_results(transport: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harbor_gym.episode.mcp.servers._START_SEC", _LONGER_SEC)
    changed, expected = ODD_RESULTS[name]
    assert expected in (await talk(transport, answers(**changed), tmp_path, call_sec=_LONGER_SEC))[0]


@pytest.mark.parametrize("version", ["\xe9", "\ud800", "a\0b", "a\r\nx: y", "x" * 100_000, " "])
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_version_that_is_no_header(transport: str, version: str, tmp_path: Path) -> None:
    given = answers(initialize={**RESULTS["initialize"], "protocolVersion": version})
    assert (await talk(transport, given, tmp_path))[0].startswith(("no answer within", "[box__add"))


ADDRESSES = [
    *(b"http://[::1", b"//[", b"http://127.0.0.1:99999/", b"http://127.0.0.1:x/", b"/a\0b", b"x" * 100_000),
    *("http://\u2100.example/".encode(), "http://xn--\u00e9/".encode(), b"\xff\xfe", b"http://" + b"a" * 300 + b"/"),
    *(b"", b"http://127.0.0.1:1/", b"file:///etc/passwd", b"http://user:pw@127.0.0.1/", b"http:", b"mailto:a"),
]


@pytest.mark.parametrize("address", ADDRESSES, ids=lambda address: repr(address[:24]))
async def test_addresses_of_the_older_transport(address: bytes, tmp_path: Path) -> None:
    problem, _ = await talk("sse", {**answers(), "GET": b"event: endpoint\ndata: " + address + b"\n\n"}, tmp_path)
    assert problem.startswith("no answer within") or problem == "[box__add]"


HEADS = {
    "an address that is none": (b"location: http://[::1\r\n", b"307 Moved"),
    "an address with a NUL": (b"location: /a\0\r\n", b"307 Moved"),
    "no UTF-8": (b"location: \xff\xfe\r\n", b"302 Moved"),
    "a session that is no ASCII": (b"mcp-session-id: \xe9\xff\r\n", b"200 OK"),
    "a session that is long": (b"mcp-session-id: " + b"x" * 60_000 + b"\r\n", b"200 OK"),
    "an encoding": (b"content-encoding: gzip\r\n", b"200 OK"),
    "a length twice": (b"content-length: 7\r\n", b"200 OK"),
    "no status": (b"", b"abc"),
    "a status of four digits": (b"", b"2000 OK"),
    "to itself": (b"location: /\r\n", b"307 Moved"),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_odd_heads(transport: str, name: str, tmp_path: Path) -> None:
    head, status = HEADS[name]
    given = answers()
    raw = {"GET" if transport == "sse" else "initialize": response(given["initialize"], head, status)}
    problem, _ = await talk(transport, given, tmp_path, raw=raw)
    assert problem.startswith(("no answer within", "[box__add"))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "resource", "resource_link", "image", "audio"]) | JSON},
    optional={"text": JSON, "resource": JSON | st.fixed_dictionaries({}, optional={"text": JSON, "uri": JSON})}
    | {"uri": JSON, "data": JSON},
)
TOOLS = st.fixed_dictionaries({"name": JSON}, optional={"description": JSON, "inputSchema": JSON})
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "initialize": JSON | st.fixed_dictionaries({"protocolVersion": JSON, "capabilities": JSON}),
        "tools_list": JSON | st.fixed_dictionaries({"tools": JSON | st.lists(TOOLS, max_size=3), "nextCursor": JSON}),
        "tools_call": JSON
        | st.fixed_dictionaries(
            {}, optional={"content": JSON | st.lists(PARTS, max_size=3), "structuredContent": JSON, "isError": JSON}
        ),
    },
)
BYTES = st.dictionaries(st.sampled_from([*METHODS, "GET"]), st.binary(max_size=200), min_size=1, max_size=2)
fuzzed = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("transport", TRANSPORTS)
@fuzzed
@given(fields=FIELDS)
async def test_any_json_in_each_field(transport: str, fields: dict[str, Any], tmp_path: Path) -> None:
    encoded = {name: json.dumps(value) for name, value in fields.items()}
    assert (await talk(transport, answers(**encoded), tmp_path))[0]


@pytest.mark.parametrize("transport", TRANSPORTS)
@fuzzed
@given(bodies=BYTES, is_raw=st.booleans())
async def test_any_bytes(transport: str, bodies: dict[str, bytes], is_raw: bool, tmp_path: Path) -> None:
    given = answers()
    raw = bodies if is_raw else None
    assert (await talk(transport, given if is_raw and transport != "stdio" else given | bodies, tmp_path, raw=raw))[0]


async def test_before_the_policy_it_is_the_tasks_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harbor_gym.episode.mcp.servers._START_SEC", PATIENCE_SEC)
    async with serving(answers(tools_list={"tools": [TOOL, TOOL]})) as port:
        config = MCPServerConfig(name="box", transport="streamable-http", url=f"http://127.0.0.1:{port}/")
        servers = McpServers(cast("Any", OnThisMachine()), None, [config])
        with pytest.raises(TaskError, match="box of the task can't be used: it declares a second tool"):
            await servers.open()
        await servers.close()
