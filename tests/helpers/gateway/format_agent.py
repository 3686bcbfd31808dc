"""An agent for Harbor's trials that sends chat completions and types by our terminal format."""

import asyncio
import json
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Any, ClassVar, cast, override

import aiohttp
import yarl
from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.installed.base import NonZeroAgentExitCodeError
from harbor.agents.installed.mini_swe_agent import MiniSweAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from harbor_gym import ActionFormat, Command, TerminalConfig
from harbor_gym.formats import parse_action, prompts
from harbor_gym.formats.tool_call import TERMINAL_TOOLS
from harbor_gym.formats.tool_text import tool_schema
from harbor_gym.terminal import Terminal, open_terminal
from tests.helpers.harbor_trials import PlainAgent

FORMAT = ActionFormat.TERMINUS_JSON


class FormatAgent(PlainAgent):
    """The loop of ``TokenTerminalEnv``, written once more as a foreign agent would: in text, over HTTP."""

    capabilities: ClassVar[AgentCapabilities] = AgentCapabilities(skills=True, mcp_servers=True)

    def __init__(self, *args: Any, base_url: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._url = f"{base_url}/v1/chat/completions"
        self.headers = dict[str, str]()

    @staticmethod
    @override
    def name() -> str:
        return "format"

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        terminal = await open_terminal(environment, TerminalConfig(), user=environment.default_user)
        try:
            async with aiohttp.ClientSession(headers=self.headers, raise_for_status=True) as client:
                await self._converse(client, terminal, instruction)
        finally:
            await terminal.close()

    async def _converse(self, client: aiohttp.ClientSession, terminal: Terminal, instruction: str) -> None:
        screen = (await terminal.run([])).text
        messages = [
            {"role": "system", "content": prompts.system_prompt(FORMAT)},
            {"role": "user", "content": prompts.first_message(instruction, screen)},
        ]
        while True:
            (choice,) = (await self._ask(client, {"model": "policy", "messages": messages}))["choices"]
            if choice["finish_reason"] == "length":
                return
            answer = choice["message"]["content"]
            parsed = parse_action(answer, format=FORMAT)
            if parsed.error is not None:
                shown = prompts.parse_error(parsed.error, parsed.warning, FORMAT)
            else:
                turn = await terminal.run(parsed.commands)
                if turn.ended or parsed.task_complete:
                    return
                shown = prompts.with_warning(parsed.warning, turn.text)
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": shown}]

    async def _ask(self, client: aiohttp.ClientSession, body: dict[str, Any]) -> Any:
        async with client.post(self._url, json=body) as response:
            return await response.json()


class ToolAgent(FormatAgent):
    """An agent with one tool, ``bash``; an answer without a call is its last."""

    @override
    async def _converse(self, client: aiohttp.ClientSession, terminal: Terminal, instruction: str) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": instruction}]
        while True:
            body = {"model": "policy", "messages": messages, "tools": [tool_schema(TERMINAL_TOOLS[0])]}
            (choice,) = (await self._ask(client, body))["choices"]
            messages.append(choice["message"])
            if not (calls := choice["message"].get("tool_calls")):
                return
            for call in calls:
                command = json.loads(call["function"]["arguments"])["command"]
                shown = (await terminal.run([Command(f"{command}\n", 1.0)])).text
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": shown})


class DelegatingAgent(FormatAgent):
    """Have a sub-agent, with a system prompt of its own, look behind the first answer, in two turns."""

    _has_asked = False

    @override
    async def _ask(self, client: aiohttp.ClientSession, body: dict[str, Any]) -> Any:
        answer = await super()._ask(client, body)
        if not self._has_asked:
            self._has_asked = True
            messages = [{"role": "system", "content": "You are a sub-agent."}, {"role": "user", "content": "Look."}]
            for _ in range(2):
                (choice,) = (await super()._ask(client, {"model": "policy", "messages": messages}))["choices"]
                messages += [choice["message"], {"role": "user", "content": "And?"}]
        return answer


class CrowdingAgent(FormatAgent):
    """Send more requests at once than are taken, and exit as a program in the sandbox that fails on the refusal."""

    def __init__(self, *args: Any, requests: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._requests, self._asked = requests, False

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        try:
            await super().run(instruction, environment, context)
        except aiohttp.ClientResponseError as exc:
            if exc.status != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            raise NonZeroAgentExitCodeError("Command failed (exit 1)") from exc

    @override
    async def _ask(self, client: aiohttp.ClientSession, body: dict[str, Any]) -> Any:
        if not self._asked:
            self._asked = True
            return await super()._ask(client, body)
        url = yarl.URL(self._url)
        assert url.host is not None
        headers = [f"POST {url.raw_path} HTTP/1.1", f"Host: {url.authority}", "Content-Length: 9"]
        headers += [f"{name}: {value}" for name, value in self.headers.items()]
        async with AsyncExitStack() as stack:
            for _ in range(self._requests):  # their bodies never come
                _, writer = await asyncio.open_connection(url.host, url.port)
                stack.callback(writer.close)
                writer.write("\r\n".join([*headers, "", ""]).encode())
            while True:
                await super()._ask(client, body)


class LogReadingAgent(FormatAgent):
    """The same agent, whose logs Harbor reads as those of mini-swe-agent."""

    @override
    def populate_context_post_run(self, context: AgentContext) -> None:
        MiniSweAgent.populate_context_post_run(cast(MiniSweAgent, self), context)


class UnwritableAgent(FormatAgent):
    """The same agent, whose own report Harbor can't write into the trial's result."""

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await super().run(instruction, environment, context)
        context.metadata = {"last": "\ud800"}


class UninstallableAgent(FormatAgent):
    """The same agent with an installer that fails."""

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        raise RuntimeError("curl: (6) Could not resolve host: registry.example")
