"""Command lines made from configuration objects: every field has its flag, and each value arrives unchanged."""

import contextlib
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import typer
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from harbor_gym.adapters.tinker.policies import EvalConfig
from harbor_gym.adapters.tinker.training.config import (
    BACKEND_DEFAULTS,
    LOCAL_MODEL_DEFAULTS,
    Backend,
    LossFn,
    TrainConfig,
)
from harbor_gym.cli.recipes import evaluate, train
from harbor_gym.cli.recipes.flags import Flag, Spelling, add_flags, flags_of, given_values, make_config
from harbor_gym.config import AgentEpisodeConfig, TerminalConfig, TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from tests.helpers.sandboxes.fake_episodes import fake_config

SOME_TASK = ("--task-dir", "tasks/some")
GIVEN = {
    "require-audit": ("audit", Path("audit")),
    "refused-findings": ("warning", "warning"),
    "env": ("local", "local"),
    "sandbox-option": ('limits={"pids": 9}', {"limits": {"pids": 9}}),
    "setup-command": ("apt-get install -y jq", "apt-get install -y jq"),
    "action-format": ("bash-tool", "bash-tool"),
    "start-mode": ("exact", "exact"),
    "mcp-tools": (False, False),
    "compaction": ("window", "window"),
    "system-prompt": ("Answer in JSON.", "Answer in JSON."),
    "max-turns": ("7", 7),
    "time-limit-sec": ("1.5", 1.5),
    "max-consecutive-parse-failures": ("none", None),
    "confirm-task-complete": (False, False),
    "reward-key": ("speed", "speed"),
    "reward-function": ("mean", "mean"),
    "step-rewards": (True, True),
    "keep-agent-processes": (True, True),
    "ambiguous-failures": ("infrastructure", "infrastructure"),
    "zero-reward-on-limit": (True, True),
    "verify-paths": ("/app,/srv", (PurePosixPath("/app"), PurePosixPath("/srv"))),
    "verifier-option": ("max_timeout_sec=9", {"max_timeout_sec": 9}),
    "trials-dir": ("kept", Path("kept")),
    "recording-path": ("one.cast", Path("one.cast")),
    "capture-screen": (True, True),
    "stop-timeout-sec": ("5", 5.0),
    "terminal-columns": ("80", 80),
    "terminal-rows": ("24", 24),
    "terminal-history-lines": ("2000", 2000),
    "terminal-max-observation-bytes": ("500", 500),
    "terminal-min-wait-sec": ("0", 0.0),
    "terminal-max-wait-sec": ("9.5", 9.5),
    "terminal-wait": ("exact", "exact"),
    "copy-command": ("true", "true"),
    "terminal-keys": ("harbor", "harbor"),
    "terminal-pager": ("more", "more"),
    "terminal-transport": ("portable", "portable"),
}
"""Flag of an episode's settings → the typed value, and the configuration's value then."""

OF_COMPACTION = ("compact-at", "max-compactions", "train-summaries")
"""Flags that ask for another one."""

STARTS = ("start-from", "start-turn", "start-where")
"""Flags of a file or a folder that has to be there."""

OF_AGENTS: dict[str, tuple[Any, Any]] = {
    "agent": ("my.module:Agent", "my.module:Agent"),
    "agent-option": ("base_url={gateway_url}", {"base_url": "{gateway_url}"}),
    "agent-in-sandbox": (True, True),
    "train-segments": ("all", "all"),
    "token-source": ("details", "details"),
    "harbor-server": ("http://host:8390", "http://host:8390"),
}
"""The same for the flags that only an agent's episode has."""


def parse(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> TrainConfig:
    """Return the configuration that train.py would train."""
    seen: list[TrainConfig] = []

    def keep(config: TrainConfig) -> Path:
        seen.append(config)
        return Path("kept")

    monkeypatch.setattr(train, "train", keep)
    done = CliRunner().invoke(train.train_app(program="train.py"), arguments)
    assert done.exit_code == 0, (done.stderr, done.exception)
    return seen[0]


def test_every_setting_of_an_episode_and_its_terminal_has_a_flag_in_both_commands() -> None:
    both = TerminalEnvConfig.model_fields.keys() | AgentEpisodeConfig.model_fields.keys()
    fields = {("env", name) for name in both} - {("env", "task_dir"), ("env", "terminal")}
    fields |= {("env", "terminal", name) for name in TerminalConfig.model_fields}
    for model, spelling in ((TrainConfig, train._SPELLING), (EvalConfig, evaluate._SPELLING)):  # pyright: ignore[reportPrivateUsage]
        flags = flags_of(model, spelling)
        assert {flag.path for flag in flags if flag.path[0] == "env"} == fields
        assert {flag.name for flag in flags if flag.path[0] == "env"} == {*GIVEN, *OF_AGENTS, *OF_COMPACTION, *STARTS}
        own = set(model.model_fields) - {"env", "paths"}
        assert {flag.path[0] for flag in flags} - {"env"} == own
        assert all(flag.info.description for flag in flags), "--help would show a flag without a word"


@pytest.mark.parametrize("flag", [*GIVEN, *OF_AGENTS])
@pytest.mark.parametrize("with_equals", [False, True], ids=["blank", "equals"])
def test_what_is_typed_is_what_the_configuration_holds(
    flag: str, with_equals: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed, expected = {**GIVEN, **OF_AGENTS}[flag]
    if isinstance(typed, bool):
        arguments = [f"--{flag}" if typed else f"--no-{flag}"]
    else:
        arguments = [f"--{flag}={typed}"] if with_equals else [f"--{flag}", typed]
    if flag in OF_AGENTS and flag != "agent":
        arguments += ["--agent", "terminus-2"]
    config = parse(monkeypatch, *SOME_TASK, *arguments)
    (made,) = (item for item in flags_of(TrainConfig, train._SPELLING) if item.name == flag)  # pyright: ignore[reportPrivateUsage]
    value: Any = config
    for step in made.path:
        value = getattr(value, step)
    assert value == expected


def test_tasks_are_named_without_a_flag_beside_those_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = ("tasks/some", "task:devops_task", str(tmp_path), "org/name@1", "git+https://host/repo@main#tasks/one")
    config = parse(monkeypatch, *SOME_TASK, *named[1:], "--task", "another@2")
    assert config.task_dirs == (Path("tasks/some"), Path("task:devops_task"), tmp_path)
    assert config.tasks == ("another@2", "org/name@1", "git+https://host/repo@main#tasks/one")


@pytest.mark.parametrize(
    ("typed", "field", "value"),
    [
        (("-m", "some/model"), "model_name", "some/model"),
        (("--model", "some/model"), "model_name", "some/model"),
        (("-o", "kept"), "log_path", Path("kept")),
        (("--output", "kept"), "log_path", Path("kept")),
        (("--retries", "3"), "max_retries", 3),
        (("--max-rollout-retries", "3"), "max_retries", 3),
    ],
)
def test_a_flag_has_the_fields_common_names_too(
    typed: tuple[str, ...], field: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert getattr(parse(monkeypatch, *SOME_TASK, *typed), field) == value


async def test_a_start_is_a_snapshots_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = fake_config(tmp_path / "task")
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        (await env.snapshot()).write(tmp_path / "snapshot.json")
    monkeypatch.chdir(tmp_path)
    made = parse(monkeypatch, "--task-dir", str(config.task_dir), "--start-from", "snapshot.json").env
    assert isinstance(made, TerminalEnvConfig)
    assert (made.start_from, made.sandbox) == (tmp_path / "snapshot.json", config.sandbox)
    where = ("--start-turn", "3", "--start-where", "reward=1", "--start-where", "split!=test")
    made = parse(monkeypatch, "--task-dir", str(config.task_dir), "--start-from", ".", *where).env
    assert isinstance(made, TerminalEnvConfig)
    assert (made.start_from, made.start_turn, made.start_where) == (tmp_path, 3, ("reward=1", "split!=test"))
    made = parse(monkeypatch, "--task-dir", str(config.task_dir), "--start-from", ".", "--start-turn", "mid").env
    assert isinstance(made, TerminalEnvConfig)
    assert made.start_turn == "mid"


def test_repeated_flags_and_both_kinds_of_sources_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(
        monkeypatch,
        *("--task-dir", "a", "--task", "org/name@1", "--task-dir", "b"),
        *("--where", "difficulty=easy", "--where", "category!=x", "--task-weight", "a=2", "--task-weight", "b=0.5"),
        *("--test-task", "b", "--zero-reward-on-limit", "--no-remove-constant-groups"),
    )
    assert (config.task_dirs, config.tasks) == ((Path("a"), Path("b")), ("org/name@1",))
    assert config.env.task_dir == Path("a")
    assert config.where == ("difficulty=easy", "category!=x")
    assert config.task_weights == {"a": 2.0, "b": 0.5}
    assert (config.test_tasks, config.env.zero_reward_on_limit, config.remove_constant_groups) == (("b",), True, False)


def test_the_losses_are_those_of_the_service_that_need_no_targets() -> None:
    from tinker.types import LossFnType

    known = set(get_args(LossFnType)) - {"cross_entropy", "custom"}
    assert set(get_args(LossFn.__value__)) == known


@pytest.mark.parametrize("backend", Backend)
def test_what_is_not_given_is_the_backends(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    config, defaults = parse(monkeypatch, *SOME_TASK, "--backend", backend.value), BACKEND_DEFAULTS[backend]
    names = ("model_name", "renderer_name", "max_tokens", "max_context_tokens", "num_batches", "learning_rate")
    for name in (*names, "save_every"):
        assert getattr(config, name) == getattr(defaults, name)
    assert 0 < config.save_every < (config.num_batches or 0), "an interruption would lose the whole run"
    assert config.env.max_turns == defaults.max_turns
    assert parse(monkeypatch, *SOME_TASK, "--epochs", "2").num_batches is None


def test_a_named_model_of_the_local_backend_has_defaults_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(monkeypatch, *SOME_TASK, "--backend", "local", "--model", "smollm2-135m", "--max-tokens", "9")
    defaults = LOCAL_MODEL_DEFAULTS
    assert (config.model_name, config.max_tokens, config.demonstrations) == ("smollm2-135m", 9, None)
    assert isinstance(config.env, TerminalEnvConfig)
    assert (config.env.action_format, config.env.max_turns) == (defaults.action_format, defaults.max_turns)
    named = ("--backend", "local", "--model", "smollm2-135m")
    chosen = parse(monkeypatch, *SOME_TASK, *named, "--action-format", "terminus-json-plain").env
    assert isinstance(chosen, TerminalEnvConfig)
    assert chosen.action_format == "terminus-json-plain"
    assert isinstance(parse(monkeypatch, *SOME_TASK, *named, "--agent", "mini-swe-agent").env, AgentEpisodeConfig)
    for name in ("renderer_name", "max_context_tokens", "num_batches", "learning_rate", "save_every"):
        assert getattr(config, name) == getattr(defaults, name)
    tinker = parse(monkeypatch, *SOME_TASK, "--model", "some/model")
    assert tinker.renderer_name == BACKEND_DEFAULTS[Backend.TINKER].renderer_name


def test_zero_is_zero_where_it_means_something(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        *("temperature", "warm_sandboxes", "kl_penalty_coef", "max_retries", "max_steps_off_policy"),
        *("save_every", "eval_every", "eval_temperature", "test_fraction", "seed"),
    )
    arguments = [part for name in names for part in (f"--{name.replace('_', '-')}", "0")]
    config = parse(monkeypatch, *SOME_TASK, *arguments)
    assert [getattr(config, name) for name in names] == [0] * len(names)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--lerning-rate", "1"], "--learning-rate"),
        (["--terminal-wait", "often"], "early"),
        (["--backend", "mine"], "tinker"),
        (["--group-size", "many"], "--group-size"),
        (["--max-turns", "few"], "'--max-turns': a number, or none, is wanted"),
        (["--group-size"], "--group-size"),
        (["--model-name", ""], "--model-name is empty: give it a value, or leave it out"),
        (["--reward-key", ""], "--reward-key is empty: give it a value, or leave it out"),
    ],
)
def test_what_typer_refuses_names_the_flag_or_the_choices(arguments: list[str], expected: str) -> None:
    done = CliRunner().invoke(train.train_app(program="train.py"), [*SOME_TASK, *arguments])
    assert done.exit_code == 2
    assert expected in done.stderr


def test_several_problems_are_one_line_with_the_flags_names() -> None:
    done = CliRunner().invoke(
        train.train_app(program="train.py"), [*SOME_TASK, "--learning-rate", "0", "--terminal-columns", "3"]
    )
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "--learning-rate" in done.stderr
    assert "--terminal-columns" in done.stderr


def test_an_interrupted_run_exits_with_130_and_names_what_resumes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def prepared(config: TrainConfig) -> SimpleNamespace:
        return SimpleNamespace(config=config, log_path=Path("runs/x"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harbor_gym.adapters.tinker.training.preparation.prepare", prepared)
    monkeypatch.setattr("harbor_gym.adapters.tinker.training.preparation.claimed_folder", contextlib.nullcontext)
    monkeypatch.setattr("harbor_gym.embedded.service.open_service", interrupted)
    done = CliRunner().invoke(train.train_app(program="train.py"), SOME_TASK)
    assert done.exit_code == 130
    assert done.stderr == ("interrupted; no checkpoint was saved yet; --resume runs/x starts its first batch again\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/x").mkdir(parents=True)
    (tmp_path / "runs/x/checkpoints.jsonl").write_text('{"name": "000002"}\n{"name": "000004"}\n')
    done = CliRunner().invoke(train.train_app(program="train.py"), SOME_TASK)
    assert done.stderr == "interrupted; resume with --resume runs/x (from checkpoint 000004)\n"


class Small(BaseModel):
    count: int = Field(default=1, ge=1)
    odd: complex = 1j


def test_a_field_that_no_flag_can_hold_is_refused_when_the_command_is_made() -> None:
    with pytest.raises(TypeError, match="odd: no flag can be made of"):
        [flag.option() for flag in flags_of(Small, Spelling())]
    with pytest.raises(TypeError, match="two fields are called --count"):
        flags_of(Small, Spelling(names={"odd": "count"}))


def test_only_what_was_given_counts_so_that_a_subclass_may_change_a_default() -> None:
    class More(Small):
        count: int = 5

    flags = flags_of(More, Spelling(names={"odd": None}))
    found: list[More] = []

    def command(context: typer.Context, **values: Any) -> None:
        found.append(make_config(More, given_values(flags, context, values), flags))

    add_flags(command, flags)
    app = typer.Typer()
    app.command()(command)
    for arguments in ([], ["--count", "1"]):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert [(item.count, item.model_fields_set) for item in found] == [(5, set()), (1, {"count"})]
    assert isinstance(flags[0], Flag)
