"""The agent server with NeMo Gym's own types, in this process: what goes over its ``/run``, on sandboxes in memory."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.character_codec import CharacterCodec
from tests.helpers.nemo_gym.double import ModelServerDouble, read_as_trainer
from tests.helpers.nemo_gym.scripts import Script
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, message
from tests.helpers.tasks import DONE, write_task

pytestmark = [pytest.mark.nemo_gym, pytest.mark.usefixtures("nothing_left")]

ANSWERS = (message("pwd\n"), message(DONE), COMPLETE)


class Answer:
    """What NeMo Gym's client returns, as far as it is read."""

    def __init__(self, status: int, content: bytes) -> None:
        self.status, self.cookies, self._content = status, {"session": "one"}, content

    async def read(self) -> bytes:
        return self._content


def make_agent(root: Path, engine: ModelServerDouble, **settings: Any) -> Any:
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.server_utils import ServerClient
    from omegaconf import OmegaConf

    from harbor_gym.adapters.nemo_gym import HarborGymAgent, HarborGymAgentConfig

    class Client(ServerClient):
        async def post(self, server_name: str, url_path: str, **kwargs: Any) -> Any:
            assert (server_name, url_path) == ("policy_model", "/v1/responses")
            # From the second request on to the engine that has the prompt.
            assert kwargs["cookies"] == (None if len(engine.requests) == 0 else {"session": "one"})
            return Answer(*await engine.post(kwargs["json"]))

    class Agent(HarborGymAgent):
        root = Path()

    Agent.root = root
    own = {
        "harbor_datasets": {"a": {"local_dataset_path": "tasks"}},
        "sandbox": FAKE,
        "sandbox_options": {"solved_when": {"/srv/answer": "done"}},
        "terminal_env": {"confirm_task_complete": False},
        "require_token_ids": True,
        "max_retries": 0,
        **settings,
    }
    place = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "harbor_gym_agent"}
    policy = {"type": "responses_api_models", "name": "policy_model"}
    config = HarborGymAgentConfig.model_validate({**place, "model_server": policy, **own})
    client = Client(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=2), global_config_dict=OmegaConf.create()
    )
    return Agent(config=config, server_client=client)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_task(tmp_path / "tasks/one")
    return tmp_path


def engine(*answers: str, **settings: Any) -> ModelServerDouble:
    settings = {"max_tokens": 10, "max_context_tokens": 100_000, **settings}
    return ModelServerDouble(Script(*(answers or ANSWERS)), CharacterCodec(), **settings)


async def post(agent: Any, row: dict[str, Any], path: str = "/run") -> tuple[int, Any]:
    transport = httpx.ASGITransport(agent.setup_webserver())
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        answer = await client.post(path, json={"responses_create_params": {"input": []}, **row}, timeout=60)
    return answer.status_code, answer.json()


async def test_a_row_in_and_a_verified_row_out(root: Path) -> None:
    model = engine()
    row = {"instance_id": "a::one", "responses_create_params": {"input": [], "temperature": 0.5}}
    status, answer = await post(make_agent(root, model), row)
    assert status == 200
    assert (answer["reward"], answer["mask_sample"], answer["failure_kind"]) == (1.0, False, None)
    assert (answer["end_reason"], answer["verifier/reward"]) == ("completed", 1.0)
    assert [item["role"] for item in answer["responses_create_params"]["input"]] == ["system", "user"]
    assert answer["responses_create_params"]["temperature"] == model.requests[0]["temperature"] == 0.5
    sequence = read_as_trainer(answer["response"]["output"])
    sampled = [token for token, own in zip(sequence.completion, sequence.mask, strict=True) if own]
    assert "".join(map(chr, sampled)) == "".join(f"{text}\0" for text in ANSWERS)


@pytest.mark.parametrize(
    ("settings", "failure_kind"),
    [
        ({"sandbox_options": {"fail": {"start": 1}}}, "provider_unavailable"),
        ({"sandbox_options": {"fail": {"verifier": 1}}}, "verifier_error"),
        ({}, "harbor_gym:sampler_error"),
    ],
)
async def test_what_the_infrastructure_lost_is_a_masked_row(
    root: Path, settings: dict[str, Any], failure_kind: str
) -> None:
    model = engine()
    model.statuses = [] if settings else [200, 500]
    status, answer = await post(make_agent(root, model, **settings), {"instance_id": "a::one"})
    assert status == 200
    assert (answer["reward"], answer["mask_sample"], answer["failure_kind"]) == (0.0, True, failure_kind)
    assert answer["instance_config"] == {"mask_sample": True}
    assert sum(read_as_trainer(answer["response"]["output"]).mask) > 0


async def test_what_no_retry_repairs_is_refused(root: Path) -> None:
    agent = make_agent(root, engine())
    for row, words in (
        ({"instance_id": "a::two"}, "no task 'two'"),
        ({"instance_id": "b::one"}, "ALIAS::TASK"),
        ({"instance_id": "a::one", "harbor_gym": {"terminal_env": {"no_such": 1}}}, "no_such"),
        ({"instance_id": "a::one", "harbor_gym": {"no_such": 1}}, "no_such"),
    ):
        status, answer = await post(agent, row)
        assert status == 422
        assert words in json.dumps(answer)
    assert (await post(agent, {}, "/v1/responses"))[0] == 422


async def test_the_requests_own_settings(root: Path) -> None:
    row = {"instance_id": "a::one", "harbor_gym": {"max_turns": 1}}
    status, answer = await post(make_agent(root, engine(message(DONE))), row)
    assert (status, answer["end_reason"], answer["reward"], answer["turns"]) == (200, "max_turns", 1.0, 1)


async def test_every_kind_is_a_word_of_nemo_gyms() -> None:
    from nemo_gym.failure_kinds import is_namespaced, is_registered

    from harbor_gym.adapters.nemo_gym.rows import nemo_kind
    from harbor_gym.outcomes import FAILURE_KINDS

    kinds = [nemo_kind(word) for word in FAILURE_KINDS]
    assert all(is_registered(kind) or is_namespaced(kind) for kind in kinds)
    assert any(is_registered(kind) for kind in kinds)
