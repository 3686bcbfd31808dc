"""The command ``harbor-gym openenv``, which is also ``recipes/openenv_server.py``."""

from typing import Any

import typer
from pydantic import SecretStr

from harbor_gym.adapters.openenv.config import TASKS, TOKEN_VARIABLE, ServerConfig
from harbor_gym.cli import completion
from harbor_gym.cli.recipes import common
from harbor_gym.cli.recipes.flags import add_flags, argument, flags_of, given_values, make_config
from harbor_gym.cli.shared import echo, one_line_errors
from harbor_gym.errors import UsageError
from harbor_gym.tasks.specs import GRAMMAR


def serve_app(model: type[ServerConfig] = ServerConfig, *, program: str) -> typer.Typer:
    """Return the server's command line, made from a configuration's fields.

    Args:
        model: ``ServerConfig``, or a subclass with other defaults or more fields.
        program: The program's name in the help's example.
    """
    flags = flags_of(model, _SPELLING)

    def command(context: typer.Context, paths: list[str] | None, **values: Any) -> None:
        with one_line_errors():
            given = given_values(flags, context, values)
            given["tasks"] = [*(paths or ()), *given.get("tasks", ())]
            config = make_config(model, _complete(given), flags)
            # Imported here, since OpenEnv takes seconds; from the package, whose error names a missing extra.
            from harbor_gym.adapters.openenv import serve

            serve(config, echo)

    paths = argument("paths", help=f"Tasks to serve: {GRAMMAR}.", is_required=False)
    add_flags(command, flags, first=[paths])
    app = common.new_app()
    app.command(
        help=f"Serve Harbor tasks as OpenEnv environments, as in: {program} task:devops_task", **common.COMMAND
    )(command)
    return app


def _complete(values: dict[str, Any]) -> dict[str, Any]:
    """Add the task that ``env`` requires to the command line's values."""
    if not values.get("tasks"):
        raise UsageError(f"nothing to serve: name a task: {GRAMMAR}")
    return {**values, "env": {"task_dir": values["tasks"][0], **values.get("env", {})}}


_SPELLING = common.spelling(
    names={"tasks": "task", "test_tasks": "test-task", "seed": "seed"},
    parsers={"token": SecretStr},
    groups=dict.fromkeys(("env.sandbox", "env.sandbox_options"), TASKS),
    defaults={"token": f"{TOKEN_VARIABLE}, else generated"},
    also={"max_retries": ("--retries",)},
    completions={"tasks": completion.tasks},
    common=(
        *("tasks", "env.sandbox", "env.max_turns", "host", "port", "token", "max_sessions", "pool_size"),
        "max_request_bytes",
    ),
)
