"""All that we know about the inside of Harbor's terminus-json-plain parser.

Source: ``harbor/agents/terminus_2/terminus_json_plain_parser.py`` of harbor 0.24: standard library only, stateless.
Its package imports litellm (seconds, and a network fetch), so the file is loaded by its place and not by its name.
"""

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any, Protocol

from harbor_gym.errors import MissingDependencyError

_FILE = Path("agents", "terminus_2", "terminus_json_plain_parser.py")
_CLASS = "TerminusJSONPlainParser"
_MODULE = "harbor_gym.actions._terminus_json_plain_parser"


class HarborCommand(Protocol):
    """One command as Harbor's parser returns it."""

    keystrokes: str
    duration: float


class HarborVerdict(Protocol):
    """What Harbor's parser returns. The types are what it produces, not what it declares."""

    commands: list[HarborCommand]
    is_task_complete: Any
    error: str
    warning: str
    analysis: Any
    plan: Any


class HarborParser(Protocol):
    """Harbor's parser."""

    def parse_response(self, response: str) -> HarborVerdict:
        """Parse one message; may raise on hostile input."""
        ...


@functools.cache
def load_harbor_parser() -> HarborParser:
    """Load Harbor's parser without its package.

    Raises:
        MissingDependencyError: the installed harbor does not have the parser where 0.24 has it.
    """
    package = importlib.util.find_spec("harbor")
    roots = list(package.submodule_search_locations or []) if package else []
    file = next((path for root in roots if (path := Path(root) / _FILE).is_file()), None)
    spec = importlib.util.spec_from_file_location(_MODULE, file) if file else None
    if spec is None or spec.loader is None:
        raise MissingDependencyError(
            f"Harbor's terminus-json-plain parser was expected at harbor/{_FILE} and is not there (looked in {roots}). "
            "Install the harbor version that harbor-gym pins: pip install 'harbor>=0.24,<0.25'."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses look their module up while it is being executed
    try:
        spec.loader.exec_module(module)
        return getattr(module, _CLASS)()
    except BaseException:
        del sys.modules[_MODULE]
        raise
