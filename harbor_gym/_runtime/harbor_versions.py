"""The differences between the supported versions of Harbor, each with the version that brought it.

No other module asks for Harbor's version, or whether a class of Harbor's has an attribute.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from harbor_gym._runtime.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harbor.environments.base import BaseEnvironment
    from harbor.environments.capabilities import EnvironmentResourceCapabilities
    from harbor.models.task.config import MCPServerConfig
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TrialConfig
    from harbor.models.trial.result import ExceptionInfo, TrialResult

VERSION = tuple(int(number) for number in re.findall(r"\d+", importlib.metadata.version("harbor"))[:2])
"""Harbor's major and minor version."""

_FRACTIONAL_CPUS = (0, 25)
_TYPED_OPTIONS = (0, 26)
_MCP_HEADERS = (0, 26)
_VERIFIER_NETWORKS = (0, 25)
_AGENT_CONNECTIONS = (0, 25)
_ERROR_POLICIES = (0, 26)
_FILE_FILTERS = (0, 26)
_SERVER = (0, 26)
_LINT = (0, 26)

ENDS_OF_AGENTS = (
    *("NonZeroAgentExitCodeError", "AgentTimeoutError", "AgentSafetyRefusalError", "ContentPolicyViolationError"),
    *("ContextWindowExceededError", "ContextLengthExceededError"),
    *("OutputTokenExceededError", "OutputLengthExceededError"),
)
"""Exceptions that end an agent and let its reward count. Harbor also counts the reward beside exceptions that it does
not know; this package does not.

Source: ``ERROR_POLICIES`` of Harbor 0.26, ``models/trial/error_policy.py``. 0.25 has them too, except a non-zero exit,
which it calls unclassified; 0.24 has none.
"""

NON_ZERO_EXIT = "NonZeroAgentExitCodeError"
"""An agent's program ended with another code than 0, for a reason that Harbor does not classify."""


REFUSED_AGENT = ("AuthenticationError", "AgentAuthenticationError", "PermissionDeniedError")
"""Exceptions that end an agent whose calls the gateway refused because a budget had run out."""


def file_filter_class() -> Any:
    """Return Harbor's class that selects a task's files by its .harborignore; None before 0.26."""
    if VERSION < _FILE_FILTERS:
        return None
    return importlib.import_module("harbor.models.task.file_filter").TaskFileFilter


def run_preflight(config: EnvironmentConfig) -> None:
    """Run a sandbox class's own checks. Since 0.26 they see the sandbox's options, and refuse unknown ones."""
    from harbor.environments.factory import EnvironmentFactory

    options = {"kwargs": config.kwargs} if VERSION >= _TYPED_OPTIONS else {}
    EnvironmentFactory.run_preflight(config.type, config.import_path, **options)


def network_settings(config: TrialConfig) -> tuple[Any, ...]:
    """Return the settings that a trial's networks are resolved from. Since 0.25 the verifier's are among them."""
    return (config.agent, config.environment, *((config.verifier,) if VERSION >= _VERIFIER_NETWORKS else ()))


def base_url_of(agent: AgentConfig) -> str | None:
    """Return the model's address that an agent's configuration names, in a field of its own since 0.25."""
    return getattr(agent, "base_url") if VERSION >= _AGENT_CONNECTIONS else None  # noqa: B009  # older types lack it


def recorded_exceptions(result: TrialResult) -> list[ExceptionInfo]:
    """Return the exceptions that a trial recorded, its own before those of its steps."""
    infos = [result.exception_info, *(step.exception_info for step in result.step_results or ())]
    return [info for info in infos if info is not None]


def is_end_of_agent(info: ExceptionInfo) -> bool:
    """Return whether an exception ended only the agent, so that the trial's reward counts.

    Since 0.26 Harbor's own error policy, which a run may override, must allow it as well.
    """
    is_denied = VERSION >= _ERROR_POLICIES and not getattr(info, "policy").has_valid_reward  # noqa: B009
    return info.exception_type in ENDS_OF_AGENTS and not is_denied


def is_exit_of_agent(info: ExceptionInfo) -> bool:
    """Return whether an agent's program ended with another code than 0, for whatever reason Harbor read in its output.

    Source: the classes below ``NonZeroAgentExitCodeError`` of the agents that were imported.
    """
    names, kinds = set[str](), [importlib.import_module("harbor.agents.installed.base").NonZeroAgentExitCodeError]
    while kinds:
        kind = kinds.pop()
        names.add(kind.__name__)
        kinds += kind.__subclasses__()
    return info.exception_type in names


def require_server() -> None:
    """Check that the installed Harbor has a server and its client, new in 0.26.

    Raises:
        UsageError: It has none.
    """
    if VERSION < _SERVER:
        raise UsageError(
            f"Harbor's server is new in Harbor 0.26, and {importlib.metadata.version('harbor')} is installed here: "
            "pip install 'harbor>=0.26,<0.27' (docs/guide/harbor-versions.md lists what fits beside it)"
        )


def server_client(url: str, api_key: str | None) -> Any:
    """Return a client of Harbor's server: an ``AsyncHarbor``, to close after use.

    Raises:
        UsageError: The installed Harbor has none, or the address is invalid.
    """
    require_server()
    try:
        return importlib.import_module("harbor.client").AsyncHarbor(url, api_key=api_key)
    except ValueError as exc:
        raise UsageError(f"Harbor's server {url!r}: {exc}") from None


def server_error() -> type[Exception]:
    """Return the class of the errors of a client of Harbor's server, with ``status_code`` and ``details``."""
    return importlib.import_module("harbor.client").APIError


def graded_after_refusal() -> dict[str, Any]:
    """Return the job setting (since 0.26) that grades an agent although the gateway refused its calls."""
    return {name: {"should_grade": True, "has_valid_reward": True} for name in REFUSED_AGENT}


def lint(task_dir: Path) -> tuple[str, ...]:
    """Return the findings of ``harbor lint`` (since 0.26) in a task, by the rules that the task selects, a line each.

    An older Harbor finds nothing. A failure to lint is one line, too.
    """
    if VERSION < _LINT:
        return ()
    root = task_dir.resolve()
    names = ("harbor.cli.lint", "harbor.lint", "harbor.lint.models", "harbor.lint.compose")
    command, task, models, compose = map(importlib.import_module, names)
    try:
        rules = getattr(command, "_selected_rules")(root, models.LintConfig())  # noqa: B009  # its one private name
        found = models.sort_findings(task.lint_task(root, selected_rules=rules))
    except compose.ComposeLoadError as exc:
        return (f"the task can't be linted: {exc}",)
    except Exception as exc:  # As Harbor's own command: the text of a parser's error may contain secrets.
        return (f"the task can't be linted: {type(exc).__name__}, from its files or their permissions",)
    return tuple(f"{_place(item, root)} [{item.rule}] {item.message}" for item in found)


def check_options(kind: type[BaseEnvironment], options: dict[str, Any] | None) -> None:
    """Refuse options that a sandbox class does not have, as Harbor's own classes do since 0.26.

    Raises:
        ValueError: An option is unknown or has a wrong value.
    """
    if VERSION >= _TYPED_OPTIONS:
        getattr(kind, "parse_options")(options)  # noqa: B009  # a name that older Harbors' types lack


def resource_capabilities(*, cpu_limit: bool = False, memory_limit: bool = False) -> EnvironmentResourceCapabilities:
    """Return the limits that a sandbox can enforce. Since 0.25 ``cpus`` may be a fraction, if a sandbox declares it."""
    from harbor.environments.capabilities import EnvironmentResourceCapabilities

    fractions: dict[str, bool] = {"fractional_cpus": True} if VERSION >= _FRACTIONAL_CPUS else {}
    return EnvironmentResourceCapabilities(cpu_limit=cpu_limit, memory_limit=memory_limit, **fractions)


def declares_options[T](kind: type[T]) -> type[T]:
    """Let Harbor validate and print a sandbox class's ``own_options``, a pydantic model, as it does since 0.26."""
    if VERSION >= _TYPED_OPTIONS:
        shared = importlib.import_module("harbor.environments.options").EnvironmentOptions
        bases = getattr(kind, "own_options"), getattr(kind, "options_model", None) or shared  # noqa: B009  # one each
        model = create_model(f"{kind.__name__}Options", __base__=bases, __module__=kind.__module__)
        setattr(kind, "options_model", model)  # noqa: B010  # a name that older Harbors' types lack
    return kind


def declared_headers(server: MCPServerConfig) -> Mapping[str, str]:
    """Return the headers (since 0.26) of requests to an MCP server as in the task: with names of variables."""
    return getattr(server, "headers", {})  # older Harbors' types lack it


def mcp_headers(server: MCPServerConfig) -> dict[str, str]:
    """Return the headers of requests to an MCP server, with the values of this process's variables.

    Raises:
        ValueError: A variable is not set.
    """
    if not (declared := declared_headers(server)):
        return {}
    fill_in = importlib.import_module("harbor.utils.env").resolve_embedded_env_vars
    return {name: fill_in(value, os.environ.get) for name, value in declared.items()}


def header_capability() -> dict[str, bool]:
    """Return the declared capability (since 0.26) of an agent that can send the headers of MCP servers."""
    return {"mcp_http_headers": True} if VERSION >= _MCP_HEADERS else {}


def _place(finding: Any, root: Path) -> str:
    """Return a finding's path in the task, and its line if there is one."""
    path = Path(finding.path)
    shown = path.relative_to(root) if path.is_relative_to(root) else path
    return str(shown) if finding.line is None else f"{shown}:{finding.line}"
