"""``harbor-gym check-sandbox``: check a kind of sandbox against the contract."""

import asyncio
import json
from typing import Annotated

import typer

from harbor_gym.cli import options
from harbor_gym.cli.shared import FAILED, echo, one_line_errors, preflight_by_name, quiet_harbor
from harbor_gym.types import DEFAULT_SANDBOX


def check_sandbox(
    env: options.Env = DEFAULT_SANDBOX,
    only: Annotated[list[str] | None, typer.Option(help="A behaviour, or a family of them; may be repeated.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Behaviours checked at the same time.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object with every behaviour's outcome.")] = False,
) -> None:
    """Check that a kind of sandbox does what episodes rely on, in sandboxes started for that."""
    from harbor_gym import testing

    with one_line_errors(), quiet_harbor():
        preflight_by_name(env)
        report = asyncio.run(testing.check_sandbox(env, only=only or None, concurrency=concurrency))
    echo(json.dumps(report.as_object(), indent=2) if as_json else str(report))
    if not report.ok:
        raise typer.Exit(FAILED)
