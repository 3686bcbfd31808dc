"""A served terminal as an environment of this process, for the token loop."""

import re
from collections.abc import Awaitable, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self, cast, get_args

from openenv.core.client_types import StepResult as WireResult
from websockets.exceptions import ConnectionClosed, PayloadTooBig

from harbor_gym import errors
from harbor_gym.adapters.openenv.client import HarborTerminalClient
from harbor_gym.adapters.openenv.environment import INFO_FIELDS
from harbor_gym.adapters.openenv.models import End, TerminalAction, TerminalCommand, TerminalObservation
from harbor_gym.env import Action
from harbor_gym.errors import HarborGymError, SandboxLostError, SandboxThrottledError, UsageError
from harbor_gym.outcomes import classify
from harbor_gym.types import ActionFormat, Command, EndReason, EpisodeInfo, ResetInfo, StepResult

_CODE = re.compile(r"Server error: (?P<message>.*) \(code: (?P<code>\w+)\)", re.DOTALL)
_MISUSES = ("EXECUTION_ERROR", "VALIDATION_ERROR", "INVALID_JSON", "UNKNOWN_TYPE")

_BY_KIND = {
    classify(error(kind)).failure_kind: error
    for kind, error in vars(errors).items()
    if isinstance(error, type) and issubclass(error, HarborGymError) and error.is_infrastructure
}


@dataclass(frozen=True)
class RemoteConfig:
    """The part of the server's configuration that the client knows."""

    action_format: ActionFormat = ActionFormat.TERMINUS_JSON
    """The format of the policy's messages."""

    system_prompt: str | None = None
    """The system message; None is the action format's."""


class RemoteTerminalEnv:
    """Episodes of a server as a :class:`harbor_gym.wrappers.TerminalEnv`.

    ``TokenTerminalEnv(RemoteTerminalEnv(client), codec, …)`` plays a served task token by token. A failure of the
    infrastructure raises the error of the server's episode; a broken connection raises ``SandboxLostError``, a full
    server ``SandboxThrottledError``.

    Args:
        client: The client, which this object owns and closes. It connects at the first ``reset``.
        split: The task's split.
        index: The task's index in the split; None leaves the choice to ``seed``.
        seed: Chooses a task if there is no ``index``.
    """

    def __init__(
        self,
        client: HarborTerminalClient,
        *,
        split: str | None = None,
        index: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.config = RemoteConfig()
        chosen = {"split": split, "index": index, "seed": seed}
        self._client = client
        self._chosen = {name: value for name, value in chosen.items() if value is not None}

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, ResetInfo]:
        """Start an episode.

        Args:
            seed: Chooses a task instead of the constructor's ``seed``.
            options: None or empty; this environment has no options.

        Raises:
            HarborGymError: As :meth:`AsyncTerminalGymEnv.reset`; ``SandboxLostError`` if the server can't be reached,
                ``SandboxThrottledError`` if it has no free session.
        """
        if options:
            raise UsageError(f"reset knows no options, got {', '.join(sorted(options))}")
        chosen = self._chosen if seed is None else {**self._chosen, "seed": seed}
        observation = await self._call(self._client.reset(**chosen))
        if observation.action_format is not None:
            self.config = RemoteConfig(observation.action_format, observation.system_prompt)
        return observation.text, cast("ResetInfo", _info(observation))

    async def step(self, action: Action) -> StepResult:
        """Send one message, or commands.

        Raises:
            HarborGymError: As :meth:`AsyncTerminalGymEnv.step`.
        """
        if isinstance(action, str):
            return await self._step(TerminalAction(message=action))
        commands = [item if isinstance(item, Command) else Command(*item) for item in action]
        return await self._step(TerminalAction(commands=[TerminalCommand(**asdict(item)) for item in commands]))

    async def truncate(self, reason: EndReason) -> StepResult:
        """End the episode for a reason that only the caller knows; the server verifies it.

        Raises:
            HarborGymError: As :meth:`AsyncTerminalGymEnv.truncate`.
        """
        return await self._end(reason, is_truncation=True)

    async def finish(self, reason: EndReason = EndReason.COMPLETED) -> StepResult:
        """End the policy's work because it ended in the caller's loop; the server verifies the episode.

        Raises:
            HarborGymError: As :meth:`AsyncTerminalGymEnv.finish`.
        """
        return await self._end(reason, is_truncation=False)

    async def close(self) -> None:
        """End the session. Idempotent."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _end(self, reason: EndReason, *, is_truncation: bool) -> StepResult:
        if reason.is_truncation is not is_truncation or reason not in get_args(End.__value__):
            method = "truncate" if is_truncation else "finish"
            raise UsageError(f"{method} does not take the end {reason.value}")
        return await self._step(TerminalAction.model_validate({"end": reason.value}))

    async def _step(self, action: TerminalAction) -> StepResult:
        observation = await self._call(self._client.step(action))
        reward = 0.0 if observation.reward is None else float(observation.reward)
        return StepResult(observation.text, reward, observation.done, _info(observation))

    async def _call(self, answer: Awaitable[WireResult[TerminalObservation]]) -> TerminalObservation:
        try:
            observation = (await answer).observation
        except (ConnectionClosed, PayloadTooBig, OSError, TimeoutError) as exc:
            raise SandboxLostError(f"the server of the sandbox can't be reached: {exc}") from exc
        except RuntimeError as exc:
            raise _refusal(exc) from exc
        if observation.failure_kind is not None:
            error = _BY_KIND.get(observation.failure_kind, SandboxLostError)
            raise error(observation.error or observation.failure_kind)
        return observation


def _refusal(error: RuntimeError) -> Exception:
    """Return a server's refusal as an error of this package; return any other error unchanged."""
    match = _CODE.fullmatch(str(error))
    if match is None:
        return error
    if match["code"] == "CAPACITY_REACHED":
        return SandboxThrottledError(match["message"])
    return (UsageError if match["code"] in _MISUSES else SandboxLostError)(match["message"])


def _info(observation: TerminalObservation) -> EpisodeInfo:
    found: dict[str, Any] = observation.model_dump(include=INFO_FIELDS, exclude_defaults=True)
    return cast("EpisodeInfo", {"turn": 0, "metrics": {}, **found})
