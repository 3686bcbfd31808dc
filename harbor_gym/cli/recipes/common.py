"""The common part of the recipes' commands: an episode's settings as flags."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import typer

from harbor_gym import sandboxes
from harbor_gym.cli import completion
from harbor_gym.cli.plain_help import HELP_NAMES, PlainCommand
from harbor_gym.cli.recipes.flags import Completion, Parser, Spelling
from harbor_gym.config import AgentEpisodeConfig, EpisodeConfig
from harbor_gym.config.verify_paths import parse_verify_paths

COMMAND: dict[str, Any] = {"cls": PlainCommand, "context_settings": HELP_NAMES}
"""Keyword arguments of ``app.command``."""

TRACK_DEFAULTS = {"track.project": "harbor-gym; of a sweep, its folder's name", "track.name": "the folder's name"}

_EPISODES, _TERMINAL, _AGENT = "Episodes", "Terminal", "One of Harbor's agents"
_AGENT_FIELDS = [f"env.{name}" for name in AgentEpisodeConfig.model_fields if name not in EpisodeConfig.model_fields]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def spelling(
    *,
    names: Mapping[str, str | None],
    defaults: Mapping[str, str],
    parsers: Mapping[str, Parser] = _NOTHING,
    groups: Mapping[str, str] = _NOTHING,
    with_commas: Collection[str] = (),
    also: Mapping[str, Sequence[str]] = _NOTHING,
    completions: Mapping[str, Completion] = _NOTHING,
    common: Collection[str] = (),
) -> Spelling:
    """Return the spelling of a configuration that has an episode's record as ``env``, with its own additions."""
    return Spelling(
        names={
            "env.task_dir": None,
            "env.sandbox": "env",
            "env.sandbox_options": "sandbox-option",
            "env.verifier": "verifier-option",
            "env.agent_options": "agent-option",
            "track.tracker": "track",
            **names,
        },
        prefixes={"env.terminal": "terminal-", "track": "track-"},
        groups={"env": _EPISODES, "env.terminal": _TERMINAL, **dict.fromkeys(_AGENT_FIELDS, _AGENT), **groups},
        parsers={
            "env.sandbox_options": sandboxes.parse_options,
            "env.verifier": sandboxes.parse_options,
            "env.verify_paths": parse_verify_paths,
            "env.agent_options": sandboxes.parse_options,
            **parsers,
        },
        defaults=defaults,
        with_commas=with_commas,
        also=also,
        completions={"env.sandbox": completion.sandboxes, "env.agent": completion.agents, **completions},
        common=common,
    )


def new_app() -> typer.Typer:
    """Return a typer application for one command, without completion or rich output."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
