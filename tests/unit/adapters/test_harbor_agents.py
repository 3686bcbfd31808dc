"""Agents by name or class: the list, the place where each runs, and its needs, before a sandbox starts."""

import os
from typing import Any

import pytest
from harbor.agents.factory import AgentFactory
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.models.agent.name import AgentName
from harbor.models.trial.config import AgentConfig

from harbor_gym._runtime.harbor_versions import VERSION
from harbor_gym.adapters.harbor.agents import (
    URL_MARK,
    point_at_session,
    require_agent,
    require_terminus_json,
    runs_in_sandbox,
)
from harbor_gym.config import AgentEpisodeConfig
from harbor_gym.errors import UsageError
from harbor_gym.gateway import Gateway, SessionLimits
from harbor_gym.gateway.agents import AGENTS
from tests.helpers.gateway.clients import Script, ThinkingCodec

FORMAT_AGENT = "tests.helpers.gateway.format_agent:FormatAgent"
PRICES = "LITELLM_LOCAL_MODEL_COST_MAP"
"""Whether litellm uses the prices that it has, and not the internet's."""


def agent_of(name: str, options: Any = None) -> AgentConfig:
    return require_agent(AgentEpisodeConfig(task_dir="", agent=name, agent_options=options or {}))


@pytest.mark.parametrize("name", AGENTS)
def test_a_listed_agent_is_one_of_harbors_and_runs_where_it_states(name: str) -> None:
    assert name in AgentName.values()
    assert agent_of(name) == AgentConfig(name=name)
    is_installed = name != "terminus-2" and issubclass(
        AgentFactory.get_agent_class_from_config(AgentConfig(name=name)), BaseInstalledAgent
    )
    assert AGENTS[name].runs_in_sandbox is is_installed


def test_other_agents_name_the_place_of_their_address() -> None:
    options = {"base_url": URL_MARK, "tries": 3}
    own = agent_of(FORMAT_AGENT, options)
    assert own == AgentConfig(import_path=FORMAT_AGENT, kwargs=options)
    assert not runs_in_sandbox(own)
    assert runs_in_sandbox(agent_of("opencode", {"base_url": [URL_MARK]}))
    for name in (FORMAT_AGENT, "opencode"):
        with pytest.raises(UsageError, match="gateway_url"):
            agent_of(name, {"tries": 3})


has_base_url = pytest.mark.skipif(VERSION < (0, 25), reason="Harbor's agents have a base_url since 0.25")


@has_base_url
@pytest.mark.parametrize("agent", [{"name": "opencode"}, {"name": "terminus-2"}, {"import_path": FORMAT_AGENT}])
async def test_an_agents_own_field_may_hold_its_address(agent: dict[str, str]) -> None:
    given = AgentConfig.model_validate({**agent, "base_url": f"{URL_MARK}/v1"})
    async with Gateway(Script(), ThinkingCodec(), model="policy") as gateway:
        session = gateway.open_session()
        pointed = point_at_session(given, session, model="policy", in_sandbox=False, limits=SessionLimits())
        assert pointed.model_dump()["base_url"] == f"{session.base_url}/v1"


@pytest.mark.parametrize("agent", [{"name": "codex"}, {"name": "terminus-2"}, {"import_path": FORMAT_AGENT}])
async def test_every_agents_options_and_variables_may_hold_its_address(agent: dict[str, str]) -> None:
    given = AgentConfig.model_validate({**agent, "kwargs": {"url": URL_MARK}, "env": {"URL": URL_MARK}})
    async with Gateway(Script(), ThinkingCodec(), model="policy") as gateway:
        session = gateway.open_session()
        pointed = point_at_session(given, session, model="policy", in_sandbox=False, limits=SessionLimits())
        assert (pointed.kwargs["url"], pointed.env["URL"]) == (session.base_url, session.base_url)


@has_base_url
@pytest.mark.parametrize("agent", [{"name": "codex"}, {"name": "terminus-2"}, {"import_path": FORMAT_AGENT}])
async def test_an_agent_that_would_ask_another_model_is_refused(agent: dict[str, str]) -> None:
    """Nothing of it would be recorded, and its reward would be one without calls."""
    given = AgentConfig.model_validate({**agent, "base_url": "https://other.example/v1", "kwargs": {"url": URL_MARK}})
    async with Gateway(Script(), ThinkingCodec(), model="policy") as gateway:
        with pytest.raises(UsageError, match=r"asks the model at https://other\.example/v1"):
            point_at_session(given, gateway.open_session(), model="policy", in_sandbox=False, limits=SessionLimits())


def test_an_agent_that_is_imported_asks_nobody_for_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRICES, "")
    monkeypatch.delenv(PRICES)
    agent_of(FORMAT_AGENT, {"base_url": URL_MARK})
    assert os.environ[PRICES] == "True"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("terminus2", "did you mean terminus-2"),
        ("qwen-code", "did you mean qwen-coder"),
        ("zzz", "those that ran here are .*terminus-2"),
        ("tests.nowhere:Agent", "tests.nowhere"),
        ("tests.helpers.tasks:Nothing", "Nothing"),
        ("tests.helpers.tasks:DONE", "must be a class"),
    ],
)
def test_what_is_no_agent_is_named(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent_of(name, {"base_url": URL_MARK})


def test_the_embedded_policy_is_for_terminus_2_and_for_agents_of_ones_own() -> None:
    require_terminus_json(AgentConfig(name="terminus-2"))
    require_terminus_json(AgentConfig(import_path=FORMAT_AGENT))
    for name in AGENTS.keys() - {"terminus-2"}:
        with pytest.raises(UsageError, match=f"{name} does not read"):
            require_terminus_json(AgentConfig(name=name))
