"""The parts of an episode's phase, without a sandbox: skills, side commands, setup, words for a failed step."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast, override

import pytest
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.task.config import MCPServerConfig

from harbor_gym import AsyncTerminalGymEnv
from harbor_gym.episode.failures import lost, step_failure
from harbor_gym.episode.resources import Resources, Skill, read_skills
from harbor_gym.errors import SandboxLostError, SandboxStartError, SandboxThrottledError
from harbor_gym.testing import FakeEnvironment
from tests.helpers.sandboxes.fake_episodes import fake_config
from tests.helpers.sandboxes.host_shell import HostShell


def write_skill(folder: Path, text: str) -> str:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text)
    return str(folder / "SKILL.md")


async def test_the_skills_of_a_directory_are_read_by_their_heads(tmp_path: Path) -> None:
    skills = tmp_path / "the skills"
    two = write_skill(skills / "two", "\ufeff---\nname: two\ndescription: >\n  A & B\n---\nText\n---\n")
    one = write_skill(skills / "one", "---\nname: one\ndescription: 'Use: it'\n---\n" + "x" * 100_000)
    write_skill(skills / "headless", "# Nothing\n")
    write_skill(skills / "unfinished", "---\nname: x\ndescription: y\n")
    write_skill(skills / "nameless", "---\ndescription: y\n---\n")
    write_skill(skills / "broken", "---\nname: [\n---\n")
    (skills / "file").write_text("no skill")
    found = await read_skills(cast(BaseEnvironment, HostShell()), f"{skills}/")
    assert found == [Skill("one", "Use: it", one), Skill("two", "A & B", two)]
    assert await read_skills(cast(BaseEnvironment, HostShell()), str(tmp_path / "nowhere")) == []


def test_resources_are_listed_in_the_instruction() -> None:
    assert Resources().text() == ""
    servers = (
        MCPServerConfig(name="files", transport="stdio", command="/opt/a b", args=["--root", "/srv"]),
        MCPServerConfig(name="web", transport="streamable-http", url="http://localhost:1/mcp"),
    )
    skills = (Skill("one", "A & B", "/skills/one/SKILL.md"),)
    assert Resources("/skills", skills, servers).text() == (
        "\n\nMCP servers you can use from the terminal:\n"
        "- files (stdio): '/opt/a b' --root /srv\n- web (streamable-http): http://localhost:1/mcp\n"
        "\n<available_skills>\n  <skill>\n    <name>one</name>\n    <description>A &amp; B</description>\n"
        "    <location>/skills/one/SKILL.md</location>\n  </skill>\n</available_skills>\n"
    )


class Noting(FakeEnvironment):
    """A fake that notes its commands."""

    noted: ClassVar[list[str]] = []

    @override
    async def exec(self, command: str, *args: Any, **settings: Any) -> ExecResult:
        Noting.noted.append(command)
        return await super().exec(command, *args, **settings)


async def test_the_setup_command_runs_before_the_first_prompt(tmp_path: Path) -> None:
    Noting.noted.clear()
    config = fake_config(tmp_path / "task", sandbox=f"{__name__}:Noting")
    async with AsyncTerminalGymEnv(config.model_copy(update={"setup_command": "echo set > /srv/up"})) as env:
        await env.reset()
        set_up = [number for number, command in enumerate(Noting.noted) if "echo set > /srv/up" in command]
        assert len(set_up) == 1
        observation, *_ = await env.step([("cat /srv/up\n", 1.0)])
    assert "set" in observation.split()


def result(*, step: object = None, error: object = None) -> Any:
    steps = None if step is None else [SimpleNamespace(step_name="before", exception_info=None), step]
    return SimpleNamespace(task_name="org/task", step_results=steps, exception_info=error)


def recorded(kind: str, message: str) -> SimpleNamespace:
    return SimpleNamespace(exception_type=kind, exception_message=message)


def test_a_step_that_could_not_be_set_up_is_named_with_the_cause() -> None:
    failed = result(step=SimpleNamespace(step_name="build", exception_info=recorded("OSError", "no space\n")))
    error = step_failure(failed)
    assert type(error) is SandboxStartError
    assert str(error) == "step 'build' of task 'org/task' could not be set up: OSError: no space"
    silent = result(step=SimpleNamespace(step_name="build", exception_info=None))
    assert str(step_failure(silent)).endswith("could not be set up: no error was recorded")
    assert str(step_failure(result())).startswith("step '?' of task 'org/task'")


def test_an_error_of_ours_keeps_its_class() -> None:
    ours = recorded("SandboxThrottledError", "too many; Retry-After: 7")
    error = step_failure(result(step=SimpleNamespace(step_name="build", exception_info=ours)))
    assert isinstance(error, SandboxThrottledError)
    assert error.retry_after_sec == 7.0


@pytest.mark.parametrize(
    ("recorded_error", "cause"),
    [
        (None, "no error was recorded"),
        (recorded("ValueError", ""), "ValueError: no message"),
        (recorded("ValueError", "first\nsecond\n"), "ValueError: first\nsecond"),
    ],
)
def test_a_trial_that_ended_under_an_episode_is_lost(recorded_error: object, cause: str) -> None:
    error = lost(result(error=recorded_error))
    assert type(error) is SandboxLostError
    assert str(error) == f"the trial of task 'org/task' ended under a running episode: {cause}"


def test_a_long_message_is_quoted_by_its_end() -> None:
    lines = [f"line {number}" for number in range(1000)]
    quoted = str(lost(result(error=recorded("ValueError", "\n".join(lines))))).splitlines()
    assert quoted[-1] == "line 999"
    shown = len(quoted) - 1
    assert quoted[0].endswith(f"ValueError: [… {1000 - shown} lines before]")
    assert 5 < shown < 200


async def test_the_first_observation_comes_with_the_skills_and_the_times(tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task")
    with (tmp_path / "task" / "task.toml").open("a") as file:
        file.write('[environment]\nskills_dir = "/skills"\n')
    async with AsyncTerminalGymEnv(config) as env:
        _, info = await env.reset()
    assert info.get("skills_dir") == "/skills"
    assert info["metrics"]["time/terminal_open_sec"] > 0
