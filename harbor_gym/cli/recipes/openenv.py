"""The command ``harbor-gym openenv``, which is also ``recipes/openenv_server.py``."""

from typing import Any

import typer
from pydantic import SecretStr

from harbor_gym.adapters.openenv.config import TASKS, TOKEN_VARIABLE, ServerConfig
from harbor_gym.cli.recipes import common
from harbor_gym.cli.recipes.flags import add_flags, flags_of, given_values, make_config
from harbor_gym.cli.shared import echo, one_line_errors
from harbor_gym.errors import UsageError


def serve_app(model: type[ServerConfig] = ServerConfig, *, program: str) -> typer.Typer:
    """Return the server's command line, made from a configuration's fields.

    Args:
        model: ``ServerConfig``, or a subclass with other defaults or more fields.
        program: The program's name in error messages.
    """
    flags = flags_of(model, _SPELLING)

    def command(context: typer.Context, **values: Any) -> None:
        with one_line_errors(program):
            config = make_config(model, _complete(given_values(flags, context, values)), flags)
            # Imported here, since OpenEnv takes seconds; from the package, whose error names a missing extra.
            from harbor_gym.adapters.openenv import serve

            serve(config, echo)

    add_flags(command, flags)
    app = common.new_app()
    app.command(help="Serve Harbor tasks as OpenEnv environments.", **common.COMMAND)(command)
    return app


def _complete(values: dict[str, Any]) -> dict[str, Any]:
    """Add the task that ``env`` requires to the command line's values."""
    if not values.get("tasks"):
        raise UsageError("nothing to serve: give --task DIRECTORY, git+URL@COMMIT#path or org/name@ref")
    return {**values, "env": {"task_dir": values["tasks"][0], **values.get("env", {})}}


_SPELLING = common.spelling(
    names={"tasks": "task", "test_tasks": "test-task", "seed": "seed"},
    parsers={"token": SecretStr},
    groups=dict.fromkeys(("env.sandbox", "env.sandbox_options"), TASKS),
    defaults={"token": f"{TOKEN_VARIABLE}, else generated"},
)
