"""Rows: token ids, masks, kinds and reasons, on episodes in memory."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harbor.models.trial.config import AgentConfig

from harbor_gym.adapters.nemo_gym.model_server import CALL, TOKEN_FIELDS, ModelServer, ServerHistory
from harbor_gym.adapters.nemo_gym.play import ANEW, conversation, play
from harbor_gym.adapters.nemo_gym.rows import Row, make_row, refused_row
from harbor_gym.adapters.nemo_gym.settings import EpisodePlan
from harbor_gym.errors import UsageError, VerifierError
from harbor_gym.samplers import EngineSettingsError
from harbor_gym.types import Rollout, RoutedExperts, Sample, TokenSequence
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.engine_double import EngineDouble
from tests.helpers.gateway.clients import Script
from tests.helpers.nemo_gym.trainer import read_as_trainer
from tests.helpers.sandboxes.fake_episodes import COMPLETE, by_agent, fake_config, message
from tests.helpers.sequences import of_mask
from tests.helpers.tasks import DONE

pytestmark = pytest.mark.usefixtures("nothing_left")

ANSWERS = (message("pwd\n"), message(DONE), COMPLETE)
LAYERS, CHOICES = 2, 3
FORMAT_AGENT = AgentConfig(
    import_path="tests.helpers.gateway.format_agent:FormatAgent", kwargs={"base_url": "{gateway_url}"}
)


class Forgetful(CharacterCodec):
    """A template that writes the number of messages first: no prompt extends another."""

    def prompt(self, messages: Any) -> list[int]:
        return [*map(ord, str(len(messages))), *super().prompt(messages)]


def double(*answers: str, codec: Any = None, max_context_tokens: int = 100_000) -> EngineDouble:
    script = Script(*(answers or ANSWERS), repeats=True)
    return EngineDouble(script, codec=codec, max_context_tokens=max_context_tokens)


def without_ids() -> EngineDouble:
    engine = double()
    engine.returns_token_ids = False
    return engine


def plan(tmp_path: Path, agent: AgentConfig | None = None, **settings: Any) -> EpisodePlan:
    settings.setdefault("solved_when", {"/srv/answer": "done"})
    own = fake_config(tmp_path / "task", **settings)
    return EpisodePlan(own if agent is None else by_agent(own, agent), max_retries=0)


async def row_of(planned: EpisodePlan, engine: EngineDouble, **params: Any) -> Row:
    rollout, calls = await play(planned, lambda: ModelServer(engine.post, params, require_token_ids=True))
    return make_row(rollout, calls, require_token_ids=True)


def verdict(row: Row) -> tuple[float, bool, str | None]:
    assert row.fields["mask_sample"] is row.fields["instance_config"]["mask_sample"] is row.fields["mask_sample"]
    return row.fields["reward"], row.fields["mask_sample"], row.fields["failure_kind"]


async def test_a_solved_episode(tmp_path: Path) -> None:
    engine = double()
    row = await row_of(plan(tmp_path), engine, input=[{"role": "user", "content": "not this"}], temperature=0.7)
    assert verdict(row) == (1.0, False, None)
    assert (row.fields["end_reason"], row.fields["turns"], row.fields["verifier/reward"]) == ("completed", 3, 1.0)
    assert [item["role"] for item in row.input] == ["system", "user"]
    assert [item["role"] for item in row.output] == ["assistant", "user"] * 2 + ["assistant"]
    # Each answer goes back as it came, with its ids; and the row's parameters go along.
    assert engine.requests[2]["input"] == [*row.input, *row.output[:-1]]
    assert {request["temperature"] for request in engine.requests} == {0.7}
    sequence = read_as_trainer(row.output)
    sampled = [token for token, own in zip(sequence.completion, sequence.mask, strict=True) if own]
    assert "".join(map(chr, sampled)) == "".join(answer + chr(END) for answer in ANSWERS)


class Routing:
    """Answers as a script does; a token is routed by the length of its request's prompt."""

    def __init__(self, *answers: str) -> None:
        self._script = Script(*answers)

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        sample = await self._script(prompt)
        experts = np.full((len(prompt) + len(sample.tokens) - 1, LAYERS, CHOICES), len(prompt))
        return replace(sample, routed_experts=RoutedExperts(0, experts))


@pytest.mark.parametrize("agent", [None, FORMAT_AGENT])
async def test_routed_experts_are_not_sent_back(agent: AgentConfig | None, tmp_path: Path) -> None:
    engine = EngineDouble(Routing(*ANSWERS))
    row = await row_of(plan(tmp_path, agent), engine)
    assert verdict(row) == (1.0, False, None)
    items = [item for request in engine.requests for item in request["input"]]
    assert sum("generation_token_ids" in item for item in items) == 1 + 2
    assert not any("routed_experts" in item for item in items)
    routes = read_as_trainer(row.output).routed_experts
    assert routes is not None
    assert {*routes.experts.flat} == {len(exchange.prompt) for exchange in engine.exchanges}


async def test_after_a_break_no_item_has_routed_experts(tmp_path: Path) -> None:
    engine = EngineDouble(Routing(*ANSWERS), codec=Forgetful())
    engine.knows_prefix = False
    row = await row_of(plan(tmp_path), engine)
    assert ["routed_experts" in item for item in row.output if item["role"] == "assistant"] == [True, False, False]


async def test_a_row_without_an_answer_has_routes_that_the_trainer_takes_as_missing(tmp_path: Path) -> None:
    """NeMo RL ends a training with router replay at an item without routes, also in a masked row."""
    engine, history = EngineDouble(Routing(*ANSWERS)), ServerHistory()
    error = VerifierError("it wrote nothing")
    assert "routed_experts" not in make_row(Rollout.lost(error), (), require_token_ids=True).output[0]
    await play(plan(tmp_path), lambda: ModelServer(engine.post, {}, require_token_ids=True, history=history))
    for row in (
        make_row(Rollout.lost(error), (), require_token_ids=True, routes=history.routes),
        refused_row(error, routes=history.routes),
    ):
        (item,) = row.output
        assert item["routed_experts"] == [[[-1] * CHOICES] * LAYERS] * 2, "one of the prompt, one sampled"
        assert read_as_trainer(row.output).routed_experts is not None


def test_the_form_of_routes_is_read_where_it_is_known() -> None:
    history = ServerHistory()
    for routes in (None, [], [[]], "ray:1", "nrlre1:int16:5", {"tag": 1}):
        history.note_routes(routes)
        assert history.routes is None
    history.note_routes([[[0, 1, 2], [3, 4, 5]]])
    assert history.routes == (2, 3)
    history.note_routes("nrlre1:int16:700x48x8:AAAA")
    history.note_routes(None)
    assert history.routes == (48, 8)


async def test_an_agents_row_begins_with_its_prompt(tmp_path: Path) -> None:
    row = await row_of(plan(tmp_path, FORMAT_AGENT, max_turns=1), double(message(DONE)))
    assert (verdict(row), row.fields["turns"]) == ((1.0, False, None), 1)
    assert [item["role"] for item in row.input] == ["system", "user"]


async def test_an_agents_calls_that_the_model_server_leaves_in_its_text_are_counted(tmp_path: Path) -> None:
    agent = FORMAT_AGENT.model_copy(update={"import_path": "tests.helpers.gateway.format_agent:ToolAgent"})
    row = await row_of(plan(tmp_path, agent), double("<tool_call>{}</tool_call>"))
    assert verdict(row) == (0.0, False, None)
    assert row.fields["unread_calls"] == 1


async def test_an_agents_first_prompt_that_does_not_fit(tmp_path: Path) -> None:
    row = await row_of(plan(tmp_path, FORMAT_AGENT), double(max_context_tokens=100))
    assert verdict(row) == (0.0, True, "harbor_gym:context_overflow")


def test_an_agents_second_conversation_adds_what_is_new() -> None:
    user, first, second = {"role": "user", "content": "a"}, answer(0), answer(1)
    again = {"role": "user", "content": "c"}
    edited = [user, {"role": "assistant", "content": "shortened"}, again, second]
    assert conversation([segment([user, first]), segment(edited)]) == [user, first, {**again, ANEW: True}, second]
    assert conversation([segment([user, first])]) == [user, first]


def answer(number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": "", CALL: number}


def segment(lines: list[dict[str, Any]]) -> TokenSequence:
    tokens = [ord(character) for line in lines for character in f"{json.dumps(line)}\n"]
    return of_mask(tokens[:5], tokens[5:], [0] * len(tokens[5:]), [0.0] * len(tokens[5:]))


async def test_a_break_masks_and_ends_the_token_ids(tmp_path: Path) -> None:
    engine = double(codec=Forgetful())
    engine.knows_prefix = False
    row = await row_of(plan(tmp_path), engine)
    assert verdict(row) == (1.0, True, "harbor_gym:tokens_not_contiguous")
    assert row.fields["tokens_contiguous"] == 0
    assert "answer 2" in row.fields["failure_reason"]
    # NeMo RL asserts that prompts extend one another, masked or not.
    assert sum(read_as_trainer(row.output).mask) == len(ANSWERS[0]) + 1
    answers = [item for item in row.output if item["role"] == "assistant"]
    assert [name in item for item in answers for name in TOKEN_FIELDS] == [True] * 3 + [False] * 6
    assert [item["content"][0]["text"] for item in answers] == list(ANSWERS)


@pytest.mark.parametrize("propagates", [True, False])
async def test_a_first_prompt_that_does_not_fit(propagates: bool, tmp_path: Path) -> None:
    engine = double(max_context_tokens=100)
    engine.propagates_overflow = propagates
    row = await row_of(plan(tmp_path), engine)
    assert verdict(row) == (0.0, True, "harbor_gym:context_overflow")
    assert row.fields["context_length_exceeded_error"] == 1
    assert [item["role"] for item in row.input] == ["system", "user"]
    assert len(row.output) == 1
    assert sum(read_as_trainer(row.output).mask) == 1


@pytest.mark.parametrize("propagates", [True, False])
async def test_a_later_prompt_that_does_not_fit_keeps_the_turns(propagates: bool, tmp_path: Path) -> None:
    engine = double(message(DONE), message("echo " + "x" * 3000 + "\n"), max_context_tokens=6000)
    engine.propagates_overflow = propagates
    row = await row_of(plan(tmp_path), engine)
    assert verdict(row) == (1.0, False, "harbor_gym:context_overflow")
    assert (row.fields["turns"], row.fields["truncated"]) == (2, 1)
    assert len([item for item in row.output if item.get("generation_token_ids")]) == 2


async def test_a_spent_time_limit_keeps_the_turns(tmp_path: Path) -> None:
    row = await row_of(plan(tmp_path, time_limit_sec=1e-9), double(message(DONE)))
    assert verdict(row) == (1.0, False, "agent_timeout")
    assert (row.fields["turns"], row.fields["agent_timeout_error"]) == (1, 1)


async def test_a_broken_verifier_keeps_the_turns_and_reports_why(tmp_path: Path) -> None:
    planned = plan(tmp_path, trials_dir=tmp_path / "trials", fail={"verifier": 1})
    row = await row_of(planned, double())
    assert verdict(row) == (0.0, True, "verifier_error")
    assert row.fields["turns"] == 3
    assert sum(read_as_trainer(row.output).mask) == sum(len(answer) + 1 for answer in ANSWERS)
    assert row.fields["failure_reason"].startswith("VerifierError: ")
    assert Path(row.fields["trial_dir"]).parent == tmp_path / "trials"


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 599])
async def test_a_failing_model_server_is_asked_again(status: int, tmp_path: Path) -> None:
    engine = double()
    engine.modes = [200, *[status] * 3]
    row = await row_of(plan(tmp_path), engine)
    assert verdict(row) == (1.0, False, None)
    assert (row.fields["attempts"], len(engine.requests)) == (1, 6)
    assert engine.requests[1] == engine.requests[4], "the same request"


REFUSALS = {
    "its own": (404, ""),
    "vllm's key": (500, '{"error":"Unauthorized"}'),
    "vllm's model": (500, '{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}'),
    "openai's key": (500, '{"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}'),
    "openai's model": (500, '{"error": {"message": "The model x does not exist", "code": "model_not_found"}}'),
}
"""The error of an engine behind the model server: the server's status, and the engine's body in its words."""


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("agent", [None, FORMAT_AGENT])
async def test_a_wrong_key_or_model_ends_the_run_at_the_first_answer(
    name: str, agent: AgentConfig | None, tmp_path: Path
) -> None:
    engine = double()
    status, engine.refusal = REFUSALS[name]
    engine.modes = [status] * 9
    planned = replace(plan(tmp_path, agent), max_retries=1)
    with pytest.raises(EngineSettingsError, match=r"policy_api_key.*the model server answered with status 40"):
        await row_of(planned, engine)
    assert len(engine.requests) == 1


async def test_an_overflow_in_a_model_servers_own_words_ends_the_episode(tmp_path: Path) -> None:
    engine = double(message(DONE))
    engine.modes = [200, 500]
    engine.refusal = '{"error": {"message": "Your input is too long", "code": "context_length_exceeded"}}'
    assert verdict(await row_of(plan(tmp_path), engine)) == (1.0, False, "harbor_gym:context_overflow")
    assert len(engine.requests) == 2


async def test_a_model_server_without_token_ids_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="return_token_id_information: true"):
        await row_of(plan(tmp_path), without_ids())
    rollout, calls = await play(plan(tmp_path), lambda: ModelServer(without_ids().post, {}))
    row = make_row(rollout, calls, require_token_ids=False)
    assert verdict(row) == (1.0, False, None)
    assert not any(name in item for item in row.output for name in TOKEN_FIELDS)


def test_an_error_without_a_turn_still_has_an_item() -> None:
    error = VerifierError("it wrote nothing").attach({"verifier_output": "boom"}, trial_dir=None)
    for is_training in (True, False):
        row = make_row(Rollout.lost(error), (), require_token_ids=is_training)
        assert verdict(row) == (0.0, True, "verifier_error")
        assert row.fields["verifier_output"] == "boom"
        assert sum(read_as_trainer(row.output).mask) == 1
