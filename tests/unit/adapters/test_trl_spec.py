"""HarborSpec: its factories, and every mistake that it refuses before anything starts."""

import pickle
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym.adapters.trl import (
    BashHarness,
    HarborSpec,
    HarnessSettings,
    JupyterHarness,
    TerminalNotesHarness,
    ToolHarness,
    rollout_reward,
    verified_reward,
)
from harbor_gym.adapters.trl.agents import find_harness
from harbor_gym.errors import MissingDependencyError, TaskError, UsageError
from harbor_gym.testing import write_tiny_task
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import FAKE, add_step


def make(tasks: Path, **settings: Any) -> HarborSpec:
    settings.setdefault("sandbox", FAKE)
    return HarborSpec(tasks, **settings)


class Counter(ToolHarness):
    def count(self, limit: int) -> str:
        """Count.

        Args:
            limit: The last number.
        """
        return self._type(f"echo {limit}\n")


class Undocumented(ToolHarness):
    def act(self, what: str) -> str:
        return what


class Toolless(ToolHarness):
    pass


@pytest.mark.parametrize("harness", [BashHarness, JupyterHarness, TerminalNotesHarness])
def test_our_own_tools_can_be_shown_to_a_policy(harness: type[ToolHarness]) -> None:
    """A spec checks the tools of other classes alone."""

    class Checked(harness):
        pass

    find_harness(Checked)


def test_the_dataset_has_trls_columns_and_the_suites_indices(suite: Path) -> None:
    rows: Any = make(suite, indices=[2, 0]).train_dataset.to_list()
    assert rows == [
        {"prompt": [{"role": "user", "content": "Do gamma.\n"}], "task": "gamma", "task_index": 2},
        {"prompt": [{"role": "user", "content": "Do alpha.\n"}], "task": "alpha", "task_index": 0},
    ]


def test_a_terminals_prompt_names_its_task(suite: Path) -> None:
    rows: Any = make(suite, agent="terminal", indices=[1]).train_dataset.to_list()
    assert rows[0]["prompt"] == [{"role": "user", "content": "Do beta.\n", "task_index": 1}]


def test_each_agent_has_its_own_arguments(suite: Path) -> None:
    bash, terminal = make(suite), make(suite, agent="terminal")
    assert set(bash.trainer_arguments) == {"train_dataset", "reward_funcs", "environment_factory"}
    assert set(terminal.trainer_arguments) == {"train_dataset", "reward_funcs", "rollout_func"}
    assert (bash.reward_funcs, terminal.reward_funcs) == (verified_reward, rollout_reward)
    with pytest.raises(UsageError, match="environment_factory to the trainer"):
        _ = bash.rollout_func
    with pytest.raises(UsageError, match="rollout_func to the trainer"):
        _ = terminal.environment_factory
    harbors = make(suite, agent="terminus-2", max_context_tokens=9000, agent_options={"max_turns": 3})
    assert harbors.agent is None
    for name in ("environment_factory", "rollout_func", "trainer_arguments", "settings"):
        with pytest.raises(UsageError, match="not with one of Harbor's agents"):
            getattr(harbors, name)
    with pytest.raises(UsageError, match="rollout_worker is for agent='terminal'"):
        bash.rollout_worker(cast("Any", None), cast("Any", None), model="policy")


@pytest.mark.parametrize(
    ("agent", "kind"),
    [
        ("bash", BashHarness),
        ("terminal_notes", TerminalNotesHarness),
        ("jupyter", JupyterHarness),
        (Counter, Counter),
        (f"{__name__}:Counter", Counter),
    ],
)
def test_factories_pickle(suite: Path, agent: Any, kind: type[ToolHarness]) -> None:
    spec = make(suite, agent=agent, pool_size=2)
    assert spec.agent is kind
    assert type(pickle.loads(pickle.dumps(spec.environment_factory))()) is kind
    pickle.loads(pickle.dumps(verified_reward))
    pickle.loads(pickle.dumps(make(suite, agent="terminal").rollout_func))


@pytest.mark.parametrize(
    ("harness", "tools"),
    [
        (BashHarness, {"bash"}),
        (TerminalNotesHarness, {"bash", "write_note", "read_notes", "clear_notes"}),
        (JupyterHarness, {"run_cell", "restart_kernel"}),
    ],
)
def test_a_harness_shows_its_tools_and_nothing_else(harness: type[ToolHarness], tools: set[str]) -> None:
    from transformers.utils.chat_template_utils import get_json_schema

    assert {name for name in dir(harness) if not name.startswith("_")} == {"reset", *tools}
    for tool in tools:
        assert get_json_schema(getattr(harness, tool))["function"]["description"]


def test_the_extra_of_a_provider_is_named(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_KEY", "none")
    monkeypatch.setenv("DAYTONA_API_KEY", "none")
    for provider in ("e2b", "daytona"):
        with pytest.raises(MissingDependencyError, match=rf'{provider}.*pip install "harbor\[{provider}\]"'):
            make(suite, sandbox=provider)


def test_the_tools_text_changes_with_its_version() -> None:
    from transformers.utils.chat_template_utils import get_json_schema

    from harbor_gym.adapters.trl import BASH_TOOL_VERSION

    function = get_json_schema(BashHarness.bash)["function"]
    assert BASH_TOOL_VERSION == "1"
    assert function["name"] == "bash"
    assert function["description"] == (
        "Type a command into the one shell that stays open, press Enter, and return what the terminal shows."
    )
    assert function["parameters"]["properties"] == {
        "command": {
            "type": "string",
            "description": "The command, typed as it is. A key's name on its own, such as C-c, presses that key. "
            "An empty command only waits.",
        }
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agent": "bsah"}, "did you mean bash"),
        ({"agent": "xyzzy"}, "there are bash, jupyter, terminal_notes, terminal, and Harbor's agents"),
        ({"agent": "terminal_note"}, "did you mean terminal_notes or terminal"),
        ({"agent": "terminus-3"}, "did you mean terminus-2"),
        ({"agent": "aider"}, "write {gateway_url} into"),
        ({"agent": {"name": "aider", "n_concurrent": 0}}, "agent can't be used: n_concurrent"),
        ({"agent": "builtins:dict"}, "agent 'builtins:dict' is not listed"),
        ({"agent": "terminus-2", "pool_size": 2}, "starts its own sandbox: leave pool_size out"),
        ({"agent": "terminus-2", "mcp_tools": False}, "mcp_tools: for our own loop, and the agent terminus-2 plays"),
        ({"agent": "no.such.module:Class"}, "no module 'no'"),
        ({"agent": "harbor_gym.adapters.trl.bash:BashHarnes"}, "did you mean BashHarness"),
        ({"agent": dict}, "no subclass"),
        ({"agent": Toolless}, "has no tool"),
        ({"agent": Undocumented}, r"Undocumented\.act can't be shown"),
        ({"sandbox": "lokal"}, "did you mean local"),
        ({"max_turn": 3}, "did you mean max_turns"),
        ({"harbor_server": "http://127.0.0.1:1"}, "for the episodes of one of Harbor's agents"),
        ({"task_dir": "x"}, "no setting 'task_dir'"),
        ({"max_turns": 0}, "max_turns"),
        ({"pool_size": 0}, "pool_size must be at least 1"),
        ({"max_retries": -1}, "max_retries must be at least 0"),
        ({"indices": []}, "indices is empty"),
        ({"indices": [3]}, "from 0 to 2"),
        ({"indices": [-1]}, "from 0 to 2"),
        ({"max_context_tokens": 100}, "max_completion_length is their limit"),
    ],
)
def test_mistakes_are_refused(suite: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(suite, **settings)


def test_broken_and_missing_tasks_are_refused(suite: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        make(tmp_path / "nowhere")
    (suite / "beta/task.toml").write_text("[[[")
    with pytest.raises(TaskError, match="beta"):
        make(suite)


def test_a_task_of_several_steps_needs_a_harness_that_takes_them(suite: Path) -> None:
    assert make(suite).agent is BashHarness
    add_step(suite / "beta", "first")
    for agent in (Counter, "jupyter", "terminal_notes"):
        with pytest.raises(UsageError, match="beta has 1 steps"):
            make(suite, agent=agent)
    assert make(suite, agent="terminal").rollout_func
    steps: Any = make(suite).agent
    assert steps is not BashHarness
    assert {name for name in dir(steps) if not name.startswith("_")} == {"bash", "finish_step", "reset"}
    assert make(suite, indices=[0, 2]).agent is BashHarness


def test_a_row_of_another_dataset_is_refused(suite: Path) -> None:
    environment: Any = make(suite).environment_factory()
    with pytest.raises(UsageError, match="one of 0, 1, 2"):
        environment.reset(task_index=7)
    with pytest.raises(UsageError, match="one of 0, 1, 2"):
        environment.reset()
    with pytest.raises(UsageError, match="before reset"):
        environment.bash("true")


def test_the_settings_of_a_single_task_need_no_index(suite: Path) -> None:
    settings: HarnessSettings = make(suite, indices=[1]).environment_factory.args[0]  # pyright: ignore[reportFunctionMemberAccess]  # a partial
    assert settings.config_of(None).task_dir.name == "beta"


def test_a_missing_package_is_named() -> None:
    code = (
        "import importlib.util; real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'trl' else real(name, *rest)\n"
        "import harbor_gym.adapters.trl as room\n"
        "try: room.HarborSpec\n"
        "except ImportError as exc: print(type(exc).__name__, exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == (
        f'{MissingDependencyError.__name__} harbor_gym.adapters.trl needs trl: pip install "harbor-gym[trl]"'
    )


def test_the_pages_harness_runs(suite: Path) -> None:
    text = (ROOT / "docs/trl.md").read_text()
    (block,) = (block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if "class Notes" in block)
    replaced = block.replace('HarborSpec("tasks"', f'HarborSpec("{suite}", sandbox="{FAKE}"')
    names: dict[str, Any] = {}
    exec(compile(replaced, "docs/trl.md", "exec"), names)
    harness = names["spec"].environment_factory()
    harness.reset(task_index=0)
    assert "echo 'two words' >> /tmp/notes" in harness.note("two words")
    names["spec"].close()


@pytest.mark.parametrize(("agent", "keys"), [("bash", "literal"), ("terminal_notes", "literal"), ("terminal", "exact")])
def test_a_tools_command_is_typed_as_it_stands(agent: str, keys: str, tmp_path: Path) -> None:
    spec = HarborSpec(write_tiny_task(tmp_path / "task"), agent=agent, sandbox=FAKE)
    assert spec.settings.config_of(None).session.keys == keys
    named = HarborSpec(tmp_path / "task", agent=agent, sandbox=FAKE, terminal={"keys": "exact"})
    assert named.settings.config_of(None).session.keys == "exact"
