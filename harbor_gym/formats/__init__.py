"""The action formats: read a policy's message into commands for the terminal."""

from harbor_gym.formats.parse import parse_action
from harbor_gym.formats.parsed import ParsedAction
from harbor_gym.formats.terminus import parse_terminus_json, parse_terminus_xml
from harbor_gym.formats.tool_call import parse_tool_call
from harbor_gym.types import ActionFormat

__all__ = [
    "ActionFormat",
    "ParsedAction",
    "parse_action",
    "parse_terminus_json",
    "parse_terminus_xml",
    "parse_tool_call",
]
