"""A demonstrator behind the gateway: an agent's calls to its model become the conversations of a warm start."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.config import AgentConfig

from harbor_gym import TerminalEnvConfig
from harbor_gym.embedded import policy_key
from harbor_gym.embedded.agent_demonstrations import ChatLines, play_with_agent
from harbor_gym.embedded.demonstrations import play_demonstrations, play_in_env
from harbor_gym.embedded.demonstrator import Demonstration, Demonstrator, Script
from harbor_gym.errors import SandboxStartError, UsageError
from harbor_gym.types import ChatMessage, EndReason
from tests.helpers.engines import require_engine
from tests.helpers.sandboxes.fake_episodes import by_agent, fake_config
from tests.helpers.tasks import DONE, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

AGENT = AgentConfig(import_path="tests.helpers.gateway.format_agent:FormatAgent", kwargs={"base_url": "{gateway_url}"})


def move(keystrokes: str | None, following: str | None = None) -> dict[str, Any]:
    moves = {"kind": "good", "weight": 1, "analysis": "a", "plan": "p", "keystrokes": keystrokes, "next": following}
    return {"moves": [moves]}


def script(*, max_turns: int = 4) -> Script:
    stages = {"start": move("true\n", "work"), "work": move(DONE, "end"), "end": move(None)}
    return Script.model_validate(
        {"format_version": 1, "max_turns": max_turns, "first_stage": "start", "stages": stages}
    )


def demonstrator(**settings: Any) -> Demonstrator:
    return Demonstrator(script(**settings), random.Random(0))


def solvable(folder: Path, **settings: Any) -> TerminalEnvConfig:
    return fake_config(write_task(folder), solved_when={"/srv/answer": "done"}, **settings)


async def in_our_loop(config: TerminalEnvConfig) -> Demonstration:
    """The agent asks for no second ``task_complete``; our loop would."""
    return await play_in_env(config, demonstrator())


async def test_an_agent_with_our_prompts_records_our_conversation(tmp_path: Path) -> None:
    config = solvable(tmp_path / "task")
    played = await play_with_agent(by_agent(config, AGENT), demonstrator())
    assert (played.reward, played.turns, played.end_reason) == (1.0, 3, EndReason.COMPLETED)
    assert played == await in_our_loop(config)


async def test_a_turn_budget_ends_it_with_the_last_answer(tmp_path: Path) -> None:
    config = solvable(tmp_path / "task", max_turns=2)
    played = await play_with_agent(by_agent(config, AGENT), demonstrator())
    assert (played.reward, played.turns, played.end_reason) == (1.0, 2, EndReason.MAX_TURNS)
    assert [message["role"] for message in played.messages[-3:]] == ["assistant", "user", "assistant"]


async def test_a_lost_sandbox_is_no_demonstration(tmp_path: Path) -> None:
    with pytest.raises(SandboxStartError):
        await play_with_agent(by_agent(solvable(tmp_path / "task", fail={"start": 1}), AGENT), demonstrator())


def test_lines_keep_every_text() -> None:
    codec = ChatLines()
    text = 'a "quoted"\nline, ünï\u2028code\x85 and \ud83d'
    first = codec.prompt([ChatMessage(role="system", content=text), ChatMessage(role="user", content="")])
    answer = codec.line("assistant", text)
    messages = codec.messages([*first, *answer, *codec.next_turn(answer, text)])
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", text),
        ("user", ""),
        ("assistant", text),
        ("user", text),
    ]
    assert codec.text(answer) == text


async def test_agents_with_tools_are_refused_before_anything_starts(tmp_path: Path) -> None:
    for agent in ("claude-code", AgentConfig(name="mini-swe-agent")):
        with pytest.raises(UsageError, match="--model-name"):
            await play_demonstrations(tmp_path, sandbox="local", agent=agent)


def test_each_agent_has_a_policy_of_its_own(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    other = AGENT.model_copy(update={"kwargs": {**AGENT.kwargs, "more": 1}})
    agents = (None, "terminus-2", AgentConfig(name="terminus-2"), AGENT, other)
    assert len({policy_key(task, "qwen3", agent, 0) for agent in agents}) == len(agents)


@pytest.mark.tinker
@pytest.mark.server
async def test_the_warm_start_sees_the_tokens_of_an_episode(tmp_path: Path) -> None:
    """The conversation in tokens is, one by one, that of the cookbook's environment with the same answers."""
    for engine in ("server", "tinker"):
        require_engine(engine)
    from harbor_gym.adapters.tinker import HarborAgentTinkerEnv, RendererCodec
    from harbor_gym.embedded import warm_start
    from tests.helpers.chats.tokenizers import byte_level_tokenizer

    tokenizer: Any = byte_level_tokenizer()
    config = solvable(tmp_path / "task")
    played = await play_with_agent(by_agent(config, AGENT), demonstrator())
    row = warm_start.conversation_encoder(tokenizer, "qwen3_instruct")(played.messages)

    from tinker_cookbook.renderers import get_renderer

    codec = RendererCodec(get_renderer("qwen3_instruct", tokenizer))
    env = HarborAgentTinkerEnv(by_agent(config, AGENT), codec, max_tokens=500)
    (end,) = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    first = await env.initial_observation()
    assert isinstance(first, tuple)
    prompt, whole, is_done = first[0].to_ints(), list[int](), False
    answers = [message["content"] for message in played.messages if message["role"] == "assistant"]
    for answer in answers:
        sampled = [*tokenizer.encode(answer, add_special_tokens=False), end]
        whole = [*prompt, *sampled]
        step = await env.step(sampled)
        prompt, is_done = step.next_observation.to_ints(), step.episode_done
    assert is_done
    assert row.tokens == whole


@pytest.mark.local
@pytest.mark.slow
async def test_terminus_2_types_the_moves(tmp_path: Path) -> None:
    require_engine("local")
    task = write_task(tmp_path / "task")
    moves = task / "demonstrations/moves.json"
    moves.parent.mkdir()
    moves.write_text(json.dumps(script(max_turns=9).model_dump()))
    played = await play_demonstrations(task, sandbox="local", agent="terminus-2", episodes=2, concurrency=2)
    assert [(item.reward, item.turns, item.end_reason) for item in played] == [(1.0, 4, EndReason.COMPLETED)] * 2
    for item in played:
        assert [message["role"] for message in item.messages] == [*["user", "assistant"] * 4]
        assert item.messages[0]["content"].startswith("You are an AI assistant tasked with solving command-line tasks")
        assert "Are you sure you want to mark the task as complete?" in item.messages[-2]["content"]
