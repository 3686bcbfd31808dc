"""The gateway as a server: keys, limits, failures, and clients that misbehave."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from harbor_gym.errors import SamplerError, UsageError
from harbor_gym.gateway import CallKind, Gateway, GatewayConfig, SessionLimits
from harbor_gym.types import EndReason, Sample, Sampler
from tests.helpers.chats.character_codec import CharacterCodec
from tests.helpers.gateway.clients import Script, ThinkingCodec, chat_body, raw_exchange, tool_call, user
from tests.helpers.patience import eventually

PATHS = ["chat/completions", "responses", "messages"]
ANY_BODY: dict[str, Any] = {"model": "policy", "messages": [user("task")], "input": "task", "max_tokens": 9}
"""A body that every wire accepts."""

IMPATIENT = GatewayConfig(max_body_bytes=4096, body_timeout_sec=0.3, idle_timeout_sec=0.3)
"""For clients that are to be late, and no others."""


class Stuck:
    """A sampler that never answers, and counts its waiting callers."""

    def __init__(self) -> None:
        self.waiting = 0

    async def __call__(self, _: Sequence[int]) -> Sample:
        self.waiting += 1
        try:
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            self.waiting -= 1


async def broken(_: Sequence[int]) -> Sample:
    raise OSError("engine at 10.1.2.3 refused")


@asynccontextmanager
async def serving(sampler: Sampler, config: GatewayConfig | None = None) -> AsyncGenerator[Gateway]:
    before = asyncio.all_tasks()
    async with Gateway(sampler, ThinkingCodec(), model="policy", config=config) as gateway:
        yield gateway
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - before
    assert not left, "the gateway left tasks behind"


@asynccontextmanager
async def posted(url: str, body: Any, **headers: str) -> AsyncGenerator[aiohttp.ClientResponse]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession() as client, client.post(url, data=data, headers=headers) as response:
        yield response


async def status_of(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    async with posted(url, body, **headers) as response:
        return response.status, await response.json()


def check_error_shape(path: str, answer: dict[str, Any]) -> None:
    if path == "messages":
        assert answer["type"] == "error"
        assert set(answer["error"]) == {"type", "message"}
    else:
        assert set(answer["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("way", ["path", "bearer", "x-api-key"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_key_opens_its_session_only(path: str, way: str) -> None:
    async with serving(Script("one", "two")) as gateway:
        own, other = gateway.open_session(), gateway.open_session()
        url, headers = f"{gateway.url}/v1/{path}", {}
        match way:
            case "path":
                url, headers = f"{own.base_url}/v1/{path}", {"Authorization": "Bearer whatever the agent needs"}
            case "bearer":
                headers = {"Authorization": f"Bearer {own.key}"}
            case _:
                headers = {"x-api-key": own.key}
        status, _ = await status_of(url, ANY_BODY, **headers)
        assert (status, len(own.calls), len(other.calls)) == (200, 1, 0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("key", ["", "wrong", "\N{SNOWMAN}"])
async def test_no_key_no_answer(path: str, key: str) -> None:
    sampler = Stuck()
    async with serving(sampler) as gateway:
        gateway.open_session()
        url = f"{gateway.url}/s/{key}/v1/{path}" if key else f"{gateway.url}/v1/{path}"
        status, answer = await status_of(url, ANY_BODY)
        assert status == 401
        check_error_shape(path, answer)


async def test_a_closed_sessions_key_is_refused_and_its_sampling_ends() -> None:
    sampler = Stuck()
    async with serving(sampler) as gateway:
        session = gateway.open_session()
        url = f"{session.base_url}/v1/chat/completions"
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(status_of(url, ANY_BODY))
            await eventually(lambda: sampler.waiting == 1)
            gateway.close_session(session)
            status, _ = await asking
        assert (status, sampler.waiting) == (401, 0)
        assert (await status_of(url, ANY_BODY))[0] == 401
        assert session.end_reason is None
        assert session.error is None


async def test_a_group_distinguishes_sessions_by_header() -> None:
    async with serving(Script(*"abc"), GatewayConfig(max_group_sessions=2)) as gateway:
        group = gateway.open_group(limits=SessionLimits(max_turns=1))
        url, key = f"{gateway.url}/v1/chat/completions", {"Authorization": f"Bearer {group.key}"}
        assert (await status_of(url, ANY_BODY, **key))[0] == 401
        for name in "xy":
            assert (await status_of(url, ANY_BODY, **key, **{"X-Session-ID": name}))[0] == 200
        assert (await status_of(url, ANY_BODY, **key, **{"X-Session-ID": "z"}))[0] == 429
        assert {name: len(session.calls) for name, session in group.sessions.items()} == {"x": 1, "y": 1}
        gateway.close_session(group)
        assert (await status_of(url, ANY_BODY, **key, **{"X-Session-ID": "x"}))[0] == 401


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe\x00", 400),
        (b"[" * 4000, 400),
        (b'{"messages": %s, "input": %s}' % (b"[" * 1500, b"{" * 1500), 400),
        (b"1" * 4000, 400),
        (b'{"messages": [1], "input": [1]}', 400),
        (b'{"messages": {}, "input": {}}', 400),
        (b'{"model": 7, "messages": [], "input": []}', 400),
        (b'{"messages": [{"role": "root", "content": ""}], "input": [{"role": "root", "content": ""}]}', 400),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}],'
            b' "input": [{"role": "user", "content": [{"type": "input_image"}]}]}',
            400,
        ),
        (b'{"messages": [{"role": "user", "content": 5}], "input": 5}', 400),
        (b" " * 5000, 413),
    ],
)
async def test_bodies_that_cannot_be_read(path: str, body: bytes, expected: int) -> None:
    async with serving(Script("fine"), GatewayConfig(max_body_bytes=4096)) as gateway:
        session, other = gateway.open_session(), gateway.open_session()
        status, answer = await status_of(f"{session.base_url}/v1/{path}", body)
        assert status == expected
        check_error_shape(path, answer)
        assert not session.calls
        assert sum(number for name, number in session.metrics.items() if "/refused/" in name) == 1
        assert (await status_of(f"{other.base_url}/v1/{path}", ANY_BODY))[0] == 200


async def test_a_body_that_trickles_is_refused() -> None:
    async with serving(Script(), IMPATIENT) as gateway:
        session = gateway.open_session()
        head = f"POST /s/{session.key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{"
        reply = await raw_exchange(gateway, head.encode())
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert (session.is_cut, session.has_failed) == (True, False)


@pytest.mark.parametrize(
    "data",
    [b"", b"POST / HTTP/1.1\r\nHo", b"\x00\x01\x02", b"GET /" + b"a" * 100_000, b"POST /v1/messages HTTP/9.9\r\n\r\n"],
)
async def test_what_is_no_http_is_closed(data: bytes) -> None:
    async with serving(Script(), IMPATIENT) as gateway:
        reply = await raw_exchange(gateway, data)
        assert not reply or reply.startswith(b"HTTP/1.")
        assert b" 200 " not in reply.split(b"\r\n")[0]


async def test_a_client_that_leaves_cancels_its_own_sampling_only() -> None:
    sampler = Stuck()
    async with serving(sampler) as gateway:
        first, second = gateway.open_session(), gateway.open_session()
        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(status_of(f"{first.base_url}/v1/messages", ANY_BODY))
            staying = group.create_task(status_of(f"{second.base_url}/v1/messages", ANY_BODY))
            await eventually(lambda: sampler.waiting == 2)
            leaving.cancel()
            await eventually(lambda: sampler.waiting == 1)
            await asyncio.sleep(0.05)
            assert sampler.waiting == 1
            assert not staying.done()
            assert not first.sampler_failures
            gateway.close_session(second)
            assert (await staying)[0] == 403


async def test_a_client_that_never_reads_is_dropped() -> None:
    """Its answer was never used: it is not trained."""
    async with serving(Script("x" * 8_000_000, "fine"), GatewayConfig(write_timeout_sec=0.5)) as gateway:
        session, other = gateway.open_session(), gateway.open_session()
        body = json.dumps(ANY_BODY)
        head = f"POST /s/{session.key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, gateway.address)
            await asyncio.get_running_loop().sock_sendall(client, f"{head}{body}".encode())
            await eventually(lambda: len(session.calls) == 1)
            assert (await status_of(f"{other.base_url}/v1/chat/completions", ANY_BODY))[0] == 200
            await eventually(lambda: session.kinds[0] is CallKind.ABANDONED)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_sampler_that_fails_is_an_infrastructure_error(path: str, stream: bool) -> None:
    async with serving(broken) as gateway:
        session = gateway.open_session(name="trial-7")
        status, answer = await status_of(f"{session.base_url}/v1/{path}", {**ANY_BODY, "stream": stream})
        assert status == 503
        check_error_shape(path, answer)
        assert "10.1.2.3" not in json.dumps(answer)
        assert isinstance(session.error, SamplerError)
        assert session.error.is_infrastructure
        assert "10.1.2.3" in str(session.error)
        assert not session.calls


async def test_a_sampler_that_recovers_leaves_no_error() -> None:
    script = Script("fine")

    async def flaky(prompt: Sequence[int]) -> Sample:
        if not session.sampler_failures:
            raise OSError
        return await script(prompt)

    async with serving(flaky) as gateway:
        session = gateway.open_session()
        url = f"{session.base_url}/v1/chat/completions"
        assert [(await status_of(url, ANY_BODY))[0] for _ in range(2)] == [503, 200]
        assert session.error is None
        assert len(session.sampler_failures) == 1


async def test_logprobs_of_the_wrong_length_are_a_failure() -> None:
    async def sample(_: Sequence[int]) -> Sample:
        return Sample([65, 66], [-1.0])

    async with serving(sample) as gateway:
        session = gateway.open_session()
        assert (await status_of(f"{session.base_url}/v1/messages", ANY_BODY))[0] == 503
        assert session.error is not None


@pytest.mark.parametrize(("path", "ended"), [("chat/completions", 401), ("responses", 400), ("messages", 403)])
async def test_budgets_of_turns_and_tokens(path: str, ended: int) -> None:
    for limits, reason, answered in (
        (SessionLimits(max_turns=2), EndReason.MAX_TURNS, 2),
        (SessionLimits(max_sampled_tokens=4), EndReason.MAX_TOKENS, 1),
    ):
        ends: list[EndReason] = []
        async with serving(Script("one", "two", "three")) as gateway:
            session = gateway.open_session(limits=limits, on_limit=ends.append)
            statuses = [(await status_of(f"{session.base_url}/v1/{path}", ANY_BODY))[0] for _ in range(4)]
            assert statuses == [200] * answered + [ended] * (4 - answered)
            assert session.end_reason is reason
            assert ends == [reason]


async def test_the_time_limit_ends_a_sampling_and_an_idle_agent() -> None:
    ends: list[EndReason] = []
    sampler = Stuck()
    async with serving(sampler) as gateway:
        session = gateway.open_session(limits=SessionLimits(time_limit_sec=0.1), on_limit=ends.append)
        await asyncio.sleep(0.15)
        assert not ends, "the clock starts with the first request"
        status, _ = await status_of(f"{session.base_url}/v1/messages", ANY_BODY)
        assert (status, session.end_reason, ends) == (403, EndReason.TIME_LIMIT, [EndReason.TIME_LIMIT])
        assert sampler.waiting == 0
        assert session.error is None


async def test_a_prompt_that_does_not_fit() -> None:
    limits = SessionLimits(max_context_tokens=20, max_answer_tokens=10)
    async with serving(Script("fine")) as gateway:
        session = gateway.open_session(limits=limits)
        url = f"{session.base_url}/v1/chat/completions"
        side = {"model": "another", "messages": [user("a long text that does not fit")]}
        status, answer = await status_of(url, side)
        assert (status, answer["error"]["code"], session.end_reason) == (400, "context_length_exceeded", None)
        assert (await status_of(url, ANY_BODY))[0] == 200
        await status_of(url, {**side, "model": "policy"})
        assert session.end_reason is EndReason.CONTEXT_OVERFLOW


async def test_an_agent_may_compact_after_an_overflow() -> None:
    limits = SessionLimits(max_context_tokens=20, overflow_ends_episode=False)
    async with serving(Script("fine")) as gateway:
        session = gateway.open_session(limits=limits)
        url = f"{session.base_url}/v1/messages"
        status, answer = await status_of(url, chat_body(user("a long text that does not fit")))
        assert status == 400
        assert answer["error"]["message"].startswith("prompt is too long")
        assert (await status_of(url, ANY_BODY))[0] == 200


async def test_too_many_requests_at_once() -> None:
    sampler = Stuck()
    async with serving(sampler) as gateway:
        session = gateway.open_session(limits=SessionLimits(max_concurrent_requests=2))
        url = f"{session.base_url}/v1/messages"
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(status_of(url, ANY_BODY)) for _ in range(2)]
            await eventually(lambda: sampler.waiting == 2)
            assert (await status_of(url, ANY_BODY))[0] == 429
            gateway.close_session(session)
            assert [(await task)[0] for task in asking] == [403, 403]


async def test_a_refused_request_is_lost_until_a_later_one_is_answered() -> None:
    answering = asyncio.Event()

    async def slow(prompt: Sequence[int]) -> Sample:
        await answering.wait()
        return await Script("one")(prompt)

    async with serving(slow) as gateway:
        session = gateway.open_session(limits=SessionLimits(max_concurrent_requests=1))
        url = f"{session.base_url}/v1/messages"
        async with asyncio.TaskGroup() as group:
            first = group.create_task(status_of(url, ANY_BODY))
            await eventually(lambda: session.active_requests == 1)
            assert (await status_of(url, ANY_BODY))[0] == 429
            answering.set()
            assert (await first)[0] == 200
        assert session.is_cut
        assert (await status_of(url, ANY_BODY))[0] == 200
        assert not session.is_cut


async def test_bodies_under_way_are_bounded() -> None:
    """A session holds a place for each body from its first byte, so that many large ones can't fill the memory."""
    async with serving(Script("fine")) as gateway:
        session = gateway.open_session(limits=SessionLimits(max_concurrent_requests=1))
        head = f"POST /s/{session.key}/v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
        _, writer = await asyncio.open_connection(*gateway.address)
        writer.write(head.encode())
        url = f"{session.base_url}/v1/messages"
        await eventually(lambda: session.active_requests == 1)
        assert (await status_of(url, ANY_BODY))[0] == 429
        writer.transport.abort()
        await eventually(lambda: session.active_requests == 0)
        assert (await status_of(url, ANY_BODY))[0] == 200


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_answer_has_its_length(path: str) -> None:
    """So that a client can recognise a cut answer, and both ends spend one write on it."""
    async with (
        serving(Script("größer")) as gateway,
        posted(f"{gateway.open_session().base_url}/v1/{path}", ANY_BODY) as response,
    ):
        assert int(response.headers["Content-Length"]) == len(await response.read())
        assert "Transfer-Encoding" not in response.headers


async def test_a_public_address() -> None:
    config = GatewayConfig(public_url="https://gateway.example")
    async with serving(Script(), config) as gateway:
        assert gateway.open_session().base_url.startswith("https://gateway.example/s/")


async def test_small_paths() -> None:
    async with serving(Script()) as gateway, aiohttp.ClientSession() as client:
        session = gateway.open_session(limits=SessionLimits(max_context_tokens=99))
        for url in (gateway.url, session.base_url, f"{session.base_url}/v1"):
            for method in ("HEAD", "GET"):
                async with client.request(method, url) as response:
                    assert response.status == 200
        async with client.get(f"{session.base_url}/v1/models") as response:
            (model,) = (await response.json())["data"]
            assert (model["id"], model["max_model_len"]) == ("policy", 99)
        async with client.get(f"{gateway.url}/v1/models") as response:
            assert response.status == 401
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        async with client.get(f"{session.base_url}/v1/responses", headers=upgrade) as response:
            assert response.status == 426
        async with client.get(f"{session.base_url}/v1/files") as response:
            assert response.status == 404
            assert session.key not in await response.text()
        count = {"model": "policy", "messages": [user("four")]}
        assert await status_of(f"{session.base_url}/v1/messages/count_tokens", count) == (200, {"input_tokens": 6})
        assert not session.calls


async def test_a_codec_that_fails_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(CharacterCodec):
        def prompt(self, messages: object) -> list[int]:
            raise ValueError("codec")

    async with Gateway(Script(), Failing()) as gateway:
        session = gateway.open_session()
        assert (await status_of(f"{session.base_url}/v1/messages", ANY_BODY))[0] == 500
        assert (session.is_cut, session.has_failed) == (True, True)
    assert "could not be answered" in caplog.text
    assert session.key not in caplog.text


async def test_many_sessions_at_once_stay_apart() -> None:
    async def echo(prompt: Sequence[int]) -> Sample:
        await asyncio.sleep(0)
        return Sample(list(prompt), [0.0] * len(prompt))

    async with serving(echo) as gateway:
        sessions = [gateway.open_session(name=str(number)) for number in range(32)]
        async with asyncio.TaskGroup() as group:
            for session in sessions:
                body = chat_body(user(f"I am {session.name}"), tools=True)
                group.create_task(status_of(f"{session.base_url}/v1/chat/completions", body))
        for session in sessions:
            (call,) = session.calls
            assert f"I am {session.name}\x00" in "".join(map(chr, call.prompt))


async def test_opening_twice_and_using_it_closed() -> None:
    gateway = Gateway(Script(), CharacterCodec())
    with pytest.raises(UsageError, match="not open"):
        gateway.open_session()
    async with gateway:
        with pytest.raises(UsageError, match="open already"):
            await gateway.__aenter__()
        taken = Gateway(Script(), CharacterCodec(), config=GatewayConfig(port=gateway.address[1]))
        with pytest.raises(UsageError, match="can't listen"):
            await taken.__aenter__()
        with pytest.raises(UsageError, match="not open"):
            _ = taken.url


async def test_closing_ends_what_is_being_answered() -> None:
    sampler = Stuck()
    asking: asyncio.Task[tuple[int, Any]] | None = None
    async with serving(sampler) as gateway:
        session = gateway.open_session()
        asking = asyncio.create_task(status_of(f"{session.base_url}/v1/messages", ANY_BODY))
        await eventually(lambda: sampler.waiting == 1)
        gateway.close_session(session)
        assert (await asking)[0] == 403
    assert sampler.waiting == 0


async def test_a_failing_callback_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: EndReason) -> None:
        raise ValueError

    async with serving(Script("one" + tool_call())) as gateway:
        session = gateway.open_session(limits=SessionLimits(max_turns=1), on_limit=fail)
        url = f"{session.base_url}/v1/messages"
        assert [(await status_of(url, ANY_BODY))[0] for _ in range(2)] == [200, 403]
    assert "on_limit" in caplog.text


# -- connections without a request -------------------------------------------------------------------------------------


async def connected(gateway: Gateway, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(sent)
    return reader, writer


def closed(clients: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> int:
    """Return how many connections the gateway has ended."""
    return sum(reader.at_eof() or reader.exception() is not None for reader, _ in clients)


def request_of(session: Any) -> bytes:
    body = json.dumps(ANY_BODY).encode()
    path = session.base_url.split("/", 3)[3]
    head = f"POST /{path}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


HALVES = [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n", b"G"]


@pytest.mark.parametrize("sent", HALVES)
async def test_connections_without_a_request_are_bounded_and_the_oldest_go(sent: bytes) -> None:
    sampler = Stuck()
    async with serving(sampler) as gateway:
        session = gateway.open_session()
        working = await connected(gateway, request_of(session))
        await eventually(lambda: sampler.waiting == 1)
        clients = [await connected(gateway, sent) for _ in range(300)]
        await eventually(lambda: closed(clients) == 300 - 256)
        assert closed(clients[: 300 - 256]) == 300 - 256
        assert (sampler.waiting, closed([working])) == (1, 0), "who waits for an answer is no such connection"
        assert (await status_of(f"{session.base_url}/v1/chat/completions", {"messages": 1}))[0] == 400
        for _, writer in [working, *clients]:
            writer.close()


async def test_the_idle_connections_of_a_session_are_bounded_by_themselves() -> None:
    async with serving(Script("fine", repeats=True)) as gateway:
        loud, quiet = gateway.open_session(limits=SessionLimits(max_turns=None)), gateway.open_session()
        kept = await connected(gateway, request_of(quiet))
        await kept[0].readuntil(b"\r\n\r\n")
        clients = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
        for _ in range(80):
            clients.append(await connected(gateway, request_of(loud)))
            await clients[-1][0].readuntil(b"\r\n\r\n")
        for reader, _ in clients:  # the bodies, so that an end can be seen
            reader._buffer.clear()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        await eventually(lambda: closed(clients) == 80 - 64)
        assert (closed(clients[: 80 - 64]), closed([kept])) == (80 - 64, 0)
        for _, writer in [kept, *clients]:
            writer.close()


@pytest.mark.parametrize("sent", HALVES)
async def test_a_connection_without_a_request_is_closed_in_time(sent: bytes) -> None:
    async with serving(Script(), IMPATIENT) as gateway:
        with contextlib.suppress(ConnectionResetError):
            assert await raw_exchange(gateway, sent) == b""
