"""Write the folder from which NeMo Gym starts the agent server."""

import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from harbor_gym.errors import UsageError
from harbor_gym.sandboxes import environment_config
from harbor_gym.tasks import find_tasks, task_path

SERVER = Path("responses_api_agents/harbor_gym_agent")
"""The server's folder, which NeMo Gym expects below the directory of its commands."""

EXAMPLE = Path("data/example.jsonl")
"""The example input, in the server's folder."""

_AGENT = "harbor_gym_agent"


def write_server_folder(
    directory: Path, tasks: Path, *, alias: str, sandbox: str, requirement: str, overwrite: bool
) -> list[Path]:
    """Write the server's program, its configurations, its requirements, and an example input.

    Args:
        directory: The directory of NeMo Gym's commands; it may exist.
        tasks: A directory of tasks, one task, or a shipped task's name. A relative path begins at ``directory``.
        alias: The dataset's name in ``instance_id``.
        sandbox: As ``TerminalEnvConfig.sandbox``.
        requirement: The pip requirement of harbor_gym for the server's environment.
        overwrite: Whether to replace existing files.

    Returns:
        The written files.

    Raises:
        UsageError: A file exists already, there are no tasks, or there is no sandbox of that name.
    """
    if not alias or "::" in alias:
        raise UsageError(f"an alias is a name without '::', got {alias!r}")
    environment_config(sandbox)
    values = {"alias": json.dumps(alias), "path": json.dumps(str(tasks)), "sandbox": json.dumps(sandbox)}
    texts = _render(files(__package__) / "server_folder", {**values, "requirement": requirement})
    rows = [_row(f"{alias}::{task.name}") for task in find_tasks([directory / task_path(tasks)])]
    texts[EXAMPLE] = "".join(f"{json.dumps(row)}\n" for row in rows)
    folder = directory / SERVER
    if not overwrite and (there := [name for name in texts if (folder / name).exists()]):
        raise UsageError(f"{folder / there[0]} exists already; --force replaces it")
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _render(folder: Traversable, values: dict[str, str], at: Path = Path()) -> dict[Path, str]:
    # The templates are YAML, and the values JSON: nothing is to be escaped for HTML.
    templates = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    texts: dict[Path, str] = {}
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        if file.name.startswith("__"):
            continue
        if file.is_dir():
            texts |= _render(file, values, at / file.name)
        else:
            texts[at / file.name] = templates.from_string(file.read_text(encoding="utf-8")).render(values)
    return texts


def _row(instance_id: str) -> dict[str, object]:
    return {
        "instance_id": instance_id,
        "responses_create_params": {"input": []},
        "agent_ref": {"type": "responses_api_agents", "name": _AGENT},
    }
