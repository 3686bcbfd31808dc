"""Finds a harness by name, by import path or as a class, and checks its tools; tells Harbor's agents from it."""

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from harbor.models.agent.name import AgentName

from harbor_gym.adapters.trl.bash import BashHarness
from harbor_gym.adapters.trl.harness import ToolHarness
from harbor_gym.adapters.trl.jupyter import JupyterHarness
from harbor_gym.adapters.trl.notes import TerminalNotesHarness
from harbor_gym.errors import UsageError

TERMINAL = "terminal"
"""The harness that writes keystrokes instead of tool calls; it has no class, because the trainer calls no tools."""

_TOOL_HARNESSES: dict[str, type[ToolHarness]] = {
    "bash": BashHarness,
    "jupyter": JupyterHarness,
    "terminal_notes": TerminalNotesHarness,
}

AGENTS = (*_TOOL_HARNESSES, TERMINAL)
"""The names of all harnesses."""

_NO_TOOLS = ("reset", "get_reward")


type Agent = str | type[ToolHarness] | dict[str, Any]
"""A harness, or one of Harbor's agents as :class:`harbor_gym.config.AgentEpisodeConfig` takes it."""


def find_harness(agent: Agent) -> type[ToolHarness] | None:
    """Return the harness of ``agent`` after checking the tools of a class that is not ours.

    Args:
        agent: A name, ``module.path:Class``, a subclass of :class:`ToolHarness`, or the fields of Harbor's
            ``AgentConfig``.

    Returns:
        The harness; None for ``terminal``, and for what may be one of Harbor's agents.

    Raises:
        UsageError: There is no such harness or agent, or its tools can't be shown to a policy.
    """
    if isinstance(agent, dict) or agent == TERMINAL or agent in AgentName.values():
        return None
    found = _find(agent) if isinstance(agent, str) else agent
    if not (inspect.isclass(found) and issubclass(found, ToolHarness)):
        if isinstance(agent, str):
            return None
        raise UsageError(f"agent {agent!r} is no subclass of harbor_gym.adapters.trl.ToolHarness")
    if found not in _TOOL_HARNESSES.values():
        _check_tools(found)
    return found


def _find(agent: str) -> Any:
    if agent in _TOOL_HARNESSES:
        return _TOOL_HARNESSES[agent]
    module, colon, name = agent.partition(":")
    if not colon:
        near = difflib.get_close_matches(agent.lower(), (*AGENTS, *AgentName.values()), n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(AGENTS)}, and Harbor's agents"
        raise UsageError(f"no agent is called {agent!r}; {hint} (a class of your own: module.path:Class)")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module}.".startswith(f"{exc.name}."):
            raise
        raise UsageError(f"agent {agent!r}: there is no module {exc.name!r}") from exc
    except AttributeError as exc:
        known = [key for key, value in vars(importlib.import_module(module)).items() if inspect.isclass(value)]
        near = difflib.get_close_matches(name, known, n=2)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(f"agent {agent!r}: the module has no {name!r}{hint}") from exc


def _check_tools(harness: type[ToolHarness]) -> None:
    from transformers.utils.chat_template_utils import get_json_schema  # seconds to import

    tools = _tools(harness)
    if not tools:
        raise UsageError(f"{harness.__name__} has no tool: give it a public method with a docstring")
    for tool in tools:
        try:
            get_json_schema(tool)
        except Exception as exc:  # transformers raises several kinds for a function that it can't describe
            reason = " ".join(str(exc).split())
            raise UsageError(
                f"{harness.__name__}.{tool.__name__} can't be shown to a policy as a tool: {reason} "
                "(a method that is no tool begins with an underscore)"
            ) from exc


def _tools(harness: type[ToolHarness]) -> list[Callable[..., Any]]:
    # As TRL finds them: https://github.com/huggingface/trl, GRPOTrainer, `environment_factory`.
    functions = inspect.getmembers(harness, predicate=inspect.isfunction)
    return [function for name, function in functions if not name.startswith("_") and name not in _NO_TOOLS]
