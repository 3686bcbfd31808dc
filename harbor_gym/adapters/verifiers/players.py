"""Play an episode through verifiers' endpoint, which records every model call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import verifiers.v1 as vf

from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.adapters.verifiers.outcome import Outcome, budget_of
from harbor_gym.config import AgentEpisodeConfig, AnyEpisode
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.formats.tool_call import TERMINAL_TOOLS
from harbor_gym.formats.tool_text import tool_schema
from harbor_gym.gateway.proxy import ProxyCodec, ProxySampler
from harbor_gym.pool import WarmPool
from harbor_gym.samplers import BudgetSpentError, ChatAnswer, ChatEndpoint, run_chat_episode
from harbor_gym.samplers.attempts import StatusError
from harbor_gym.samplers.statuses import EngineSettingsError
from harbor_gym.types import ActionFormat


@dataclass(frozen=True)
class Endpoint:
    """verifiers' interception endpoint of one rollout."""

    url: str
    """The endpoint's URL."""

    secret: str
    """The bearer token that identifies the rollout."""

    model: str
    """The model's name."""

    trace: vf.Trace
    """The rollout's record, which has the reason of a refused call."""

    system_prompt: str | None = None
    """Text to append to the system prompt, such as a prompt optimiser's."""

    has_answered: bool = False
    """Whether the model has answered in an earlier episode."""

    def open(self) -> ChatEndpoint:
        """Return a client without limits, since verifiers sets them."""
        endpoint = ChatEndpoint(self.url, self.model, max_tokens=None, timeout_sec=None, api_key=self.secret)
        endpoint.history.has_answered = self.has_answered
        return endpoint


class _Asker:
    """Calls an endpoint, and turns its refusal of a turn into a ``BudgetSpentError``."""

    def __init__(self, endpoint: ChatEndpoint, address: Endpoint) -> None:
        self._endpoint, self._address = endpoint, address

    async def __call__(self, messages: Sequence[Any], *, tools: Sequence[Any] = ()) -> ChatAnswer:
        if (suffix := self._address.system_prompt) is not None:
            messages = [_extended(message, suffix) for message in messages]
        try:
            return await self._endpoint(messages, tools=tools)
        except (StatusError, EngineSettingsError) as exc:
            stopped = self._address.trace.stop_condition
            if stopped is None:
                raise
            spent = BudgetSpentError(f"verifiers stopped the rollout: {stopped}")
            spent.reason = budget_of(stopped)
            raise spent from exc


async def play(
    config: AnyEpisode, address: Endpoint, *, pool: WarmPool | None, ends_without_tool_call: bool
) -> Outcome:
    """Play an episode in this package's own loop, or by one of Harbor's agents behind the gateway.

    Args:
        config: The task, the sandbox, the budgets, and the agent.
        address: The policy's endpoint, which the gateway calls with chat completions for any agent's wire.
        pool: The pool of our own loop's sandbox; None starts one.
        ends_without_tool_call: See :func:`harbor_gym.samplers.run_chat_episode`.

    Raises:
        HarborGymError: The infrastructure or the agent failed, or the task or a setting is wrong.
    """
    async with address.open() as endpoint:
        asker = _Asker(endpoint, address)
        if isinstance(config, AgentEpisodeConfig):
            interface = RolloutInterface(config, ProxySampler(asker), ProxyCodec(), max_retries=0)  # verifiers retries
            return Outcome.of(await interface.run_one(config.task_dir), config)
        env = AsyncTerminalGymEnv(config, pool=pool)
        # verifiers' clients parse tool calls, and drop calls of tools that the request does not declare.
        own = TERMINAL_TOOLS if config.action_format is ActionFormat.BASH_TOOL else ()

        async def ask(messages: Sequence[Any]) -> ChatAnswer:
            return await asker(messages, tools=[tool_schema(tool) for tool in (*own, *env.tools)])

        return Outcome.of(await run_chat_episode(env, ask, ends_without_tool_call=ends_without_tool_call), config)


def _extended(message: dict[str, Any], suffix: str) -> dict[str, Any]:
    if message["role"] != "system":
        return message
    return {**message, "content": f"{message['content']}\n\n{suffix}"}
