"""Every earlier name of a setting still means what its present name means."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.adapters.harbor.settings import EpisodeSettings
from harbor_gym.adapters.nemo_gym.settings import DatasetSettings, RequestOverrides, RolloutSettings
from harbor_gym.adapters.tinker.policies import EvalConfig
from harbor_gym.adapters.tinker.training.config import TrainConfig
from harbor_gym.config import AgentEpisodeConfig, TerminalEnvConfig, aliases
from harbor_gym.config.aliases import moved
from harbor_gym.errors import UsageError
from harbor_gym.evaluation import ChatPlayer
from harbor_gym.gateway import SessionLimits
from tests.helpers.gateway.clients import Script, ThinkingCodec

VALUES: dict[str, Any] = {
    "agent": "terminus-2",
    "agent_options": {"one": 1},
    "agent_kwargs": {"one": 1},
    "agent_in_sandbox": True,
    "train_segments": "all",
    "max_rollout_retries": 2,
    "retries": 2,
    "concurrency": 3,
    "sandbox": "docker",
    "sandbox_options": {"one": 1},
    "time_limit_sec": 9.0,
    "reward_key": "speed",
    "reward_function": "mean",
    "zero_reward_on_limit": True,
    "harbor_server": "http://127.0.0.1:1",
    "trials_dir": Path("kept"),
    "verify_paths": "off",
    "keep_agent_processes": True,
    "ambiguous_failures": "infrastructure",
    "max_turns": 7,
    "terminal_env": {"max_turns": 8},
    "env_settings": {"max_turns": 8},
    "harbor_agent": "terminus-2",
    "harbor_agent_kwargs": {"one": 1},
    "harbor_agent_timeout": 9.0,
    "require_audit": Path("audit"),
    "refused_findings": "warning",
}
"""A value for each earlier name."""

TABLES = [name for name, table in vars(aliases).items() if name.isupper() and not name.startswith("_") and table]


def names() -> list[Any]:
    return [pytest.param(table, name, id=f"{table}-{name}") for table in TABLES for name in getattr(aliases, table)]


@pytest.fixture(autouse=True)
def _any_harbor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Harbor's server, which a setting names, need not be one of the installed Harbor's."""
    for module in ("settings", "interface"):
        monkeypatch.setattr(f"harbor_gym.adapters.harbor.{module}.require_server", lambda: None)


def there(settings: Any, place: str) -> Any:
    for step in place.split("."):
        settings = settings[step] if isinstance(settings, dict) else getattr(settings, step)
    return settings


@pytest.mark.parametrize(("table", "name"), names())
def test_a_value_stands_in_its_present_place(table: str, name: str) -> None:
    place: str = getattr(aliases, table)[name]
    found = moved({name: VALUES[name], "other": 1}, getattr(aliases, table))
    assert name == place.partition(".")[0] or name not in found
    held = there(found, place)
    assert held == VALUES[name]
    assert found["other"] == 1


def with_agent(name: str) -> dict[str, Any]:
    """Return the agent that a setting of agents needs, by the name that is not under test."""
    agents = AgentEpisodeConfig.model_fields.keys() - TerminalEnvConfig.model_fields.keys() | {"agent_kwargs"}
    return {"env": {"agent": "terminus-2"}} if name in agents | {"harbor_agent_kwargs"} else {}


@pytest.mark.parametrize("name", aliases.TRAIN)
def test_a_training_run(name: str) -> None:
    env = {"task_dir": "x", **with_agent(name).get("env", {})}
    assert there(TrainConfig(env=env, **{name: VALUES[name]}), aliases.TRAIN[name]) == VALUES[name]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", aliases.EVALUATION)
def test_an_evaluation(name: str) -> None:
    env = {"task_dir": "x", **with_agent(name).get("env", {})}
    found = EvalConfig(paths=("x",), env=env, **{name: VALUES[name]})  # pyright: ignore[reportArgumentType]
    assert there(found, aliases.EVALUATION[name]) == VALUES[name]


@pytest.mark.parametrize("name", aliases.TRAINER)
def test_a_trainers_section(name: str) -> None:
    section = {**with_agent(name), name: VALUES[name]}
    for settings in (EpisodeSettings.read(section, "the section"), EpisodeSettings(**section)):
        assert there(settings, aliases.TRAINER[name]) == VALUES[name]


@pytest.mark.parametrize("name", aliases.NEMO_GYM)
def test_nemo_gyms_server_datasets_and_rows(name: str) -> None:
    place = aliases.NEMO_GYM[name]
    server = RolloutSettings.model_validate({"harbor_datasets": {"a": {"git": "x"}}, name: VALUES[name]})
    assert there(server, place) == VALUES[name]
    if place.startswith("env"):
        for model, own in ((DatasetSettings, {"git": "x"}), (RequestOverrides, {})):
            assert there(model.model_validate({**own, name: VALUES[name]}), place) == VALUES[name]


@pytest.mark.parametrize("name", aliases.ROLLOUTS)
def test_a_rollout_interface(name: str) -> None:
    limits = SessionLimits(max_answer_tokens=9)
    own = {} if name == "agent" else {"agent": None}
    playing = RolloutInterface(sampler=Script(), codec=ThinkingCodec(), limits=limits, **own, **{name: VALUES[name]})
    config = playing._config  # pyright: ignore[reportPrivateUsage]
    fields = VALUES[name] if name == "env_settings" else {aliases.ROLLOUTS[name].partition(".")[2]: VALUES[name]}
    assert {field: getattr(config, field) for field in fields} == fields
    assert isinstance(config, AgentEpisodeConfig)  # without a strategy, Terminus-2 played


def test_the_strategies_of_a_rollout_interface() -> None:
    given: dict[str, Any] = {"sampler": Script(), "codec": ThinkingCodec()}
    given["limits"] = SessionLimits(max_answer_tokens=9)
    own = RolloutInterface(strategy="env", **given)._config  # pyright: ignore[reportPrivateUsage]
    assert (type(own), own.max_turns) == (TerminalEnvConfig, 50)
    details: Any = RolloutInterface(strategy="details", **given)._config  # pyright: ignore[reportPrivateUsage]
    assert (details.agent, details.token_source) == ("terminus-2", "details")
    limits = SessionLimits(max_turns=3, time_limit_sec=4, max_answer_tokens=9)
    given["limits"] = limits
    bounded = RolloutInterface(**given)._config  # pyright: ignore[reportPrivateUsage]
    assert (bounded.max_turns, bounded.time_limit_sec) == (3, 4)
    with pytest.raises(TypeError, match="'sandbx'"):
        RolloutInterface(sandbx="local", **given)


def test_a_player_of_an_evaluation() -> None:
    model: Any = object()
    assert ChatPlayer(model, retries=4).max_retries == 4  # pyright: ignore[reportCallIssue]
    assert ChatPlayer(model, 4) == ChatPlayer(model, max_retries=4)


def test_two_values_of_one_setting_are_refused_and_one_value_twice_is_not() -> None:
    both: Any = {"sandbox": "docker", "env": {"sandbox": "local"}}
    with pytest.raises(
        UsageError, match=r"sandbox and env\.sandbox are one setting, with two values: give env\.sandbox"
    ):
        EpisodeSettings.read(both, "the section")
    with pytest.raises(UsageError, match="with two values"):
        EpisodeSettings(**both)
    with pytest.raises(ValidationError, match="with two values"):
        RolloutSettings.model_validate({"harbor_datasets": {"a": {"git": "x"}}, **both})
    for same in ("local", None):
        assert EpisodeSettings.read({**both, "sandbox": same}, "the section").env == {"sandbox": "local"}


def test_a_configuration_that_is_an_object_keeps_its_other_fields() -> None:
    env = TerminalEnvConfig(task_dir="x", sandbox="docker", max_turns=9)
    made = TrainConfig(env=env, agent="terminus-2").env  # pyright: ignore[reportCallIssue]
    assert isinstance(made, AgentEpisodeConfig)
    assert (made.agent, made.sandbox, made.max_turns) == ("terminus-2", "docker", 9)
