"""The MCP servers of a task as tools of the policy.

A server runs in the sandbox, and the policy may be root there: its answers are content like the terminal's, and its
failure is an observation, never an infrastructure failure.
"""

from harbor_gym.episode.mcp.servers import McpServers, ToolResult

__all__ = ["McpServers", "ToolResult"]
