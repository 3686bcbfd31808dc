"""Episodes over a chat endpoint: a real server answers, here the gateway in front of a scripted sampler."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, Sample, SamplerError, UsageError
from harbor_gym.gateway import Gateway
from harbor_gym.samplers import BudgetSpentError, ChatEndpoint, run_chat_episode, statuses
from harbor_gym.types import ActionFormat, Rollout
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.engine_double import EngineDouble, Mode, serve
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo seen"}}\n</tool_call>'
SUBMIT = '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("bash", "submit")]


async def play(
    task: Path, *answers: str, length_at: int | None = None, ends: bool = False, tools: bool = False, **settings: Any
) -> tuple[Rollout, Any]:
    """Play an episode against a gateway that answers with each text in turn; return it and the gateway's session."""
    turn = iter(range(100))

    async def sample(prompt: Sequence[int]) -> Sample:
        number = next(turn)
        tokens = [*map(ord, answers[number])]
        return Sample(tokens, None, "length") if number == length_at else Sample([*tokens, END])

    async with Gateway(sample, CharacterCodec(), model="policy") as gateway:
        session = gateway.open_session()
        extra = {"tools": TOOLS} if tools else {}
        async with ChatEndpoint(
            f"{gateway.url}/s/{session.key}/v1", "policy", max_tokens=500, extra_body=extra
        ) as endpoint:
            env = AsyncTerminalGymEnv(fake_config(task, **settings))
            rollout = await run_chat_episode(env, endpoint, ends_without_tool_call=ends)
            return rollout, session


async def test_an_episode_in_messages(tmp_path: Path) -> None:
    rollout, session = await play(tmp_path / "task", message("echo hello\n"), COMPLETE, rewards=0.5)
    assert (rollout.reward, rollout.end_reason, rollout.error) == (0.5, EndReason.COMPLETED, None)
    assert [item["role"] for item in rollout.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert "hello" in rollout.messages[3]["content"]
    assert [turn.action for turn in rollout.turns] == [message("echo hello\n"), COMPLETE]
    assert rollout.turns[1].observation == rollout.messages[3]["content"]
    assert rollout.turns[1].prompt_tokens > rollout.turns[0].prompt_tokens > 0
    assert len(session.trained_segments) == 1, "the chat goes back as it came, so the server sees one conversation"


async def test_structured_calls_are_carried_out_and_answered_in_their_role(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"action_format": ActionFormat.BASH_TOOL, "tools": True}
    rollout, session = await play(tmp_path / "task", f"look\n{CALL}", SUBMIT, **settings)
    assert (rollout.reward, rollout.end_reason) == (1.0, EndReason.COMPLETED)
    call, result = rollout.messages[2:4]
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"command": "echo seen"}
    assert (result["role"], result["tool_call_id"]) == ("tool", call["tool_calls"][0]["id"])
    assert "seen" in result["content"]
    assert len(session.trained_segments) == 1


async def test_every_call_of_a_message_gets_a_result(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"action_format": ActionFormat.BASH_TOOL, "tools": True}
    rollout, _ = await play(tmp_path / "task", f"{CALL}\n{CALL}", SUBMIT, **settings)
    roles = [item["role"] for item in rollout.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]


@pytest.mark.parametrize("ends", [True, False])
async def test_a_policy_may_stop_calling_tools(tmp_path: Path, ends: bool) -> None:
    settings: dict[str, Any] = {"action_format": ActionFormat.BASH_TOOL, "max_consecutive_parse_failures": 1}
    rollout, _ = await play(tmp_path / "task", CALL, "I am done.", ends=ends, rewards=0.5, **settings)
    assert rollout.end_reason is (EndReason.NO_TOOL_CALL if ends else EndReason.PARSE_FAILURES)
    assert rollout.reward == 0.5


async def test_a_cut_message_is_not_carried_out(tmp_path: Path) -> None:
    rollout, _ = await play(tmp_path / "task", message("echo hello\n"), length_at=0)
    assert (rollout.end_reason, len(rollout.turns)) == (EndReason.MAX_TOKENS, 1)


async def test_a_lost_sandbox_leaves_no_reward(tmp_path: Path) -> None:
    rollout, _ = await play(tmp_path / "task", message("true\n"), message("true\n"), fail={"exec": 2})
    assert (rollout.reward, rollout.end_reason) == (None, EndReason.INFRASTRUCTURE_ERROR)


@asynccontextmanager
async def server(mode: Mode) -> AsyncGenerator[ChatEndpoint]:
    engine = EngineDouble()
    engine.always = mode
    async with serve(engine), ChatEndpoint(engine.url, "m", max_tokens=5, temperature=0.0) as endpoint:
        yield endpoint


def answered(finish: Any = "stop", **changes: Any) -> dict[str, Any]:
    return {"choices": [{"finish_reason": finish, "message": {"role": "assistant", "content": "x", **changes}}]}


async def test_a_chat_that_does_not_fit_ends_the_episode_truncated(tmp_path: Path) -> None:
    async with server("overflow") as endpoint:
        env = AsyncTerminalGymEnv(fake_config(tmp_path / "task", rewards=0.5))
        rollout = await run_chat_episode(env, endpoint)
    assert (rollout.end_reason, rollout.reward, rollout.turns) == (EndReason.CONTEXT_OVERFLOW, 0.5, [])


@pytest.mark.parametrize("reason", [reason for reason in EndReason if reason.is_truncation])
async def test_a_budget_of_whoever_answers_ends_the_episode_truncated(tmp_path: Path, reason: EndReason) -> None:
    async def ask(messages: Any) -> Any:
        spent = BudgetSpentError("no more answers")
        spent.reason = reason
        raise spent

    rollout = await run_chat_episode(AsyncTerminalGymEnv(fake_config(tmp_path / "task", rewards=0.5)), ask)
    assert (rollout.end_reason, rollout.reward, rollout.error) == (reason, 0.5, None)


async def test_what_the_environment_reported_is_kept_with_its_start_and_end(tmp_path: Path) -> None:
    rollout, _ = await play(tmp_path / "task", message("true\n"), COMPLETE, rewards={"reward": 0.5, "tidy": 1.0})
    assert [info["turn"] for info in rollout.transcript.infos] == [0, 1, 2]
    assert "time/sandbox_start_sec" in rollout.transcript.infos[0]["metrics"]
    assert rollout.transcript.infos[-1].get("rewards") == {"reward": 0.5, "tidy": 1.0}


async def test_a_key_of_one_episode_and_no_limit_of_tokens() -> None:
    async with (
        serve(EngineDouble()) as engine,
        ChatEndpoint(engine.base_url, "m", max_tokens=None, timeout_sec=None, api_key="hush") as endpoint,
    ):
        await endpoint([])
    assert (engine.keys, engine.requests) == (["Bearer hush"], [{"model": "m", "messages": []}])


def test_two_keys_are_refused() -> None:
    with pytest.raises(UsageError, match="one key"):
        ChatEndpoint("http://x", "m", max_tokens=1, api_key="a", api_key_env="PATH")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, {"error": "no such model"}, "status 400"),
        (503, {}, "status 503"),
        (200, {}, "no single message"),
        (200, {"choices": []}, "no single message"),
        (200, answered("content_filter"), "neither stop nor length"),
        (200, answered(None), "no single message"),
        (200, answered(content=[{"type": "text"}]), "not text"),
        (200, answered(tool_calls=[{"function": {}}]), "without name"),
    ],
)
async def test_an_endpoints_failure_is_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: Any, reason: str
) -> None:
    monkeypatch.setattr(statuses, "_BACKOFF_SEC", 0.001)
    async with server((status, body)) as endpoint:
        rollout = await run_chat_episode(AsyncTerminalGymEnv(fake_config(tmp_path / "task")), endpoint)
    assert isinstance(rollout.error, SamplerError)
    assert reason in str(rollout.error)
    assert rollout.reward is None
