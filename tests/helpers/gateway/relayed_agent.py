"""Agents for Harbor's server (0.26): their addresses and keys come from its inference relay."""

import asyncio
import importlib
from typing import Any, override

import aiohttp
from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.installed.base import NonZeroAgentExitCodeError
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from harbor_gym.terminal import Terminal
from tests.helpers.gateway.format_agent import CrowdingAgent, FormatAgent
from tests.helpers.gateway.inner_agent import InnerAgent

_resolution: Any = importlib.import_module("harbor.agents.agent_auth_resolution")


_CONNECTION = _resolution.ModelConnectionSpec(base_url_destination_names={"default": None})
_CAPABILITIES = AgentCapabilities.model_validate({"skills": True, "mcp_servers": True, "base_url": True})


class RelayedAgent(FormatAgent):
    """The same loop, by Harbor's own way to an endpoint."""

    MODEL_CONNECTION = _CONNECTION
    capabilities = _CAPABILITIES

    def __init__(self, *args: Any, base_url: str, extra_env: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, base_url=base_url, extra_env=extra_env, **kwargs)
        self.headers = {"Authorization": f"Bearer {extra_env['HARBOR_MODEL_API_KEY']}"}


class RelayedInnerAgent(InnerAgent):
    """The agent with its program in the sandbox."""

    MODEL_CONNECTION = _CONNECTION
    capabilities = _CAPABILITIES

    def __init__(self, *args: Any, base_url: str, extra_env: dict[str, str], **kwargs: Any) -> None:
        key = extra_env["HARBOR_MODEL_API_KEY"]
        super().__init__(*args, url=base_url, key=key, extra_env=extra_env, **kwargs)


class PatientAgent(RelayedAgent):
    """It asks again when the answer is a server's error, as the clients of model providers do."""

    @override
    async def _ask(self, client: aiohttp.ClientSession, body: dict[str, Any]) -> Any:
        for _ in range(100):
            try:
                return await super()._ask(client, body)
            except aiohttp.ClientResponseError as exc:
                if exc.status < 500:
                    raise
                await asyncio.sleep(0.2)
        raise TimeoutError


class ExitingAgent(RelayedAgent):
    """Ends like a program that fails in the sandbox for an unknown reason, with an uninformative status."""

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        try:
            await super().run(instruction, environment, context)
        except aiohttp.ClientError as exc:
            raise NonZeroAgentExitCodeError(f"Command failed (exit 1): {exc}") from exc


class CrowdingRelayedAgent(CrowdingAgent, RelayedAgent):
    """It fails on the relay's own refusal of too many requests."""


class RefusedAgent(RelayedAgent):
    """It names a refusal as litellm does."""

    @override
    async def _converse(self, client: aiohttp.ClientSession, terminal: Terminal, instruction: str) -> None:
        try:
            await super()._converse(client, terminal, instruction)
        except aiohttp.ClientResponseError as exc:
            kind = "AuthenticationError" if exc.status == 401 else "BadRequestError"
            raise type(kind, (Exception,), {})(str(exc)) from exc
