"""The tunnel out of a sandbox: the traffic that it carries, and a hostile end of it."""

import asyncio
import json
import os
import shlex
import struct
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from harbor_gym.errors import UsageError
from harbor_gym.gateway import Gateway, Session, SessionLimits
from harbor_gym.gateway import tunnel as tunnels
from harbor_gym.gateway.tunnel import TunnelError, multiplexer, tunnel
from harbor_gym.gateway.tunnel.multiplexer import Multiplexer, ProtocolError
from harbor_gym.sandboxes import environment_config
from harbor_gym.terminal.transports.attach import has_pipes
from harbor_gym.types import Sample
from tests.helpers.chats.character_codec import CharacterCodec
from tests.helpers.gateway.clients import chat_body, text_of, user
from tests.helpers.paths import ROOT
from tests.helpers.patience import PATIENCE_SEC, eventually
from tests.helpers.sandboxes.local import make_sandbox, output, running
from tests.helpers.tasks import BASE

LARGE = 1_000_000
SOURCE = Path(multiplexer.__file__).read_text(encoding="utf-8")


class HostSandbox:
    """A sandbox that is no sandbox: commands with pipes, on this machine. For the tunnel's protocol alone."""

    def __init__(self, replacement: str | None = None) -> None:
        self.session_id = "host"
        self.processes: list[asyncio.subprocess.Process] = []
        self._replacement = replacement

    def exec_argv(self, command: str, *, user: str | int | None = None) -> list[str]:
        raise NotImplementedError

    async def exec_pipes(
        self, command: str, *, user: str | int | None = None, directory: str = ""
    ) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        argv = ("bash", "-c", self._replacement or command)
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
        self.processes.append(process)
        return process


async def echo(prompt: Sequence[int]) -> Sample:
    """Answer with the prompt, or a large text where it is asked for; some later than others."""
    await asyncio.sleep(len(prompt) % 7 / 100)
    tokens = [120] * LARGE if "large" in text_of(prompt) else list(prompt)
    return Sample(tokens, [0.0] * len(tokens))


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with Gateway(echo, CharacterCodec(), model="policy") as gateway:
        yield gateway


@pytest.fixture
def session(gateway: Gateway) -> Session:
    return gateway.open_session(name="trial", limits=SessionLimits(max_concurrent_requests=64))


async def ask(client: aiohttp.ClientSession, base_url: str, text: str, *, stream: bool = False) -> str:
    async with client.post(f"{base_url}/v1/chat/completions", json=chat_body(user(text), stream=stream)) as response:
        assert response.status == 200, await response.text()
        if not stream:
            return (await response.json())["choices"][0]["message"]["content"]
        lines = [line.removeprefix(b"data: ") async for line in response.content if line.startswith(b"data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    return "".join(delta.get("content", "") for delta in deltas)


def as_environment(sandbox: HostSandbox) -> Any:
    return cast("Any", sandbox)


async def test_many_connections_at_once(gateway: Gateway, session: Session) -> None:
    sandbox = HostSandbox()
    before = asyncio.all_tasks()
    async with tunnel(as_environment(sandbox), gateway, session) as opened, aiohttp.ClientSession() as client:
        async with asyncio.TaskGroup() as group:
            texts = [f"number {number} " + "y" * number * 1000 for number in range(40)]
            answers = [
                group.create_task(ask(client, opened.base_url, text, stream=index % 2 == 0))
                for index, text in enumerate(texts)
            ]
            large = group.create_task(ask(client, opened.base_url, "a large answer"))
        assert all(text in answer.result() for text, answer in zip(texts, answers, strict=True))
        assert large.result() == "x" * LARGE
        assert opened.error is None
    assert sandbox.processes[0].returncode is not None
    assert len(session.calls) == 41
    await eventually(lambda: not asyncio.all_tasks() - before)


async def test_a_client_that_does_not_read_holds_up_nobody(gateway: Gateway, session: Session) -> None:
    async with tunnel(as_environment(HostSandbox()), gateway, session) as opened, aiohttp.ClientSession() as client:
        port = int(opened.base_url.split(":")[2].split("/")[0])
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        body = json.dumps(chat_body(user("large")))
        head = f"POST /s/{session.key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        await eventually(lambda: len(session.calls) == 1)
        for _ in range(3):
            assert "quick" in await ask(client, opened.base_url, "quick")
        writer.transport.abort()


async def test_a_client_that_leaves_cancels_its_sampling(gateway: Gateway) -> None:
    waiting: list[int] = []

    async def stuck(_: Sequence[int]) -> Sample:
        waiting.append(1)
        try:
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            waiting.pop()

    session = gateway.open_session(sampler=stuck)
    async with tunnel(as_environment(HostSandbox()), gateway, session) as opened, aiohttp.ClientSession() as client:
        asking = asyncio.create_task(ask(client, opened.base_url, "hello"))
        await eventually(lambda: bool(waiting))
        asking.cancel()
        await eventually(lambda: not waiting)


async def test_only_its_own_session_is_reached(gateway: Gateway, session: Session) -> None:
    other, group = gateway.open_session(), gateway.open_group()
    async with tunnel(as_environment(HostSandbox()), gateway, session) as opened, aiohttp.ClientSession() as client:
        for key in (other.key, group.key, "wrong"):
            url = opened.base_url.replace(session.key, key)
            async with client.post(f"{url}/v1/messages", json=chat_body(user("a"))) as response:
                assert response.status == 401
        gateway.close_session(session)
        async with client.post(f"{opened.base_url}/v1/messages", json=chat_body(user("a"))) as response:
            assert response.status == 401
    with pytest.raises(UsageError, match="not open"):
        async with tunnel(as_environment(HostSandbox()), gateway, session):
            pass


def frame(kind: int, number: int, payload: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("!BII", kind, number, len(payload) if length is None else length) + payload


READY = frame(multiplexer.READY, 0, struct.pack("!I", 8080))
OPEN = frame(multiplexer.OPEN, 1)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 200 OK\r\n\r\n and so on",
        READY,
        frame(multiplexer.DATA, 1, b"x"),
        frame(multiplexer.OPEN, 2),
        OPEN + OPEN,
        OPEN + frame(multiplexer.DATA, 1, length=2**32 - 1),
        OPEN + frame(multiplexer.END, 1) + frame(multiplexer.DATA, 1, b"x"),
        OPEN + frame(multiplexer.GRANT, 1, struct.pack("!I", 2**32 - 1)),
        OPEN + frame(multiplexer.GRANT, 1, b"x"),
        b"".join(frame(multiplexer.OPEN, number) for number in range(1, 80)),
        b"\xff" * 100,
    ],
)
async def test_garbage_closes_the_tunnel(gateway: Gateway, session: Session, garbage: bytes, tmp_path: Path) -> None:
    (tmp_path / "output").write_bytes(READY + garbage)
    hostile = HostSandbox(f"cat {shlex.quote(str(tmp_path / 'output'))}; exec sleep 60")
    async with tunnel(as_environment(hostile), gateway, session) as opened:
        await eventually(lambda: opened.error is not None)
        assert isinstance(opened.error, ProtocolError)
    async with aiohttp.ClientSession() as client:
        assert "still" in await ask(client, session.base_url, "still there")


@pytest.mark.parametrize(
    ("command", "reason"), [("exit 127", "ended"), ("echo no python", "a frame of"), ("sleep 60", "no answer within")]
)
async def test_a_sandbox_without_python(
    gateway: Gateway, session: Session, command: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command == "sleep 60":
        monkeypatch.setattr(tunnels, "_START_SEC", 0.5)
    sandbox = HostSandbox(command)
    with pytest.raises(TunnelError, match=reason):
        async with tunnel(as_environment(sandbox), gateway, session):
            pass
    assert sandbox.processes[0].returncode is not None


async def test_a_program_that_ends_is_noticed(gateway: Gateway, session: Session) -> None:
    sandbox = HostSandbox()
    async with tunnel(as_environment(sandbox), gateway, session) as opened:
        sandbox.processes[0].kill()
        await eventually(lambda: opened.error is not None)
        assert isinstance(opened.error, TunnelError)


async def test_the_inner_end_ends_with_its_input() -> None:
    """A killed host closes the pipe: the program in the sandbox must not stay."""
    sandbox = HostSandbox()
    command = f"exec python3 -I -c {shlex.quote(SOURCE + 'asyncio.run(serve_sandbox(0))')}"
    process = await sandbox.exec_pipes(command)
    assert process.stdout is not None
    assert process.stdin is not None
    await process.stdout.readexactly(13)
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), PATIENCE_SEC) == 0


async def test_a_sender_beyond_its_window_breaks_the_protocol() -> None:
    async def accept(_: int) -> None:
        await asyncio.Event().wait()

    reader = asyncio.StreamReader()
    reader.feed_data(OPEN + frame(multiplexer.DATA, 1, b"x" * 65536) * 5)
    receiver = Multiplexer(reader, cast("asyncio.StreamWriter", None), accept=accept)
    with pytest.raises(ProtocolError, match="granted"):
        await asyncio.wait_for(receiver.run(), PATIENCE_SEC)


async def test_a_slow_receiver_stops_the_sender() -> None:
    """The bytes in flight of one connection are bounded by the window, and the rest stays with its sender."""
    server_side: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    server = await asyncio.start_server(lambda r, w: server_side.append((r, w)), "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()[:2]
        near_reader, near_writer = await asyncio.open_connection(*address)
        await eventually(lambda: len(server_side) == 1)
        far_reader, far_writer = server_side[0]
        sender = Multiplexer(near_reader, near_writer)
        source = asyncio.StreamReader()
        source.feed_data(b"z" * 3 * multiplexer.WINDOW)
        source.feed_eof()
        sending = asyncio.create_task(sender.open(source, near_writer))
        running = asyncio.create_task(sender.run())
        received = 0
        assert (await far_reader.readexactly(9))[0] == multiplexer.OPEN
        while received < multiplexer.WINDOW:
            kind, _, length = struct.unpack("!BII", await far_reader.readexactly(9))
            assert kind == multiplexer.DATA
            received += len(await far_reader.readexactly(length))
        assert received == multiplexer.WINDOW
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(far_reader.read(1), 0.5)
        for task in (sending, running):
            task.cancel()
        await asyncio.gather(sending, running, return_exceptions=True)
        for writer in (near_writer, far_writer):
            writer.close()


PROGRAM = """
import json, sys, urllib.request
body = {"model": "policy", "messages": [{"role": "user", "content": "from inside"}], "stream": True}
headers = {"Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(), headers)
print(urllib.request.urlopen(request).read().decode())
"""


@pytest.mark.local
async def test_a_local_sandbox_without_a_network(gateway: Gateway, session: Session, tmp_path: Path) -> None:
    async with running(make_sandbox(tmp_path)) as sandbox:
        await check_tunnel(sandbox, gateway, session)


@pytest.fixture
def docker_base() -> None:
    subprocess.run([ROOT / ".ci" / "docker_base.sh", BASE], check=True)


@pytest.mark.docker
@pytest.mark.usefixtures("docker_base", "nothing_left")
async def test_a_container_without_a_network(gateway: Gateway, session: Session, tmp_path: Path) -> None:
    container = make_container(tmp_path)
    try:
        await container.start(force_build=False)
        assert not has_pipes(container)  # it is entered by `docker exec`
        await check_tunnel(container, gateway, session)
    finally:
        await container.stop(delete=True)


def make_container(directory: Path) -> BaseEnvironment:
    context, paths = directory / "environment", TrialPaths(directory / "trial")
    context.mkdir()
    tools = "command -v python3 && command -v pgrep || { apt-get update && apt-get install -y python3 procps; }"
    (context / "Dockerfile").write_text(f"FROM {BASE}\nRUN {tools}\nRUN useradd --create-home dev\n")
    paths.mkdir()
    return EnvironmentFactory.create_environment_from_config(
        environment_config("docker"),
        environment_dir=context,
        environment_name="tunnel",
        session_id=f"hgtunnel-{os.getpid()}",
        trial_paths=paths,
        task_env_config=EnvironmentConfig(),
        network_policy=NetworkPolicy(network_mode=NetworkMode.NO_NETWORK),
    )


async def check_tunnel(sandbox: BaseEnvironment, gateway: Gateway, session: Session) -> None:
    """Reach one session from a sandbox without a network, as root and as another user, and nothing else."""
    interfaces = await output(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert interfaces.split() == ["lo"]
    async with tunnel(sandbox, gateway, session) as opened:
        for name in ("root", "dev"):
            answer = await output(sandbox, f"python3 -c {shlex.quote(PROGRAM)} {opened.base_url}", user=name)
            assert "from inside" in answer
            assert answer.endswith("data: [DONE]")
        outside = f"exec 3<>/dev/tcp/127.0.0.1/{gateway.address[1]}"
        assert (await sandbox.exec(outside)).return_code != 0
        killed = await sandbox.exec("kill -9 $(pgrep -f '[s]erve_sandbox') 2>&1", user="dev")
        assert "not permitted" in (killed.stdout or "")
    await output(sandbox, "for i in $(seq 1200); do pgrep -f '[s]erve_sandbox' || exit 0; sleep 0.05; done; exit 1")
    refused = await sandbox.exec(f"python3 -c {shlex.quote(PROGRAM)} {opened.base_url}")
    assert "Connection refused" in f"{refused.stdout}{refused.stderr}"
    assert len(session.calls) == 2
