"""Load Harbor's terminus-json-plain and terminus-xml-plain parsers.

Source: ``harbor/agents/terminus_2/terminus_{json,xml}_plain_parser.py`` of harbor 0.24: standard library only,
stateless. Their package imports litellm (seconds, and a network fetch), so a file is loaded by its path, not by its
name.
"""

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any, Protocol

from harbor_gym.errors import MissingDependencyError
from harbor_gym.types import ActionFormat

_DIRECTORY = Path("agents", "terminus_2")
_PARSERS = {
    ActionFormat.TERMINUS_JSON: ("terminus_json_plain_parser", "TerminusJSONPlainParser"),
    ActionFormat.TERMINUS_XML: ("terminus_xml_plain_parser", "TerminusXMLPlainParser"),
}


class HarborCommand(Protocol):
    """One command as Harbor's parsers return it."""

    keystrokes: str
    duration: float


class HarborVerdict(Protocol):
    """The result of Harbor's parsers. The types are those that they produce, not those that they declare."""

    commands: list[HarborCommand]
    is_task_complete: Any
    error: str
    warning: str
    analysis: Any
    plan: Any


class HarborParser(Protocol):
    """One of Harbor's parsers."""

    def parse_response(self, response: str) -> HarborVerdict:
        """Parse one message; may raise on hostile input."""
        ...


@functools.cache
def load_harbor_parser(action_format: ActionFormat = ActionFormat.TERMINUS_JSON) -> HarborParser:
    """Load Harbor's parser of a terminus format without its package.

    Raises:
        MissingDependencyError: The installed harbor does not have the parser where 0.24 has it.
    """
    stem, class_name = _PARSERS[action_format]
    place = _DIRECTORY / f"{stem}.py"
    package = importlib.util.find_spec("harbor")
    roots = list(package.submodule_search_locations or []) if package else []
    file = next((path for root in roots if (path := Path(root) / place).is_file()), None)
    name = f"harbor_gym.formats._{stem}"
    spec = importlib.util.spec_from_file_location(name, file) if file else None
    if spec is None or spec.loader is None:
        raise MissingDependencyError(
            f"Harbor's {action_format} parser was expected at harbor/{place} and is not there (looked in {roots}). "
            "Install the harbor version that harbor-gym pins: pip install 'harbor>=0.24,<0.27'."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being executed
    try:
        spec.loader.exec_module(module)
        return getattr(module, class_name)()
    except BaseException:
        del sys.modules[name]
        raise
