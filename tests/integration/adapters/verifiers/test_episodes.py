"""Episodes of our plugin in verifiers' own environment, with real HTTP between its client and a token-id server."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import HFCodec
from harbor_gym.pool import WarmPool
from tests.contract.players.episode import Script
from tests.helpers.chats.chat_templates import QWEN3
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engine_double import EngineDouble
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, fake_config, message
from tests.helpers.verifiers.episodes import PLUGIN, env_config, run_episodes

pytestmark = [pytest.mark.verifiers, pytest.mark.usefixtures("nothing_left")]

TERMINAL = {"confirm_task_complete": False}
ENDLESS = Script((message("true\n"),))
SOLVED = Script((message("echo hello\n"), COMPLETE))


async def play(
    tmp_path: Path,
    model_dir: str,
    server: EngineDouble,
    *,
    steps: int = 0,
    terminal: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    harness: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Play one episode of a tiny task in a fake sandbox and return its trace."""
    task = fake_config(tmp_path / "task", steps=steps).task_dir
    harness = harness or {}
    terminal = {**({} if "agent" in harness else TERMINAL), **(terminal or {})}
    own = {"sandbox": FAKE, "sandbox_options": dict(options or {}), "terminal_env": terminal}
    env = env_config([task], {**own, **harness}, agent)
    (episode,) = await run_episodes(server, env, model_dir=model_dir, **settings)
    assert not episode.errors or not episode.ok
    (trace,) = episode.traces
    return trace


async def test_a_trace_is_one_branch_of_the_servers_own_tokens(tmp_path: Path, model_dir: str) -> None:
    server = EngineDouble(SOLVED)
    trace = await play(tmp_path, model_dir, server, options={"rewards": {"reward": 0.5, "tidy": 1.0}})
    (branch,) = trace.branches
    assert (trace.ok, trace.num_turns, trace.stop_condition) == (True, 2, "agent_completed")
    assert tuple(branch.token_ids) in server.conversations
    sampled = [token for token, kept in zip(branch.token_ids, branch.sampled_mask, strict=True) if kept]
    assert sampled == [token for exchange in server.exchanges for token in exchange.sampled]
    logprobs = [item for item, kept in zip(branch.logprobs, branch.sampled_mask, strict=True) if kept]
    assert logprobs == [item for exchange in server.exchanges for item in exchange.logprobs]
    assert {name: reward.value for name, reward in trace.rewards.items()} == {"reward": 0.5}
    assert trace.metrics["verifier/tidy"] == 1.0
    assert trace.metrics["time/sandbox_start_sec"] >= 0.0


async def test_an_evaluation_has_one_branch_whatever_the_endpoint_sends_beside_the_text(
    tmp_path: Path, model_dir: str
) -> None:
    codec = HFCodec(byte_level_tokenizer(), QWEN3)
    details = [{"type": "reasoning.text", "text": "hm", "format": "x", "index": 0}]
    server = EngineDouble(SOLVED, codec=codec)
    server.changes = {"reasoning_details": details}
    trace = await play(tmp_path, model_dir, server, client="eval")
    assert (trace.ok, trace.reward, len(trace.branches)) == (True, 1.0, 1)
    assert server.requests[1]["messages"][2]["reasoning_details"] == details


async def test_thinking_stays_in_the_trace(tmp_path: Path, model_dir: str) -> None:
    server = EngineDouble(Script((f"<think>\nhm\n</think>\n\n{message('true')}", COMPLETE)))
    trace = await play(tmp_path, model_dir, server)
    (branch,) = trace.branches
    assert trace.assistant_messages[0].reasoning_content == "hm"
    assert tuple(branch.token_ids) in server.conversations


async def test_tools_are_declared_called_and_answered_in_their_role(tmp_path: Path, model_dir: str) -> None:
    calls = [{"name": "bash", "arguments": {"command": "echo seen"}}, {"name": "submit", "arguments": {}}]
    answers = tuple(f"<tool_call>\n{json.dumps(item)}\n</tool_call>" for item in calls)
    server = EngineDouble(Script(answers))
    trace = await play(tmp_path, model_dir, server, terminal={"action_format": "bash-tool"})
    (branch,) = trace.branches
    assert (trace.ok, trace.reward, trace.num_turns) == (True, 1.0, 2)
    assert [item.role for item in trace.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert "seen" in trace.tool_messages[0].content
    assert [tool.name for tool in trace.tools] == ["bash", "submit"]
    assert tuple(branch.token_ids) in server.conversations


async def test_a_policy_may_stop_calling_tools(tmp_path: Path, model_dir: str) -> None:
    harness = {"ends_without_tool_call": True}
    server = EngineDouble(Script(("I am done.",)))
    trace = await play(tmp_path, model_dir, server, terminal={"action_format": "bash-tool"}, harness=harness)
    assert (trace.ok, trace.stop_condition, trace.num_turns) == (True, "agent_completed", 1)


SENTENCES = message(f"echo {'x' * 400}\n")
STOPS: Mapping[str, tuple[Script, dict[str, Any], str, bool]] = {
    "our turns": (ENDLESS, {"terminal": {"max_turns": 2}}, "max_turns", True),
    "verifiers' turns": (ENDLESS, {"agent": {"max_turns": 2}}, "max_turns", True),
    "its sampled tokens": (ENDLESS, {"agent": {"max_output_tokens": 10}}, "max_output_tokens", True),
    "its prompt's tokens": (ENDLESS, {"agent": {"max_input_tokens": 10}}, "max_input_tokens", True),
    "its tokens": (ENDLESS, {"agent": {"max_total_tokens": 10}}, "max_total_tokens", True),
    "a cut message": (Script((message("true\n"),), cut_at=1), {}, "max_output_tokens", True),
    "our time": (
        ENDLESS,
        {"terminal": {"time_limit_sec": 0.01}, "options": {"delay_sec": 0.02}},
        "agent_timeout",
        False,
    ),
    "unreadable": (Script(("hm",)), {}, "parse_failures", False),
    "left the shell": (Script((message("exit\n"),)), {}, "session_ended", False),
    "gave up": (Script((COMPLETE,)), {}, "agent_completed", False),
}
"""Sampler, settings, verifiers' word, and whether that counts as truncated."""


@pytest.mark.parametrize("name", STOPS)
async def test_every_end_has_its_stop_word_and_is_graded(name: str, tmp_path: Path, model_dir: str) -> None:
    script, settings, word, is_truncated = STOPS[name]
    options = {"rewards": 0.5, **settings.pop("options", {})}
    trace = await play(tmp_path, model_dir, EngineDouble(script), options=options, **settings)
    assert (trace.stop_condition, trace.is_truncated) == (word, is_truncated)
    assert trace.is_timeout is (word == "agent_timeout")
    assert (trace.ok, trace.reward, len(trace.branches)) == (True, 0.5, 1)


async def test_a_task_of_several_steps_is_paid_once(tmp_path: Path, model_dir: str) -> None:
    options = {"rewards": {"reward": 1.0, "tidy": 0.5}}
    trace = await play(tmp_path, model_dir, EngineDouble(Script((COMPLETE,))), steps=3, options=options)
    assert (trace.ok, trace.reward, trace.num_turns) == (True, 1.0, 3)
    steps = {name: value for name, value in trace.metrics.items() if name.startswith("verifier/step_")}
    assert steps == {
        f"verifier/step_{number}/{key}": value for number in (1, 2, 3) for key, value in options["rewards"].items()
    }
    assert [item.role for item in trace.messages].count("user") == 3


@pytest.mark.parametrize(
    ("point", "stop", "kind", "words"),
    [
        ("verifier", "task_error", "TaskError", "verifier_error: VerifierError: "),
        ("exec", "sandbox_error", "SandboxError", "sandbox_lost: "),
    ],
)
async def test_a_lost_episode_has_verifiers_words(
    point: str, stop: str, kind: str, words: str, tmp_path: Path, model_dir: str
) -> None:
    trace = await play(tmp_path, model_dir, EngineDouble(SOLVED), options={"fail": {point: 1}})
    assert (trace.ok, trace.has_error, trace.stop_condition) == (False, True, stop)
    assert all(reward is None for reward in trace.rewards.values())
    assert {error.type for error in trace.errors} == {kind}
    assert all(error.message.startswith(words) for error in trace.errors)


def failing(status: int) -> EngineDouble:
    server = EngineDouble(SOLVED)
    server.always = status
    return server


async def test_an_engine_that_fails_is_its_error_and_no_reward(tmp_path: Path, model_dir: str) -> None:
    trace = await play(tmp_path, model_dir, failing(400))
    assert (trace.ok, trace.stop_condition) == (False, "provider_error")
    assert trace.errors[-1].status_code == 400


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_engine_that_fails_once_is_asked_again(status: int, tmp_path: Path, model_dir: str) -> None:
    server = EngineDouble(SOLVED)
    server.modes = [status]
    trace = await play(tmp_path, model_dir, server)
    assert (trace.ok, trace.reward, trace.errors) == (True, 1.0, [])
    assert len(server.requests) == len(server.exchanges) + 1


async def test_an_engine_that_stays_broken_costs_one_more_attempt(tmp_path: Path, model_dir: str) -> None:
    server = failing(500)
    trace = await play(tmp_path, model_dir, server)
    assert (trace.ok, trace.reward, server.exchanges) == (False, 0.0, [])
    assert [(error.type, error.status_code) for error in trace.errors] == [("ProviderError", 500)] * 2


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_key_or_a_model_that_is_refused_is_not_asked_for_again(
    status: int, tmp_path: Path, model_dir: str
) -> None:
    server = failing(status)
    trace = await play(tmp_path, model_dir, server)
    assert (trace.ok, [error.status_code for error in trace.errors]) == (False, [status])
    assert len(server.requests) == 1


@pytest.mark.parametrize("agent", [None, "tests.helpers.gateway.format_agent:FormatAgent"])
async def test_what_was_refused_once_is_asked_for_by_no_later_episode(
    agent: str | None, tmp_path: Path, model_dir: str
) -> None:
    server = failing(401)
    config = {} if agent is None else {"agent": {"import_path": agent, "kwargs": {"base_url": "{gateway_url}"}}}
    env = env_config([fake_config(tmp_path / "task").task_dir], {"sandbox": FAKE, **config})
    first, *later = await run_episodes(server, env, model_dir=model_dir, episodes=4, at_once=1)
    assert [error.status_code for error in first.traces[0].errors] == [401]
    assert len(server.requests) == 1
    for episode in later:
        (error,) = episode.traces[0].errors
        assert error.type == "HarnessError"
        assert re.match(r"usage_error: .*not played: policy was refused in an earlier episode \(.*401", error.message)


async def test_a_timeout_of_verifiers_leaves_no_verdict(tmp_path: Path, model_dir: str) -> None:
    agent = {"timeout": {"rollout": 0.2}}
    trace = await play(tmp_path, model_dir, EngineDouble(ENDLESS), terminal={"max_turns": None}, agent=agent)
    assert (trace.ok, trace.is_timeout, trace.reward) == (False, True, 0.0)
    assert "no verdict" in trace.errors[-1].message


async def test_sandboxes_of_a_pool_are_shared_by_a_group(
    tmp_path: Path, model_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: set[WarmPool] = set()
    start = WarmPool.start

    def note(pool: WarmPool) -> None:
        pools.add(pool)
        start(pool)

    monkeypatch.setattr(WarmPool, "start", note)
    task = fake_config(tmp_path / "task").task_dir
    harness = {"sandbox": FAKE, "pool_size": 2, "terminal_env": TERMINAL}
    episodes = await run_episodes(EngineDouble(SOLVED), env_config([task], harness), model_dir=model_dir, episodes=6)
    traces = [trace for episode in episodes for trace in episode.traces]
    assert [trace.reward for trace in traces] == [1.0] * 6
    assert all("pool/wait_sec" in trace.metrics for trace in traces)
    assert [pool.is_closed for pool in pools] == [True], "with the environment"


async def test_a_foreign_agent_is_graded_when_verifiers_turns_are_spent(tmp_path: Path, model_dir: str) -> None:
    kwargs = {"base_url": "{gateway_url}"}
    agent = {"import_path": "tests.helpers.gateway.format_agent:FormatAgent", "kwargs": kwargs}
    trace = await play(tmp_path, model_dir, EngineDouble(ENDLESS), harness={"agent": agent}, agent={"max_turns": 2})
    assert (trace.ok, trace.reward, trace.num_turns, trace.stop_condition) == (True, 1.0, 2, "max_turns")


@pytest.mark.parametrize(
    ("harness", "words"),
    [
        ({"terminal_env": {"max_turn": 3}}, "max_turn: Extra inputs are not permitted"),
        ({"sandbox": "lokal"}, "no sandbox is called 'lokal'; did you mean local"),
        ({"terminal_env": {"step_rewards": True}}, "terminal_env can't set step_rewards"),
        ({"terminal_env": {"action_format": "keystrokes"}}, "strip white space around a message"),
        ({"terminal_env": {"agent": "terminus-2", "action_format": "bash-tool"}}, "action_format: for our own loop"),
        ({"agent": {"name": "terminus-2"}, "pool_size": 2}, "leave pool_size out"),
        ({"terminal_env": {"harbor_server": "http://127.0.0.1:1"}}, "for the episodes of one of Harbor's agents"),
    ],
)
def test_settings_that_can_not_be_used_are_refused_when_they_are_read(harness: dict[str, Any], words: str) -> None:
    from verifiers.v1.utils.loaders import resolve_env_config

    with pytest.raises(ValueError, match=words):
        resolve_env_config(env_config(["task"], harness))


def test_the_harness_is_ours_unless_it_is_named() -> None:
    from verifiers.v1.utils.loaders import resolve_env_config

    for agent in ({}, {"max_turns": 3}, {"harness": {"sandbox": "local"}}):
        config: Any = resolve_env_config({"taskset": {"id": PLUGIN, "tasks": ["task"]}, "agent": agent})
        assert config.agent_harnesses()["agent"].id == PLUGIN
        assert config.agent.runtime.type == "subprocess"
        assert config.agent.retries.rules
