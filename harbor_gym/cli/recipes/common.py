"""What the commands behind ``recipes/`` share: how an episode's settings are written as flags, and how errors end."""

import contextlib
import os
from collections.abc import Collection, Generator, Mapping
from types import MappingProxyType
from typing import Any

import typer

from harbor_gym import sandboxes
from harbor_gym.cli.plain_help import HELP_NAMES, PlainCommand
from harbor_gym.cli.recipes.flags import Parser, Spelling
from harbor_gym.cli.shared import FAILED, INTERRUPTED, MISUSED, echo
from harbor_gym.config.verify_paths import parse_verify_paths
from harbor_gym.errors import HarborGymError, MissingDependencyError, TaskError, UsageError

__all__ = ["COMMAND", "INTERRUPTED", "new_app", "one_line_errors", "spelling", "use_litellms_own_prices"]

COMMAND: dict[str, Any] = {"cls": PlainCommand, "context_settings": HELP_NAMES}
"""Keyword arguments of ``app.command``."""

_EPISODES, _TERMINAL = "Episodes", "Terminal"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def spelling(
    *,
    names: Mapping[str, str | None],
    defaults: Mapping[str, str],
    parsers: Mapping[str, Parser] = _NOTHING,
    groups: Mapping[str, str] = _NOTHING,
    with_commas: Collection[str] = (),
) -> Spelling:
    """Return how a configuration with an ``env: TerminalEnvConfig`` is written as flags; its own are given."""
    return Spelling(
        names={
            "env.task_dir": None,
            "env.sandbox": "env",
            "env.sandbox_options": "sandbox-option",
            "env.verifier": "verifier-option",
            "agent_options": "agent-option",
            **names,
        },
        prefixes={"env.terminal": "terminal-"},
        groups={"env": _EPISODES, "env.terminal": _TERMINAL, **groups},
        parsers={
            "env.sandbox_options": sandboxes.parse_options,
            "env.verifier": sandboxes.parse_options,
            "env.verify_paths": parse_verify_paths,
            "agent_options": sandboxes.parse_options,
            **parsers,
        },
        defaults=defaults,
        with_commas=with_commas,
    )


def use_litellms_own_prices() -> None:
    """Keep litellm, which Harbor's agents use, from requesting prices from the internet; before it is imported.

    The policy costs nothing, and without a network each process waits for its attempts.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def new_app() -> typer.Typer:
    """Return an application of one command, whose help shows whole names of flags on any terminal."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@contextlib.contextmanager
def one_line_errors(program: str) -> Generator[None]:
    """Turn our errors into one line on stderr and an exit code."""
    try:
        yield
    except (UsageError, TaskError, MissingDependencyError) as exc:
        echo(f"{program}: {exc}", err=True)
        raise typer.Exit(MISUSED) from exc
    except HarborGymError as exc:
        notes = "".join(f"; {note}" for note in getattr(exc, "__notes__", ()))
        echo(f"{program}: {type(exc).__name__}: {exc}{notes}", err=True)
        raise typer.Exit(FAILED) from exc
