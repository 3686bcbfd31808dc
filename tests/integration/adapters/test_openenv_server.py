"""A server process of its own, over real WebSockets: episodes at once, limits, the door, and every way to end."""

import asyncio
import contextlib
import re
import signal
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from yarl import URL

from tests.helpers.certificates import write_certificate
from tests.helpers.patience import PATIENCE_SEC, eventually

if find_spec("openenv") is None:
    pytest.skip('pip install "harbor-gym[openenv]"', allow_module_level=True)

from websockets.exceptions import ConnectionClosed

from harbor_gym._runtime.procfs import descendants
from harbor_gym.adapters import openenv
from harbor_gym.errors import UsageError
from harbor_gym.testing import write_tiny_task
from harbor_gym.types import Command, EndReason
from harbor_gym.wrappers import TerminalEnv, TerminalEnvWrapper
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, message
from tests.helpers.served import Served, served
from tests.helpers.tasks import DONE, write_task
from tests.integration.episode.test_kill import contents, mounts
from tests.unit.house.test_cli import run

AT_ONCE = 8


def typed(keystrokes: str, duration_sec: float = 10.0) -> "openenv.TerminalAction":
    command = openenv.TerminalCommand(keystrokes=keystrokes, duration_sec=duration_sec)
    return openenv.TerminalAction(commands=[command])


def client_of(server: Served, **settings: Any) -> Any:  # some tests break its socket
    return openenv.HarborTerminalClient(server.url, token=settings.pop("token", server.token), **settings)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """A server of two tasks in fake sandboxes with three sessions."""
    suite = tmp_path_factory.mktemp("suite")
    for name in ("alpha", "beta"):
        write_tiny_task(suite / name)
    limits = ["--max-sessions", 3, "--max-request-bytes", 2000, "--call-timeout-sec", 60]
    limits += ["--request-timeout-sec", 2]
    how = ["--no-confirm-task-complete", "--sandbox-option", 'solved_when={"/srv/answer": "done"}']
    with served("--task", suite, "--env", FAKE, "--test-task", "beta", *map(str, [*how, *limits])) as found:
        yield found


async def play(server: Served, action: "openenv.TerminalAction") -> "list[openenv.TerminalObservation]":
    async with client_of(server) as client:
        first = await client.reset(index=0)
        middle = await client.step(action)
        last = await client.step(openenv.TerminalAction(message=COMPLETE))
    return [result.observation for result in (first, middle, last)]


async def test_a_served_terminal_is_an_environment_as_any_other(server: Served) -> None:
    async with openenv.RemoteTerminalEnv(client_of(server)) as remote:
        env: TerminalEnv = TerminalEnvWrapper(remote)
        await env.reset(seed=0)
        with pytest.raises(UsageError, match="finish does not take the end max_turns"):
            await env.finish(EndReason.MAX_TURNS)
        with pytest.raises(UsageError, match="truncate does not take the end completed"):
            await env.truncate(EndReason.COMPLETED)
        assert not (await env.step([("echo done > ", 1.0), Command("/srv/answer\n", 10.0)])).done
        ended = await env.finish(EndReason.NO_TOOL_CALL)
    assert (ended.reward, ended.done, ended.info.get("end_reason")) == (1.0, True, EndReason.NO_TOOL_CALL)


# -- the door --------------------------------------------------------------------------------------------------------


def test_the_token_is_printed_once_and_nothing_else_is(server: Served) -> None:
    assert [line.split("=")[0].split(" ")[0] for line in server.printed] == ["HARBOR_GYM_OPENENV_TOKEN", "serving"]
    assert len(server.token) >= 32
    assert server.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("token", ["", "another-token-of-many-characters"])
async def test_without_the_token_nothing_is_served(server: Served, token: str) -> None:
    headers = {"Authorization": "Bearer another-token-of-many-characters"} if token else {}
    with pytest.raises(ConnectionError, match="HTTP 401"):
        async with openenv.HarborTerminalClient(server.url, headers=headers) as client:
            await client.reset(index=0)
    async with aiohttp.ClientSession(headers=headers) as http:
        for path in ("/docs", "/openapi.json", "/schema", "/metadata", "/harbor_terminal/splits"):
            async with http.get(server.url + path) as answer:
                assert answer.status == 401, path
        async with http.get(server.url + "/health") as answer:
            assert await answer.json() == {"status": "healthy"}


async def test_sessions_over_tls_of_which_an_idle_one_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server, whose start takes most of the time, shows both."""
    certificate, key = write_certificate(tmp_path)
    task = write_tiny_task(tmp_path / "task")
    flags = ("--env", FAKE, "--no-confirm-task-complete", "--ssl-certfile", certificate, "--ssl-keyfile", key)
    with served("--task", task, *flags, "--idle-timeout-sec", "5") as found:
        assert found.url.startswith("https://127.0.0.1:")
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            await play(found, typed("true\n"))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert (await play(found, typed("true\n")))[-1].done
        async with client_of(found) as client:
            await client.reset(index=0)
            socket = client._ws
            await asyncio.wait_for(socket.wait_closed(), PATIENCE_SEC)
            assert (socket.close_code, socket.close_reason) == (4008, "no message for 5 s")


async def open_connection(server: Served, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(data)
    await writer.drain()
    return reader, writer


HEAD = b"POST /harbor_terminal/tasks HTTP/1.1\r\nHost: x\r\n"
UNFINISHED = {
    "nothing": b"",
    "a part of the headers": HEAD,
    "no body, without the token": HEAD + b"Content-Length: 100\r\n\r\n{",
    "a second request": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + HEAD,
    "a part of an upgrade": b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
}


@pytest.mark.parametrize("name", UNFINISHED)
async def test_unfinished_requests_take_no_place_and_are_closed(server: Served, name: str) -> None:
    """The server has three sessions: 300 connections are far above its requests at once."""
    opened = [await open_connection(server, UNFINISHED[name]) for _ in range(300)]
    try:
        assert (await play(server, typed(DONE)))[-1].reward == 1.0
        async with asyncio.timeout(PATIENCE_SEC):
            for reader, _ in opened:
                with contextlib.suppress(ConnectionError):
                    await reader.read()
    finally:
        for _, writer in opened:
            writer.transport.abort()


@pytest.mark.parametrize("authorized", [True, False])
async def test_a_request_that_trickles_is_closed(server: Served, authorized: bool) -> None:
    token = f"Authorization: Bearer {server.token}\r\n".encode() if authorized else b""
    reader, writer = await open_connection(server, HEAD + token + b"Content-Length: 100000\r\n\r\n")

    async def trickle() -> None:
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.1)

    trickling = asyncio.create_task(trickle())
    try:
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), PATIENCE_SEC)
    finally:
        trickling.cancel()
        writer.transport.abort()


@pytest.mark.parametrize("path", ["/mcp", "/mcp%0A", "/%6dcp", "/mcp/", "//mcp", "/reset%0a", "/harness"])
async def test_no_spelling_of_a_path_leads_to_a_sandbox_beside_the_sessions(server: Served, path: str) -> None:
    url = URL(f"{server.url}{path}", encoded=True)
    ask = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.token}"}) as http:
        async with http.post(url, json=ask) as answer:
            assert answer.status == 404
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(url)
        assert refused.value.status == 404


async def test_what_is_oversized_is_refused_and_the_server_goes_on(server: Served) -> None:
    async with client_of(server) as client:
        await client.reset(index=0)
        with pytest.raises(ConnectionClosed) as refused:
            await client.step(openenv.TerminalAction(message="x" * 3000))
        assert refused.value.rcvd is not None
        assert refused.value.rcvd.code == 1009
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.token}"}) as http,
        http.post(server.url + "/harbor_terminal/tasks", json={"split": "x" * 3000}) as answer,
    ):
        assert answer.status == 413
    assert (await play(server, typed(DONE)))[-1].reward == 1.0


async def test_wrong_messages_are_answered_and_the_session_goes_on(server: Served) -> None:
    async with client_of(server) as client:
        for wrong, code in (
            ({"type": "reset", "data": {"indx": 1}}, "got indx .*EXECUTION_ERROR"),
            ({"type": "reset", "data": {"split": "eval"}}, "there are train, test"),
            ({"type": "step", "data": {"message": "x", "end": "completed"}}, "VALIDATION_ERROR"),
            ({"type": "step", "data": {"message": "x"}}, "before reset"),
            ({"type": "nonsense"}, "UNKNOWN_TYPE"),
        ):
            with pytest.raises(RuntimeError, match=code):
                await client._send_and_receive(wrong)
        assert (await client.reset(index=0)).observation.instruction


async def test_the_task_api_lists_both_splits(server: Served) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.token}"}) as http:

        async def ask(path: str, **body: Any) -> Any:
            async with http.post(f"{server.url}/harbor_terminal/{path}", json=body) as answer:
                return await answer.json()

        assert await ask("num_tasks", split="train") == {"num_tasks": 1}
        assert (await ask("task", split="test", index=0))["task"]["id"] == "beta"
        assert "there are train, test" in (await ask("tasks", split="eval"))["detail"]
        for path in ("/reset", "/step", "/mcp", "/state"):
            async with http.post(server.url + path, json={}) as answer:
                assert answer.status == 404, path


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/openenv.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_pages_first_blocks_run(
    server: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    client, own_server = python_blocks()[:2]
    monkeypatch.setenv("HARBOR_GYM_OPENENV_TOKEN", server.token)
    exec(compile(client.replace("http://127.0.0.1:8000", server.url), "page", "exec"), {"__name__": "__main__"})
    assert "True 0.0 completed" in capsys.readouterr().out.replace("EndReason.COMPLETED", "completed")
    exec(compile(own_server.replace('sandbox="local"', f'sandbox="{FAKE}"'), "page", "exec"), {})
    assert server.token in capsys.readouterr().out, "the variable holds for every server of the process"


# -- sessions --------------------------------------------------------------------------------------------------------


async def test_a_full_server_refuses_clearly_and_a_closed_session_makes_room(server: Served) -> None:
    clients = [client_of(server) for _ in range(4)]
    try:
        for client in clients[:3]:
            await client.connect()
            await client.state()
        with pytest.raises(RuntimeError, match=r"3/3 sessions active.*CAPACITY_REACHED"):
            await clients[3].reset(index=0)
        await clients[0].close()
        async with asyncio.timeout(PATIENCE_SEC):
            while True:
                with contextlib.suppress(RuntimeError):  # the server notices a moment later
                    assert not (await clients[3].reset(index=0)).done
                    break
                await asyncio.sleep(0.05)
    finally:
        for client in clients:
            await client.close()


# -- real sandboxes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local_scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files of the local servers alone."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def local_servers(tmp_path_factory: pytest.TempPathFactory, local_scratch: Path) -> Generator[Callable[[], Served]]:
    """Return a server of one task in local sandboxes: the last one, or another where a test has ended it."""
    task = write_task(tmp_path_factory.mktemp("local") / "task", toml='[environment]\nnetwork_mode = "no-network"\n')
    sandbox = ("--env", "local", "--no-confirm-task-complete", "--max-sessions", str(AT_ONCE))
    with contextlib.ExitStack() as stack:
        last: list[Served] = []

        def running() -> Served:
            if not last or last[-1].process.poll() is not None:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("TMPDIR", str(local_scratch))
                    last.append(stack.enter_context(served("--task", task, *sandbox)))
            return last[-1]

        yield running


@pytest.fixture
def local_server(local_servers: Callable[[], Served]) -> Served:
    return local_servers()


@pytest.mark.local
async def test_eight_episodes_at_once(local_server: Served) -> None:
    before = mounts()
    actions = [typed(DONE) if number % 2 else typed("true\n") for number in range(AT_ONCE)]
    async with asyncio.TaskGroup() as group:
        playing = [group.create_task(play(local_server, action)) for action in actions]
    ends = [task.result()[-1] for task in playing]
    assert [end.reward for end in ends] == [float(number % 2) for number in range(AT_ONCE)]
    assert all(end.done and end.end_reason == "completed" for end in ends)
    assert mounts() == before


@pytest.mark.local
@pytest.mark.parametrize("moment", ["in a step", "in a reset", "between"])
async def test_a_client_that_vanishes_leaves_nothing(local_server: Served, moment: str) -> None:
    mounted = mounts()
    await play(local_server, typed("true\n"))  # the image is built, and the server has its helpers
    await eventually(lambda: mounts() == mounted)

    def running() -> set[int]:
        return set(descendants(local_server.process.pid))

    before = running()
    client = client_of(local_server)
    await client.connect()
    if moment != "in a reset":
        await client.reset(index=0)
        assert running() - before
    if moment != "between":
        data = typed("sleep 50\n", 60.0)
        sent = {"type": "step", "data": data.model_dump()} if moment == "in a step" else {"type": "reset", "data": {}}
        await client._send(sent)
        await asyncio.sleep(0.1)
    socket = client._ws
    socket.transport.abort()
    await eventually(lambda: running() <= before and mounts() == mounted)
    assert (await play(local_server, typed(DONE)))[-1].reward == 1.0


@pytest.mark.local
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_every_end_of_the_server_stops_its_sandboxes(
    local_server: Served, local_scratch: Path, number: signal.Signals, status: int
) -> None:
    before = mounts()
    clients = [client_of(local_server) for _ in range(2)]
    for client in clients:
        await client.connect()
        await client.reset(index=0)
    await clients[0]._send({"type": "step", "data": message_data("sleep 50\n")})
    await asyncio.sleep(0.2)
    processes = set(descendants(local_server.process.pid))
    assert processes
    assert await asyncio.to_thread(local_server.end, number) == status
    await eventually(lambda: not any(map(_runs, processes)))
    await eventually(lambda: mounts() == before)
    for client in clients:
        socket = client._ws
        await asyncio.wait_for(socket.wait_closed(), PATIENCE_SEC)
    if number is signal.SIGKILL:
        assert run("reap", TMPDIR=str(local_scratch)).returncode == 0
    assert [name for name in contents(local_scratch) if name.startswith("harbor-gym")] == []


def message_data(keystrokes: str) -> dict[str, Any]:
    return {"message": message(keystrokes, duration=60.0)}


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
