"""The gateway behind Harbor's own inference relay, in this process."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harbor_gym._runtime.harbor_versions import VERSION
from harbor_gym.errors import UsageError
from harbor_gym.gateway import Gateway, Session, SessionLimits
from harbor_gym.gateway.relay import RelayAddress, RelayLink, relayed
from harbor_gym.types import Sampler
from tests.helpers.gateway.clients import Script, ThinkingCodec, chat_body, trained_text, user
from tests.helpers.gateway.harbor_server import KEY, Cable, cable, served
from tests.helpers.patience import eventually
from tests.unit.gateway.test_hostile_clients import ANY_BODY, PATHS, Stuck

pytestmark = [
    pytest.mark.skipif(VERSION < (0, 26), reason="Harbor has a relay since 0.26"),
    pytest.mark.filterwarnings("ignore:Duplicate Operation ID"),  # of Harbor's application
]

OWN = {"Authorization": f"Bearer {KEY}"}


class Rollout:
    """A rollout of the relay's: its agent's address and key."""

    def __init__(self, url: str, relay: Any, session: Session, link: RelayLink, way: Cable) -> None:
        self.relay, self.session, self.link, self.way = relay, session, link, way
        self._url, self._token = f"{url}/inference/v1", relay.register("local", "job", "rollout", "one")

    @asynccontextmanager
    async def post(self, path: str, body: Any) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a request as the agent."""
        headers = {"Authorization": f"Bearer {self._token}"}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.post(f"{self._url}/{path}", data=io.BytesIO(data)) as response,
        ):
            yield response


@asynccontextmanager
async def rollout(
    folder: Path, sampler: Sampler, limits: SessionLimits | None = None, *, at: tuple[str, Any] | None = None
) -> AsyncGenerator[Rollout]:
    """Connect a session of a gateway to a relay, by default one of its own, over a way that can be cut."""
    async with (
        served(folder) if at is None else nullcontext(at) as (url, relay),
        cable(int(url.rpartition(":")[2])) as way,
        Gateway(sampler, ThinkingCodec(), model="policy") as gateway,
    ):
        session = gateway.open_session(limits=limits)
        async with relayed(gateway, session, RelayAddress(way.url, "one", OWN)) as link:
            await link.wait_connected(10)
            yield Rollout(url, relay, session, link, way)


async def test_every_wire_goes_through_and_is_recorded(tmp_path: Path) -> None:
    text = "all good things " * 5000
    async with served(tmp_path) as at:
        for path, stream in product(PATHS, (False, True)):
            async with rollout(tmp_path, Script(text), at=at) as own:
                async with own.post(path, {**ANY_BODY, "stream": stream}) as response:
                    body = await response.text()
                    assert response.status == 200, (path, stream, body)
                    kind = "text/event-stream" if stream else "application/json"
                    assert response.content_type == kind, (path, stream)
                (call,) = own.session.calls
                assert call.answer.content == text, (path, stream)
                assert "all good things" in body, (path, stream)
                assert not own.session.is_cut, (path, stream)


async def test_a_conversation_goes_on_from_its_tokens(tmp_path: Path) -> None:
    policy = Script("one", "two")
    async with rollout(tmp_path, policy) as own:
        messages = [user("task")]
        for answer in ("one", "two"):
            async with own.post("chat/completions", chat_body(*messages)) as response:
                message = (await response.json())["choices"][0]["message"]
            assert message["content"] == answer
            messages += [message, user("next")]
        assert len(own.session.trained_segments) == 1


@pytest.mark.parametrize(("megabytes", "of_the_gateway"), [(5, True), (17, False)])
async def test_a_request_that_is_too_large_is_refused_and_the_session_goes_on(
    megabytes: int, of_the_gateway: bool, tmp_path: Path
) -> None:
    async with rollout(tmp_path, Script("one")) as own:
        async with own.post("chat/completions", b" " * (megabytes << 20)) as response:
            assert response.status == 413
            assert ("larger than" in await response.text()) is of_the_gateway
        async with own.post("chat/completions", chat_body(user("task"))) as response:
            assert response.status == 200
        assert own.link.reconnects == 0


async def test_refusals_have_the_shape_of_the_wire(tmp_path: Path) -> None:
    async with rollout(tmp_path, Script("one"), SessionLimits(max_turns=1)) as own:
        for path, status in (("chat/completions", 200), ("chat/completions", 401), ("messages", 403), ("nothing", 404)):
            async with own.post(path, ANY_BODY) as response:
                body = await response.json()
                assert response.status == status, body
        assert "error" in body


async def test_an_agent_that_is_gone_ends_its_request(tmp_path: Path) -> None:
    policy = Stuck()
    async with rollout(tmp_path, policy) as own:

        async def ask() -> None:
            async with own.post("chat/completions", ANY_BODY):
                pass

        asking = asyncio.create_task(ask())
        await eventually(lambda: policy.waiting == 1)
        asking.cancel()
        await eventually(lambda: policy.waiting == 0 and own.session.active_requests == 0)
        assert own.session.is_cut
        assert not own.session.calls


async def test_what_is_under_way_is_cancelled_when_the_connection_is_lost_and_another_one_is_made(
    tmp_path: Path,
) -> None:
    policy = Stuck()
    async with rollout(tmp_path, policy) as own:

        async def ask() -> int:
            async with own.post("chat/completions", ANY_BODY) as response:
                return response.status

        asking = asyncio.create_task(ask())
        await eventually(lambda: policy.waiting == 1)
        (connection,) = own.relay.connections.values()
        await connection.socket.close()
        assert await asking == 503
        await eventually(lambda: policy.waiting == 0 and own.link.reconnects == 1)
        assert own.session.is_cut


async def test_an_answer_that_is_cut_in_the_middle_is_no_answer(tmp_path: Path) -> None:
    """The agent sees that it is not whole; the answer to its second request is the only one that is trained."""
    async with served(tmp_path) as at:
        for path, stream in product(PATHS, (False, True)):
            await expect_no_half_answer(tmp_path, at, path, stream=stream)


async def expect_no_half_answer(folder: Path, at: tuple[str, Any], path: str, *, stream: bool) -> None:
    lost, whole = "a" * 1_500_000, "all good things"
    async with rollout(folder, Script(lost, whole), at=at) as own:
        own.way.cut_after = 1_600_000  # the first of two frames, as base64, has passed
        async with own.post(path, {**ANY_BODY, "stream": stream}) as response:
            assert response.status == 200, (path, stream)
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        await eventually(lambda: own.session.is_cut and own.link.reconnects == 1)
        async with own.post(path, {**ANY_BODY, "stream": stream}) as response:
            assert whole in await response.text(), (path, stream)
        assert trained_text(own.session) == f"{whole}\0", (path, stream)
        assert not own.session.is_cut, (path, stream)


async def test_a_rollout_that_somebody_else_started_gets_no_answer(tmp_path: Path) -> None:
    async with rollout(tmp_path, Script("one")) as own:
        own.link.rollout_id = "another"
        async with own.post("chat/completions", ANY_BODY) as response:
            assert response.status == 502
            assert (await response.json())["error"]["code"] == "unknown_rollout"
        assert not own.session.calls


async def test_a_wrong_key_ends_what_waits_for_the_relay(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _), Gateway(Script(), ThinkingCodec(), model="policy") as gateway:

        async def play() -> None:
            async with relayed(gateway, gateway.open_session(), RelayAddress(url, "one")) as link:
                await link.wait_connected(10)
                await asyncio.Event().wait()

        with pytest.raises(UsageError, match="refuses the API key"):
            await play()
