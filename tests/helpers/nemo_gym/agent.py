"""The agent server with NeMo Gym's own types, without its processes. Needs NeMo Gym."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf

from harbor_gym.adapters.nemo_gym import HarborGymAgent, HarborGymAgentConfig
from tests.helpers.engine_double import EngineDouble

_TIMEOUT_SEC = 120.0


class _Answer:
    """The result of NeMo Gym's client, with the attributes that are read."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.status, self.headers, self.cookies, self._content = status, headers, {"session": "one"}, content

    async def read(self) -> bytes:
        return self._content


def make_agent(root: Path, engine: EngineDouble, **settings: Any) -> HarborGymAgent:
    """Return an agent server whose model server is a stand-in."""

    class Client(ServerClient):
        async def post(self, server_name: str, url_path: str, **kwargs: Any) -> Any:
            assert (server_name, url_path) == ("policy_model", "/v1/responses")
            # From the second request on to the engine that has the prompt.
            assert kwargs["cookies"] == (None if not kwargs["json"]["input"][2:] else {"session": "one"})
            return _Answer(*await engine.post(kwargs["json"]))

    class Agent(HarborGymAgent):
        """A class of its own: the place of relative paths is the class's."""

    Agent.root = root
    place = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "harbor_gym_agent"}
    policy = {"type": "responses_api_models", "name": "policy_model"}
    config = HarborGymAgentConfig.model_validate({**place, "model_server": policy, **settings})
    head = BaseServerConfig(host="127.0.0.1", port=2)
    return Agent(config=config, server_client=Client(head_server_config=head, global_config_dict=OmegaConf.create()))


async def post(agent: HarborGymAgent, row: dict[str, Any], path: str = "/run") -> tuple[int, Any]:
    """Send a row; return the answer's status and JSON."""
    transport = httpx.ASGITransport(agent.setup_webserver())
    async with httpx.AsyncClient(transport=transport, base_url="http://agent", timeout=_TIMEOUT_SEC) as client:
        answer = await client.post(path, json={"responses_create_params": {"input": []}, **row})
    return answer.status_code, answer.json()
