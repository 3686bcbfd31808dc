"""The address of Harbor's server is asked once, before the first episode."""

import pytest
from aiohttp import web

from harbor_gym.adapters.harbor import HarborServer
from harbor_gym.adapters.harbor import server as harbor_server
from harbor_gym.adapters.harbor.server import require_answer
from harbor_gym.errors import UsageError
from tests.helpers.loopback import on_loopback


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid", "127.0.0.1:80"])
async def test_an_address_at_which_nothing_listens_is_named(url: str) -> None:
    with pytest.raises(UsageError, match=rf"no server of Harbor's answers at {url} \(.+\): start harbor serve there"):
        await require_answer(HarborServer(url))


async def test_a_server_that_answered_once_may_be_away_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harbor_server, "_answered", set())
    async with on_loopback(web.Application()) as url:
        await require_answer(HarborServer(url))
    await require_answer(HarborServer(url))
