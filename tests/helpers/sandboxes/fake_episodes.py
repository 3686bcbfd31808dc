"""Episodes in memory, to test the code around a sandbox in milliseconds."""

import json
from pathlib import Path
from typing import Any

from harbor_gym import TerminalEnvConfig
from harbor_gym.config import AgentEpisodeConfig, EpisodeConfig
from harbor_gym.config.aliases import fields_of
from harbor_gym.testing import write_tiny_task

FAKE = "harbor_gym.testing:FakeEnvironment"


def fake_config(task_dir: Path, *, sandbox: str = FAKE, steps: int = 0, **settings: Any) -> TerminalEnvConfig:
    """Return the configuration of a tiny task, made at ``task_dir``, in a fake sandbox.

    Args:
        task_dir: Where to write the task; one that is there already is used as it is.
        sandbox: The import path of another fake.
        steps: Steps of the task; 0 is a task without any.
        settings: Arguments of :class:`FakeEnvironment`, and fields of the configuration.
    """
    if not task_dir.exists():
        write_tiny_task(task_dir)
        for number in range(1, steps + 1):
            add_step(task_dir, f"step-{number}")
    own: dict[str, Any] = {"confirm_task_complete": False}
    own |= {name: settings.pop(name) for name in list(settings) if name in TerminalEnvConfig.model_fields}
    return TerminalEnvConfig(task_dir=task_dir, sandbox=sandbox, sandbox_options=settings, **own)


def by_agent(config: TerminalEnvConfig, agent: Any, **settings: Any) -> AgentEpisodeConfig:
    """Return the same episode with one of Harbor's agents, which decides itself when it is done."""
    shared = {name: value for name, value in fields_of(config).items() if name in EpisodeConfig.model_fields}
    return AgentEpisodeConfig.model_validate({**shared, "agent": agent, **settings})


def add_step(task_dir: Path, name: str, toml: str = "") -> None:
    """Add a step to a task."""
    folder = task_dir / "steps" / name
    (folder / "tests").mkdir(parents=True)
    (folder / "tests/test.sh").write_text("#!/bin/bash\n")
    (folder / "instruction.md").write_text(f"Do {name}.\n")
    (task_dir / "instruction.md").unlink(missing_ok=True)
    with (task_dir / "task.toml").open("a") as file:
        file.write(f'[[steps]]\nname = "{name}"\n{toml}')


def message(*keystrokes: str, complete: bool = False, duration: float = 1.0) -> str:
    """Return a message of the default format."""
    commands = [{"keystrokes": keys, "duration": duration} for keys in keystrokes]
    return json.dumps({"analysis": "", "plan": "", "commands": commands, "task_complete": complete})


COMPLETE = message(complete=True)
