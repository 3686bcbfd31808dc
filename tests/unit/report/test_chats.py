"""A run's episodes as chats: what the policy was shown and what it answered, in the form of chat completions."""

from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, Sample, TokenTerminalEnv, UsageError, run_episode
from harbor_gym.formats import prompts
from harbor_gym.formats.tool_call import TERMINAL_TOOLS
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition, tool_schema, write_calls
from harbor_gym.harbor import RolloutInterface
from harbor_gym.report import messages
from harbor_gym.testing import write_tiny_task
from harbor_gym.transcripts import write_transcript
from harbor_gym.types import EpisodeInfo, Transcript, Turn
from tests.helpers.chats.character_codec import ASK, CharacterCodec
from tests.helpers.gateway.clients import ThinkingCodec, TurnPolicy, tool_call
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, fake_config, message

PLACE = "transcripts/train/batch_0002/group_1/episode_001.json"
INFO: EpisodeInfo = {"turn": 1, "metrics": {}}


async def test_the_chat_of_our_own_loop_is_the_prompt_of_its_last_answer(tmp_path: Path) -> None:
    prompts_seen: list[list[int]] = []
    answers = iter((message("ls\n"), COMPLETE))

    async def sample(prompt: Any) -> Sample:
        prompts_seen.append(list(prompt))
        return Sample([*map(ord, next(answers))])

    codec, config = CharacterCodec(), fake_config(tmp_path / "task")
    rollout = await run_episode(TokenTerminalEnv(AsyncTerminalGymEnv(config), codec, max_tokens=1000), sample)
    write_transcript(tmp_path / "run" / PLACE, rollout.transcript, labels={"task": "tiny"})
    (episode,) = messages(tmp_path / "run")
    chat = episode["messages"]
    assert [item["role"] for item in chat] == ["system", "user", "assistant", "user", "assistant"]
    assert chat[0]["content"] == prompts.system_message(config)
    shown, seen = codec.prompt(chat[:-1]), prompts_seen[-1]
    assert [token for token in shown if token != ASK] == [token for token in seen if token != ASK]
    assert (chat[-1]["content"], episode["tools"]) == (COMPLETE, [])
    kept = (episode["task"], episode["batch"], episode["reward"], episode["end_reason"])
    assert kept == ("tiny", 2, 1.0, "completed")


def test_an_agents_calls_are_calls_and_what_follows_is_their_result(tmp_path: Path) -> None:
    tool = ToolDefinition("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
    calls = [ToolCall("read", '{"path": "a"}'), ToolCall("read", '{"path": "b"}')]
    turns = [
        Turn("Do it.", write_calls("I look.", calls), INFO, 0.0),
        Turn("content", write_calls("", calls[:1]), INFO, 0.0),
        Turn("more", "Done: <tool_call> is a tag.", INFO, 1.0),
    ]
    transcript = Transcript(turns, system_prompt="You are an agent.", tools=[tool_schema(tool)])
    write_transcript(tmp_path / PLACE, transcript, labels={"task": "tiny"})
    (episode,) = messages(tmp_path)
    chat: list[dict[str, Any]] = episode["messages"]
    assert episode["tools"] == [tool_schema(tool)]
    assert [item["role"] for item in chat] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant")
    ]
    first, second = chat[2]["tool_calls"]
    assert (chat[2]["content"], first["type"], first["function"]) == (
        "I look.",
        "function",
        {"name": "read", "arguments": '{"path": "a"}'},
    )
    assert [item["tool_call_id"] for item in chat[3:5]] == [first["id"], second["id"]]
    assert [item["content"] for item in chat[3:5]] == ["[see the last call's result]", "content"]
    assert chat[6] == {"role": "tool", "tool_call_id": chat[5]["tool_calls"][0]["id"], "content": "more"}
    assert chat[7] == {"role": "assistant", "content": "Done: <tool_call> is a tag."}
    names = [call["id"] for item in chat for call in item.get("tool_calls", ())]
    assert len(set(names)) == 3


def test_a_lost_episode_has_no_reward_and_an_incomplete_transcript_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_transcript(tmp_path / PLACE, Transcript([Turn("see", "act", INFO, 0.0)]), labels={}, error="it went away")
    broken = tmp_path / "transcripts/train/broken.json"
    broken.write_text('{"turns": [')
    (episode,) = messages(tmp_path)
    assert (episode["reward"], episode["error"]) == (None, "it went away")
    assert caplog.messages == [f"1 of 2 transcripts can't be read and are left out: {broken}"]
    with pytest.raises(UsageError, match="has no transcript"):
        messages(tmp_path / "none")


AGENTS = "tests.helpers.gateway.format_agent"


@pytest.mark.parametrize("agent", ["ToolAgent", "FormatAgent"])
async def test_an_agents_transcript_has_its_system_prompt_and_its_tools(agent: str, tmp_path: Path) -> None:
    task = write_tiny_task(tmp_path / "task")
    answers = (tool_call(command="ls"), "Done.") if agent == "ToolAgent" else (message("ls\n"), COMPLETE, COMPLETE)
    config = {"agent": f"{AGENTS}:{agent}", "agent_options": {"base_url": "{gateway_url}"}, "sandbox": FAKE}
    rollout = await RolloutInterface(config, TurnPolicy(*answers), ThinkingCodec()).run_one(task)
    assert rollout.error is None
    write_transcript(tmp_path / "run" / PLACE, rollout.transcript, labels={"task": "tiny"})
    (episode,) = messages(tmp_path / "run")
    roles = [item["role"] for item in episode["messages"]]
    if agent == "ToolAgent":
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert episode["tools"] == [tool_schema(TERMINAL_TOOLS[0])]
        assert episode["messages"][1]["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
        return
    assert roles[:3] == ["system", "user", "assistant"]
    assert episode["messages"][0]["content"]
    assert episode["tools"] == []
