"""Real Harbor trials with agents that speak to the gateway."""

import json
import shutil
from pathlib import Path

import pytest
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from harbor_gym.errors import UsageError
from harbor_gym.gateway import Gateway, SessionLimits
from harbor_gym.gateway.agents import AGENTS, agent_config
from harbor_gym.gateway.trials import end_agent_on_limit, open_tunnel_for_agent, sandbox_url
from harbor_gym.sandboxes import environment_config
from harbor_gym.types import EndReason
from tests.helpers.chats.character_codec import CharacterCodec
from tests.helpers.engines import find_agent
from tests.helpers.gateway.clients import THOUGHT, Script, ThinkingCodec, text_of, tool_call, trained_text
from tests.helpers.gateway.inner_agent import INNER_AGENT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, write_task


async def make_trial(task_dir: Path, agent: AgentConfig) -> Trial:
    return await Trial.create(
        TrialConfig(
            task=TaskConfig(path=task_dir),
            trials_dir=task_dir.parent / "trials",
            agent=agent,
            environment=environment_config("local"),
        )
    )


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.parametrize("codec", [CharacterCodec(), ThinkingCodec()], ids=["plain", "thinking"])
async def test_terminus_2(codec: CharacterCodec, tmp_path: Path) -> None:
    answers = [THOUGHT + message(DONE), THOUGHT + COMPLETE, THOUGHT + COMPLETE]
    task = write_task(tmp_path / "task")
    async with Gateway(Script(*answers, repeats=True), codec, model="policy") as gateway:
        session = gateway.open_session(name="terminus")
        result = await (await make_trial(task, agent_config("terminus-2", session.base_url))).run()
    assert result.exception_info is None, result.exception_info
    assert result.verifier_result is not None
    assert result.verifier_result.rewards == {"reward": 1.0}
    (segment,) = session.segments
    assert trained_text(session) == "".join(f"{answer}\x00" for answer in answers)
    assert "Write the word done" in text_of(segment.prompt)
    assert not session.breaks
    assert session.error is None


@pytest.mark.local
@pytest.mark.slow
async def test_a_spent_budget_ends_the_agent_and_is_verified(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    async with Gateway(
        Script(message(DONE), message("true\n"), repeats=True), CharacterCodec(), model="policy"
    ) as gateway:
        session = gateway.open_session(limits=SessionLimits(max_turns=3))
        trial = await make_trial(task, agent_config("terminus-2", session.base_url))
        end_agent_on_limit(trial, session)
        result = await trial.run()
    assert session.end_reason is EndReason.MAX_TURNS
    assert len(session.calls) == 3
    assert result.exception_info is not None
    assert result.exception_info.exception_type == "AgentTimeoutError"
    assert result.verifier_result is not None
    assert result.verifier_result.rewards == {"reward": 1.0}


@pytest.mark.local
async def test_an_agent_in_a_sandbox_without_a_network(tmp_path: Path) -> None:
    """A container's tunnel: ``test_tunnel.py``."""
    look = f"{THOUGHT}I look.\n{tool_call(command='pwd')}{tool_call(command='id -un')}"
    write = THOUGHT + tool_call(command=DONE.strip())
    task = write_task(tmp_path / "task", toml='[environment]\nnetwork_mode = "no-network"\n')
    async with Gateway(Script(look, write, "done", repeats=True), ThinkingCodec(), model="policy") as gateway:
        session = gateway.open_session(name="inner")
        agent = AgentConfig(import_path=INNER_AGENT, kwargs={"url": sandbox_url(session)})
        trial = await make_trial(task, agent)
        open_tunnel_for_agent(trial, gateway, session)
        result = await trial.run()
    assert result.exception_info is None, result.exception_info
    assert result.verifier_result is not None
    assert result.verifier_result.rewards == {"reward": 1.0}
    (segment,) = session.segments
    assert trained_text(session) == f"{look}\x00{write}\x00done\x00"
    assert "<tool_response>\n/srv\n\n</tool_response>\n<tool_response>\nroot\n" in text_of(segment.token_ids)


@pytest.mark.local
@pytest.mark.slow
async def test_claude_code_in_a_sandbox_without_a_network(tmp_path: Path) -> None:
    """Harbor's agent unmodified; its program is the machine's, which is one file."""
    program = find_agent("claude")
    answers = [THOUGHT + tool_call("Bash", command=DONE.strip(), description="write"), f"{THOUGHT}Done."]
    dockerfile = "FROM debian:bookworm-slim\nCOPY claude /usr/local/bin/claude\nWORKDIR /srv\n"
    no_network = '[environment]\nnetwork_mode = "no-network"\n'
    task = write_task(tmp_path / "task", dockerfile=dockerfile, toml=no_network)
    shutil.copy(program, task / "environment/claude")
    async with Gateway(Script(*answers, repeats=True), ThinkingCodec(), model="policy") as gateway:
        session = gateway.open_session(limits=SessionLimits(max_turns=9))
        trial = await make_trial(task, agent_config("claude-code", sandbox_url(session)))
        open_tunnel_for_agent(trial, gateway, session)
        end_agent_on_limit(trial, session)
        result = await trial.run()
    assert result.exception_info is None, result.exception_info
    assert result.verifier_result is not None
    assert result.verifier_result.rewards == {"reward": 1.0}
    assert trained_text(session) == "".join(f"{answer}\x00" for answer in answers)
    assert len(session.trained_segments) == 1


@pytest.mark.parametrize("name", AGENTS)
def test_configurations(name: str) -> None:
    config = agent_config(name, "http://127.0.0.1:1/s/key", kwargs={"extra": 1}, env={"MORE": "1"})
    dumped = json.dumps(config.model_dump(mode="json"))
    assert "http://127.0.0.1:1/s/key" in dumped
    assert config.kwargs["extra"] == 1
    assert config.env["MORE"] == "1"
    assert (config.model_name or "").endswith("/policy")


def test_an_unknown_agent() -> None:
    with pytest.raises(UsageError, match="terminus-2"):
        agent_config("nobody", "http://127.0.0.1:1")
