"""A typed client of a served terminal."""

import os
from typing import Any, override

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient

from harbor_gym.adapters.openenv.config import DEFAULT_CALL_TIMEOUT_SEC, TOKEN_VARIABLE
from harbor_gym.adapters.openenv.models import TerminalAction, TerminalObservation, TerminalState

_GRACE_SEC = 60.0
"""The client waits this much longer than the server, whose time-out answer states the reason."""


class HarborTerminalClient(EnvClient[TerminalAction, TerminalObservation, TerminalState]):
    """A session of a served suite. Async; ``.sync()`` blocks, as with every OpenEnv client.

    Args:
        base_url: The server's address.
        token: The server's token; None takes the environment variable ``HARBOR_GYM_OPENENV_TOKEN``, if it is set.
        message_timeout_s: Longest wait for an answer, in seconds. The first reset may build an image: keep it above
            the server's ``call_timeout_sec``.
        headers: Further headers of the connection.
        settings: Other arguments of OpenEnv's ``EnvClient``.

    Example::

        async with HarborTerminalClient("http://127.0.0.1:8000", token=token) as client:
            result = await client.reset(split="train", index=0)
            result = await client.step(TerminalAction(commands=[TerminalCommand(keystrokes="ls\\n")]))
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        token: str | None = None,
        message_timeout_s: float = DEFAULT_CALL_TIMEOUT_SEC + _GRACE_SEC,
        headers: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        given = dict(headers or {})
        token = token or os.environ.get(TOKEN_VARIABLE)
        if token is not None:
            given.setdefault("Authorization", f"Bearer {token}")
        super().__init__(base_url, message_timeout_s=message_timeout_s, headers=given, **settings)

    @override
    def _step_payload(self, action: TerminalAction) -> dict[str, Any]:
        return action.model_dump(exclude_none=True)

    @override
    def _parse_result(self, payload: dict[str, Any]) -> StepResult[TerminalObservation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = TerminalObservation.model_validate({**payload["observation"], "reward": reward, "done": done})
        return StepResult(observation, reward, done)

    @override
    def _parse_state(self, payload: dict[str, Any]) -> TerminalState:
        return TerminalState.model_validate(payload)
