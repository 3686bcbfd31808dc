"""The harnesses beside ``bash``: a scratchpad, tasks of several steps, and commands beside the terminal."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("trl") is None:
    pytest.skip('pip install "harbor-gym[trl]"', allow_module_level=True)

from harbor_gym.adapters.trl import HarborSpec, ToolHarness, verified_reward
from harbor_gym.adapters.trl.notes import MAX_NOTES_BYTES
from harbor_gym.adapters.trl.slot import EPISODE_OVER, TASK_OVER
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import TaskError, UsageError
from harbor_gym.testing import write_tiny_task
from tests.helpers.patience import PATIENCE_SEC
from tests.helpers.sandboxes.fake_episodes import FAKE, add_step

pytestmark = pytest.mark.usefixtures("nothing_left")

SOLVED = {"solved_when": {"/srv/answer": "done"}}
SOLVE = "echo done > /srv/answer"
ANSWERED = [{"role": "assistant", "content": "done"}]


async def write_greeting(env: AsyncTerminalGymEnv) -> None:
    await env.exec("echo hello > /srv/greeting", timeout_sec=PATIENCE_SEC)


async def refuse(env: AsyncTerminalGymEnv) -> None:
    raise TaskError("the image lacks what the harness needs")


class Beside(ToolHarness):
    """Reads files without the terminal."""

    _preparation = staticmethod(write_greeting)

    def read(self, path: str) -> str:
        """Read a file.

        Args:
            path: The file.
        """
        return self._exec(f"cat {path}", timeout_sec=PATIENCE_SEC)


class Refused(Beside):
    """Can't be prepared."""

    _preparation = staticmethod(refuse)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_tiny_task(tmp_path / "task")


@pytest.fixture
def started(task: Path) -> Callable[..., Any]:
    """Start an episode of the task in a fake sandbox; its spec is closed with the last one."""

    def start(agent: Any, **settings: Any) -> Any:
        spec = HarborSpec(task, agent=agent, sandbox=FAKE, sandbox_options=SOLVED, **settings)
        environment = spec.environment_factory()
        environment.reset(task_index=0)
        return environment

    return start


def graded(environment: Any) -> float | None:
    return verified_reward([ANSWERED], [environment])[0]


def test_notes_outlive_the_terminal_and_end_with_the_episode(started: Callable[..., Any]) -> None:
    environment = started("terminal_notes", max_turns=2)
    assert environment.read_notes() == "[no notes]"
    assert environment.write_note("  the answer is\nin /srv  ") == "[note 1 is written; 9979 bytes are left]"
    environment.write_note("zweite Notiz: ü")
    environment.bash(SOLVE)
    environment.bash("exit")
    assert environment.bash("true") == EPISODE_OVER
    assert environment.read_notes() == "1. the answer is\nin /srv\n2. zweite Notiz: ü"
    assert graded(environment) == 1.0
    environment.reset(task_index=0)
    assert environment.read_notes() == "[no notes]"
    environment.write_note("x")
    assert environment.clear_notes() == "[1 notes are removed]"
    assert environment.read_notes() == "[no notes]"
    assert graded(environment) == 0.0


def test_the_scratchpad_is_bounded(started: Callable[..., Any]) -> None:
    environment = started("terminal_notes")
    environment.write_note("x" * (MAX_NOTES_BYTES - 4))
    for wrong, message in (("üüü", "clear the others"), (" ", "empty"), (None, "string"), ("\ud800", "surrogate")):
        with pytest.raises(UsageError, match=message):
            environment.write_note(wrong)
    environment.write_note("üü")
    assert environment.read_notes().endswith("2. üü")
    assert graded(environment) == 0.0


def test_a_tool_before_reset_is_refused(task: Path) -> None:
    environment: Any = HarborSpec(task, agent="terminal_notes", sandbox=FAKE).environment_factory()
    for tool, arguments in (("bash", ["true"]), ("write_note", ["x"]), ("read_notes", []), ("clear_notes", [])):
        with pytest.raises(UsageError, match="before reset"):
            getattr(environment, tool)(*arguments)


def test_a_command_beside_the_terminal_is_a_turn(started: Callable[..., Any]) -> None:
    environment = started(Beside, max_turns=3)
    assert environment.read("/srv/greeting").strip() == "hello", "prepared before the first call"
    assert "missing" in environment.read("/srv/missing")
    environment.read("/srv/greeting")
    assert environment.read("/srv/greeting") == EPISODE_OVER
    assert graded(environment) == 0.0


def test_an_episode_that_cant_be_prepared_ends_the_training(started: Callable[..., Any]) -> None:
    environment = started(Refused)
    with pytest.raises(TaskError, match="lacks what the harness needs"):
        graded(environment)


def test_a_lost_sandbox_is_lost_for_commands_too(task: Path) -> None:
    options = {**SOLVED, "fail": {"exec": 1}}
    with HarborSpec(task, agent=Beside, sandbox=FAKE, sandbox_options=options, max_retries=0) as spec:
        environment: Any = spec.environment_factory()
        environment.reset(task_index=0)
        assert environment.read("/srv/greeting").startswith("[")
        assert graded(environment) is None


def test_the_steps_of_a_task(task: Path, started: Callable[..., Any]) -> None:
    for name in ("first", "second", "third"):
        add_step(task, name)
    environment = started("bash")
    environment.bash(SOLVE)
    assert "Do second." in environment.finish_step()
    assert "Do third." in environment.finish_step()
    assert environment.finish_step() == TASK_OVER
    assert environment.finish_step() == EPISODE_OVER
    solved = graded(environment)
    environment.reset(task_index=0)
    environment.bash(SOLVE)
    assert graded(environment) == solved, "the steps that are left are verified as they stand"
    environment.reset(task_index=0)
    assert graded(environment) == 0.0
    assert solved is not None
    assert solved > 0
