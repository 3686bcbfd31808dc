"""The agent server with NeMo Gym's own types, in this process: the traffic of its ``/run``, on sandboxes in memory."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harbor_gym.types import RoutedExperts, Sample
from tests.helpers.engine_double import EngineDouble
from tests.helpers.gateway.clients import Script
from tests.helpers.nemo_gym.trainer import read_as_trainer
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, message
from tests.helpers.tasks import DONE, write_task

pytestmark = [pytest.mark.nemo_gym, pytest.mark.usefixtures("nothing_left")]

ANSWERS = (message("pwd\n"), message(DONE), COMPLETE)


def make(root: Path, model: EngineDouble, **settings: Any) -> Any:
    from tests.helpers.nemo_gym.agent import make_agent

    own = {
        "harbor_datasets": {"a": {"local_dataset_path": "tasks"}},
        "sandbox": FAKE,
        "sandbox_options": {"solved_when": {"/srv/answer": "done"}},
        "terminal_env": {"confirm_task_complete": False},
        "require_token_ids": True,
        "max_retries": 0,
    }
    return make_agent(root, model, **{**own, **settings})


async def post(agent: Any, row: dict[str, Any], path: str = "/run") -> tuple[int, Any]:
    from tests.helpers.nemo_gym import agent as helper

    return await helper.post(agent, row, path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_task(tmp_path / "tasks/one")
    return tmp_path


def engine(*answers: str) -> EngineDouble:
    return EngineDouble(Script(*(answers or ANSWERS), repeats=True))


async def test_nemo_gyms_export_takes_no_conversation_of_a_terminal(root: Path) -> None:
    """The statement of docs/nemo_gym.md on ATIF: it holds for all that an agent server could report of an episode."""
    from nemo_gym.atif_export import AtifExportError, gym_rollout_to_atif

    model = engine()
    model.returns_token_ids = False
    _, answer = await post(make(root, model, require_token_ids=False), {"instance_id": "a::one"})
    said = [
        {**item, "type": "message", "status": "completed"} if item["role"] == "assistant" else item
        for item in [*answer["responses_create_params"]["input"], *answer["response"]["output"]]
    ]
    observed = {"kind": "agent_invocation", "invocation_id": "1", "status": "completed", "conversation": said}
    record = {"schema_version": "1.0", "task_id": "a::one", "rollout_id": "0-0", "invocations": [observed]}
    rollout = {
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
        "agent_ref": {"type": "responses_api_agents", "name": "a"},
        "ng_trajectory": record,
    }
    with pytest.raises(AtifExportError, match="later system or user turns are not supported"):
        gym_rollout_to_atif(rollout, session_id="run", agent_version="1")


async def test_a_row_that_can_not_be_played_says_why_and_ends_nothing(root: Path) -> None:
    agent = make(root, engine())
    for row, words in (
        ({"instance_id": "a::two"}, "no task 'two'"),
        ({"instance_id": "b::one"}, "ALIAS::TASK"),
        ({"instance_id": "a::one", "harbor_gym": {"terminal_env": {"no_such": 1}}}, "no_such"),
    ):
        status, answer = await post(agent, row)
        assert (status, answer["mask_sample"], answer["attempts"]) == (200, True, 0)
        assert answer["failure_kind"] == answer["_ng_failure_class"] == "harbor_gym:usage_error"
        assert words in answer["failure_reason"] == answer["_ng_failure_message"]
        assert answer["_ng_failure_terminal"] is True
        assert sum(read_as_trainer(answer["response"]["output"]).mask) > 0
    status, answer = await post(agent, {"instance_id": "a::one", "harbor_gym": {"no_such": 1}})
    assert (status, "no_such" in json.dumps(answer)) == (422, True), "NeMo Gym's own check of a request's form"
    assert (await post(agent, {}, "/v1/responses"))[0] == 422


async def test_nemo_gyms_own_capture_of_tokens_leaves_these_rows_as_they_are(root: Path) -> None:
    from nemo_gym.token_id_capture.delivery import rollout_carries_token_ids

    agent = make(root, engine())
    for task in ("one", "two"):
        assert rollout_carries_token_ids((await post(agent, {"instance_id": f"a::{task}"}))[1]), task


async def test_a_refused_row_of_a_mixture_of_experts_has_routes_that_nemo_gym_reads(root: Path) -> None:
    from nemo_gym.token_id_capture.staging import decode_routed_experts
    from nemo_gym.token_id_capture.staging.routes import MISSING_ROUTE_SENTINEL

    layers, choices = 4, 2
    script = Script(*ANSWERS)

    async def routed(prompt: Sequence[int]) -> Sample:
        sample = await script(prompt)
        experts = np.ones((len(prompt) + len(sample.tokens) - 1, layers, choices), dtype=np.int64)
        return replace(sample, routed_experts=RoutedExperts(0, experts))

    agent = make(root, EngineDouble(routed))
    _, good = await post(agent, {"instance_id": "a::one"})
    (first, *_) = [item for item in good["response"]["output"] if item.get("routed_experts")]
    read = decode_routed_experts(first["routed_experts"])
    tokens = len(first["prompt_token_ids"]) + len(first["generation_token_ids"])
    assert (len(read.values), read.num_layers, read.topk) == (tokens, layers, choices)
    _, refused = await post(agent, {"instance_id": "a::two"})
    (item,) = refused["response"]["output"]
    read = decode_routed_experts(item["routed_experts"])
    assert (len(read.values), read.num_layers, read.topk) == (2, layers, choices)
    assert {expert for row in read.values for layer in row for expert in layer} == {MISSING_ROUTE_SENTINEL}


async def test_every_kind_is_a_word_of_nemo_gyms() -> None:
    from nemo_gym.failure_kinds import is_namespaced, is_registered

    from harbor_gym.adapters.nemo_gym.rows import nemo_kind
    from harbor_gym.outcomes import FAILURE_KINDS

    kinds = [nemo_kind(word) for word in FAILURE_KINDS]
    assert all(is_registered(kind) or is_namespaced(kind) for kind in kinds)
    assert any(is_registered(kind) for kind in kinds)
