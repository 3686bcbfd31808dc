"""Skills and MCP servers of a task's sandbox, and the text that lists them in the instruction."""

import json
import logging
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import yaml
from harbor.environments.base import BaseEnvironment
from harbor.models.task.config import MCPServerConfig

from harbor_gym.errors import printable
from harbor_gym.formats.tool_text import ToolDefinition, encodable, tool_schema

_READ_TIMEOUT_SEC = 30
_MAX_SKILL_BYTES = 16_384
"""Enough for any front matter; the policy reads the rest of a skill itself."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Skill:
    """One skill, as described in the head of its ``SKILL.md``."""

    name: str
    """Its name."""

    description: str
    """When to use it."""

    location: str
    """Path of its ``SKILL.md`` in the sandbox."""


@dataclass(frozen=True)
class Resources:
    """The skills and MCP servers that a task declares for its agent."""

    skills_dir: str | None = None
    """Directory of skills in the sandbox."""

    skills: Sequence[Skill] = ()
    """The skills in it."""

    mcp_servers: Sequence[MCPServerConfig] = ()
    """MCP servers that can be reached from the sandbox."""

    tools: Sequence[ToolDefinition] | None = None
    """The servers' tools, where the policy can call them; None where it has only its shell."""

    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    """Servers whose tools are missing: name → why."""

    def text(self) -> str:
        """Return the text to add to the instruction; empty if there are no resources."""
        parts: list[str] = []
        if self.tools is None and self.mcp_servers:
            parts.append("\n\nMCP servers you can use from the terminal:\n")
            parts += [f"- {server.name} ({server.transport}): {_address(server)}\n" for server in self.mcp_servers]
        if self.tools:
            parts.append("\n\nFurther tools, which you call as you call bash, one JSON schema a line:\n")
            schemas = (json.dumps(tool_schema(tool), ensure_ascii=False) for tool in self.tools)
            parts += [f"{encodable(schema)}\n" for schema in schemas]
        parts += [f"\n[the MCP server {name} has no tools now: {why}]\n" for name, why in self.problems.items()]
        if self.skills:
            parts.append("\n" + _as_xml(self.skills) + "\n")
        return "".join(parts)


async def read_skills(environment: BaseEnvironment, directory: str) -> Sequence[Skill]:
    """Return the skills in a directory of the sandbox, by path; one whose head can't be read is left out.

    Args:
        environment: The sandbox; it is read as its default user.
        directory: The directory with one directory for each skill, which has a ``SKILL.md``.
    """
    mark = f"@{secrets.token_hex(8)}"
    command = (
        f'for f in {shlex.quote(directory.rstrip("/"))}/*/SKILL.md; do [ -f "$f" ] && '
        f'printf \'%s%s\\n\' {mark} "$f" && head -c {_MAX_SKILL_BYTES} "$f" && echo; done; true'
    )
    result = await environment.exec(command, timeout_sec=_READ_TIMEOUT_SEC)
    found = (part.partition("\n") for part in (result.stdout or "").split(mark)[1:])
    return [skill for path, _, text in found if (skill := _parse(path, text)) is not None]


def _parse(path: str, text: str) -> Skill | None:
    _, opened, rest = text.lstrip("\ufeff").partition("---\n")
    head, closed, _ = rest.partition("\n---")
    try:
        fields: Any = yaml.safe_load(head) if opened and closed else None
        return Skill(str(fields["name"]), str(fields["description"]), path)
    except (yaml.YAMLError, KeyError, TypeError) as exc:
        logger.warning("%s describes no skill: %s", path, exc)
        return None


def _address(server: MCPServerConfig) -> str:
    return shlex.join([server.command or "", *server.args]) if server.transport == "stdio" else server.url or ""


def _as_xml(skills: Sequence[Skill]) -> str:
    root = ElementTree.Element("available_skills")
    for skill in skills:
        element = ElementTree.SubElement(root, "skill")
        for name in ("name", "description", "location"):
            ElementTree.SubElement(element, name).text = printable(getattr(skill, name))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode")
