"""The guard by itself, around applications of a few lines: admission, sizes, times, and cancellations."""

import asyncio
from importlib.util import find_spec
from typing import Any

import pytest

from tests.helpers.patience import PATIENCE_SEC

if find_spec("openenv") is None:
    pytest.skip('pip install "harbor-gym[openenv]"', allow_module_level=True)

from harbor_gym.adapters.openenv.guard import Guard

TOKEN = "a-token-of-many-characters"
BEARER = [(b"authorization", f"Bearer {TOKEN}".encode())]

type Scope = dict[str, Any]


def guard(app: Any, *, idle_sec: float = 60.0, request_sec: float = 60.0, max_connections: int = 99) -> Guard:
    return Guard(
        app,
        token=TOKEN,
        max_body_bytes=1000,
        max_connections=max_connections,
        request_timeout_sec=request_sec,
        idle_timeout_sec=idle_sec,
    )


class Client:
    """One connection: its messages, and the answers."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: list[dict[str, Any]] = []
        for message in messages:
            self.inbox.put_nowait(message)

    async def send(self, message: Any) -> None:
        self.answers.append(message)

    async def call(self, app: Guard, scope: Scope) -> list[dict[str, Any]]:
        await asyncio.wait_for(app(scope, self.inbox.get, self.send), PATIENCE_SEC)
        return self.answers


def http(path: str, headers: Any = BEARER) -> Scope:
    return {"type": "http", "path": path, "headers": headers, "query_string": b""}


def websocket(path: str = "/ws", headers: Any = BEARER, query: bytes = b"", *, can_answer: bool = True) -> Scope:
    extensions = {"websocket.http.response": {}} if can_answer else {}
    return {"type": "websocket", "path": path, "headers": headers, "query_string": query, "extensions": extensions}


def body(text: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": text, "more_body": more}


def text(content: str) -> dict[str, Any]:
    return {"type": "websocket.receive", "text": content}


CONNECT, GONE = {"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1006}


class Echo:
    """An application that records its messages."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            self.received.append(message)
            if message["type"] == "http.request":
                await send({"type": "http.response.start", "status": 200})
                return
            if message["type"] == "websocket.disconnect":
                return
            await send({"type": "websocket.send", "text": message.get("text", "accepted")})


WRONG = {
    "none": [],
    "another": [(b"authorization", b"Bearer another-token-of-many-chars")],
    "empty": [(b"authorization", b"Bearer ")],
    "a prefix": [(b"authorization", f"Bearer {TOKEN[:-1]}".encode())],
    "no scheme": [(b"authorization", TOKEN.encode())],
    "basic": [(b"authorization", f"Basic {TOKEN}".encode())],
    "two": [*BEARER, (b"authorization", b"Bearer x")],
    "not ascii": [(b"authorization", b"Bearer \xff\xfe")],
}


@pytest.mark.parametrize("name", WRONG)
async def test_without_the_token_nothing_reaches_the_application(name: str) -> None:
    app = Echo()
    answers = await Client(body(b"{}")).call(guard(app), http("/metadata", WRONG[name]))
    assert (answers[0]["status"], (b"www-authenticate", b"Bearer") in answers[0]["headers"]) == (401, True)
    answers = await Client(CONNECT).call(guard(app), websocket(headers=WRONG[name]))
    assert answers[0] == {"type": "websocket.http.response.start", "status": 401, "headers": answers[0]["headers"]}
    (refused,) = await Client(CONNECT).call(guard(app), websocket(headers=WRONG[name], can_answer=False))
    assert (refused["type"], refused["code"]) == ("websocket.close", 1008)
    assert app.received == []


async def test_health_needs_no_token_but_only_over_http() -> None:
    app = Echo()
    assert (await Client(body(b"")).call(guard(app), http("/health", [])))[0]["status"] == 200
    assert (await Client(CONNECT).call(guard(app), websocket("/health", [])))[0]["status"] == 401


QUERIES = (b"session_id=1", b"session%5fid=1", b"SESSION_ID=1", b"a=1;session_id=2", b"session%255fid=1", b"\xff")


@pytest.mark.parametrize("scope", [websocket("/mcp"), websocket("/harness"), *(websocket(query=q) for q in QUERIES)])
async def test_other_sockets_and_parameters_of_a_session_are_refused(scope: Scope) -> None:
    app = Echo()
    assert (await Client(CONNECT).call(guard(app), scope))[0]["status"] == 404
    assert app.received == []


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    app = Echo()
    answers = await Client(body(b"x", more=True)).call(guard(app, request_sec=0.1), http("/a"))
    assert (answers[0]["status"], (b"connection", b"close") in answers[0]["headers"]) == (408, True)
    assert app.received == []


async def test_a_body_without_a_token_is_not_waited_for() -> None:
    app = Echo()
    assert (await Client().call(guard(app), http("/health", [])))[0]["status"] == 200
    assert (await Client().call(guard(app), http("/metadata", [])))[0]["status"] == 401


async def test_connections_with_the_token_are_bounded_and_without_it_do_not_count() -> None:
    door = guard(Echo(), max_connections=2)
    waiting = [Client(body(b"x", more=True)) for _ in range(2)]
    async with asyncio.TaskGroup() as group:
        for client in waiting:
            group.create_task(client.call(door, http("/a")))
        await asyncio.sleep(0)  # they start
        for _ in range(5):
            assert (await Client().call(door, http("/a", [])))[0]["status"] == 401
        assert (await Client(body(b"")).call(door, http("/a")))[0]["status"] == 503
        assert (await Client().call(door, http("/health", [])))[0]["status"] == 200
        for client in waiting:
            client.inbox.put_nowait(body(b"x"))
    assert [client.answers[0]["status"] for client in waiting] == [200, 200]
    assert (await Client(body(b"")).call(door, http("/a")))[0]["status"] == 200


async def test_bodies_are_bounded_whole_and_in_parts() -> None:
    app = Echo()
    assert (await Client(body(b"x" * 1000)).call(guard(app), http("/a")))[0]["status"] == 200
    parts = [body(b"x" * 400, more=True), body(b"x" * 400, more=True), body(b"x" * 400)]
    assert (await Client(*parts).call(guard(app), http("/a")))[0]["status"] == 413
    assert (await Client(*parts[1:]).call(guard(app), http("/a")))[0]["status"] == 200
    assert [len(message["body"]) for message in app.received] == [1000, 800]
    gone = [body(b"x", more=True), {"type": "http.disconnect"}]
    assert (await Client(*gone).call(guard(app), http("/a")))[0]["status"] == 400


async def test_a_client_may_not_send_ahead_without_end() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(60)

    answers = await Client(CONNECT, *[text("x")] * 20).call(guard(slow), websocket())
    assert answers[-1]["code"] == 1008


async def test_an_idle_session_is_closed_but_not_one_that_works() -> None:
    done: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0.5)  # a reset, longer than the time-out
        done.append("worked")
        done.append((await receive())["type"])

    answers = await Client(CONNECT).call(guard(app, idle_sec=0.1), websocket())
    assert done == ["worked", "websocket.disconnect"]
    assert (answers[-1]["code"], answers[-1]["reason"]) == (4008, "no message for 0.1 s")


async def test_a_client_that_vanishes_cancels_the_work_and_its_cleanup_ends() -> None:
    steps: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            steps.append("cleaned up")
            await send({"type": "websocket.close"})

    answers = await Client(CONNECT, text("reset"), text("step"), GONE).call(guard(app), websocket())
    assert steps == ["cleaned up"]
    assert answers == [], "nothing is sent to a connection that is over"


async def test_messages_behind_a_disconnect_are_not_acted_on() -> None:
    app = Echo()
    client = Client(CONNECT, GONE, text("reset"))
    await client.call(guard(app), websocket())
    assert [message["type"] for message in app.received][-1] == "websocket.disconnect"
    assert len(app.received) <= 2


async def test_an_error_of_the_application_is_raised() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError):
        await Client(CONNECT).call(guard(app), websocket())


async def test_a_cancelled_connection_waits_for_the_cleanup() -> None:
    began, steps = asyncio.Event(), list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await receive()
            began.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            steps.append("cleaned up")

    client = Client(CONNECT)
    task = asyncio.ensure_future(guard(app)(websocket(), client.inbox.get, client.send))
    await began.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["cleaned up"]


async def test_a_server_that_ends_does_not_cut_a_cleanup_short() -> None:
    cleaning, steps = asyncio.Event(), list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        try:
            await asyncio.sleep(60)
        finally:
            cleaning.set()
            await asyncio.sleep(0.1)
            steps.append("cleaned up")

    client = Client(CONNECT, GONE)
    task = asyncio.ensure_future(guard(app)(websocket(), client.inbox.get, client.send))
    await cleaning.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["cleaned up"]


async def test_a_connection_that_fails_ends_the_application() -> None:
    app = Echo()

    async def receive() -> Any:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await guard(app)(websocket(), receive, Client().send)
    assert [message["type"] for message in app.received] == ["websocket.disconnect"]
