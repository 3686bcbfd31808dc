"""Write the folder that NeMo Gym starts an agent server from."""

import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from harbor_gym.errors import UsageError
from harbor_gym.sandboxes import environment_config
from harbor_gym.tasks import find_tasks, task_path

SERVER = Path("responses_api_agents/harbor_gym_agent")
"""The server's folder below the directory where NeMo Gym's commands run; that place is NeMo Gym's rule."""

EXAMPLE = Path("data/example.jsonl")
"""The example input, in the server's folder."""

_AGENT = "harbor_gym_agent"


def write_server_folder(
    directory: Path, tasks: Path, *, alias: str, sandbox: str, requirement: str, overwrite: bool
) -> list[Path]:
    """Write the server's program, its configurations, its requirements, and an example input.

    Args:
        directory: Where NeMo Gym's commands will run; it may exist.
        tasks: A directory of tasks, one task, or a shipped one's name. A relative path begins at ``directory``.
        alias: The dataset's name in ``instance_id``.
        sandbox: As ``TerminalEnvConfig.sandbox``.
        requirement: How pip finds harbor_gym, for the environment that NeMo Gym makes for the server.
        overwrite: Whether files that are there are replaced.

    Returns:
        The files written.

    Raises:
        UsageError: A file is there already, there are no tasks, or no sandbox has that name.
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
    # YAML is data here: what is put in is JSON already.
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
