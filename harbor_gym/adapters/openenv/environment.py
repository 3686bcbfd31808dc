"""The terminal as an OpenEnv environment."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any, cast, override

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

import harbor_gym
from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters.openenv.config import ServerConfig
from harbor_gym.adapters.openenv.episodes import ServedSlot, served_episodes
from harbor_gym.adapters.openenv.models import TerminalAction, TerminalObservation, TerminalState
from harbor_gym.adapters.openenv.suite import TaskSuite
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.outcomes import classify
from harbor_gym.slots import SlotOwner
from harbor_gym.types import EndReason, EpisodeInfo, StepResult

_ERROR_CHARACTERS = 4000
"""Longest error message that is sent, in characters: a message may quote a build's output."""

INFO_FIELDS = set(TerminalObservation.model_fields) & EpisodeInfo.__annotations__.keys()
"""The fields of an episode's ``info`` that an observation has, under the same names."""


class HarborTerminalEnvironment(Environment[TerminalAction, TerminalObservation, TerminalState]):
    """One session of a served suite: any number of episodes, one after the other.

    The work runs on harbor_gym's own event loop, independent of the server's. The constructor starts no sandbox;
    ``close`` and the server's end stop the sandbox that ``reset`` started.

    Args:
        suite: The tasks.
        config: How their episodes are played.
        episodes: Owns the episodes of all sessions, and closes them with the server; None makes a separate owner.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, suite: TaskSuite, config: ServerConfig, episodes: SlotOwner | None = None) -> None:
        super().__init__()
        self._suite, self._config = suite, config
        self._episodes = episodes or served_episodes()
        self._slot: ServedSlot | None = None
        self._disown: Callable[[], None] = lambda: None
        self._state = TerminalState()

    # -- episodes ------------------------------------------------------------------------------------------------

    @override
    async def reset_async(  # pyright: ignore[reportIncompatibleMethodOverride]  # narrows **kwargs by name
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        task: str | None = None,
        **unknown: Any,
    ) -> TerminalObservation:
        """Start an episode in a fresh sandbox; the last one is closed first.

        Args:
            seed: Without ``index`` and ``task``, chooses the task at ``seed`` modulo the number of tasks. Without a
                seed the task is drawn at random.
            episode_id: The episode's name in the state; None generates one.
            split: ``train`` or ``test``; None is ``train``.
            index: The task's index in its split, from 0.
            task: The task's name, instead of ``index``.
            unknown: Other arguments, which are refused.

        Returns:
            The terminal and the instruction. If the infrastructure failed, the observation is done, without a reward
            and with a ``failure_kind``.

        Raises:
            HarborGymError: An argument, the task or the configuration is wrong, which no retry can repair.
        """
        if unknown:
            raise UsageError(f"reset takes seed, episode_id, split, index and task, got {', '.join(sorted(unknown))}")
        choice = self._suite.choose(split, index, task, seed)
        self._state = TerminalState(
            episode_id=uuid.uuid4().hex if episode_id is None else episode_id,
            split=choice.split,
            index=choice.index,
            task=choice.task.name,
        )
        config = self._config.env.model_copy(update={"task_dir": choice.task.path})
        try:
            text, info = await get_portal().run(self._open_slot().begin, config)
        except HarborGymError as exc:
            return _lost(exc)
        return _observe(text, info, action_format=config.action_format, system_prompt=config.system_prompt)

    @override
    async def step_async(self, action: TerminalAction, timeout_s: float | None = None, **unused: Any) -> Any:
        """Do one step.

        Args:
            action: The policy's action.
            timeout_s: Ignored, part of OpenEnv's signature; the server's ``call_timeout_sec`` applies.
            unused: Ignored, part of OpenEnv's signature.

        Returns:
            A :class:`TerminalObservation`. If the infrastructure failed, it is done, without a reward and with a
            ``failure_kind``.

        Raises:
            HarborGymError: There is no running episode, or the task is wrong, which no retry can repair.
        """
        if self._slot is None:
            raise UsageError("step can't be called before reset")

        def step(env: AsyncTerminalGymEnv) -> Awaitable[StepResult]:
            return _apply(action, env)

        try:
            text, reward, done, info = await get_portal().run(self._slot.act, step)
        except HarborGymError as exc:
            return _lost(exc)
        self._state.step_count += 1
        return _observe(text, info, reward=reward, done=done)

    @override
    def reset(  # pyright: ignore[reportIncompatibleMethodOverride]  # as its async form
        self, seed: int | None = None, episode_id: str | None = None, **chosen: Any
    ) -> TerminalObservation:
        """Do as :meth:`reset_async`, and block until it is done."""
        return get_portal().call(self.reset_async, seed, episode_id, **chosen)

    @override
    def step(self, action: TerminalAction, timeout_s: float | None = None, **unused: Any) -> TerminalObservation:
        """Do as :meth:`step_async`, and block until it is done."""
        return get_portal().call(self.step_async, action, timeout_s)

    @property
    @override
    def state(self) -> TerminalState:
        """The running episode."""
        return self._state

    @override
    def close(self) -> None:
        """Stop the sandbox. Idempotent; blocks while one stops."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._disown()
            get_portal().call(slot.close)

    def _open_slot(self) -> ServedSlot:
        if self._slot is None:
            self._slot = ServedSlot(self._config, self._episodes)
            self._disown = get_portal().own(self, self._slot.close)
        return self._slot

    # -- OpenEnv's task API ----------------------------------------------------------------------------------------

    def list_splits(self) -> list[dict[str, str]]:
        """Return the splits."""
        return [{"name": name, "type": name} for name in self._suite.splits]

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks in a split."""
        return len(self._suite.tasks(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Return a task: ``id`` (its name), ``index``, ``split``, ``instruction``, ``digest``."""
        return self._suite.describe(split, index)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Return every task of a split."""
        return self.get_task_range(split)

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Return the tasks of a slice of a split."""
        places = range(self.num_tasks(split))[start:stop]
        return [self.get_task(split, index) for index in places]

    @override
    def get_metadata(self) -> EnvironmentMetadata:
        """Return the environment's name, description and version."""
        return EnvironmentMetadata(
            name="harbor_terminal",
            description="A terminal in the sandbox of a Harbor task; the reward is the task verifier's.",
            version=harbor_gym.__version__,
        )


async def _apply(action: TerminalAction, env: AsyncTerminalGymEnv) -> StepResult:
    if action.end is not None:
        reason = EndReason(action.end)
        return await (env.truncate(reason) if reason.is_truncation else env.finish(reason))
    if action.message is not None:
        return await env.step(action.message)
    return await env.step([command.as_command() for command in action.commands or ()])


def _observe(text: str, info: EpisodeInfo, **rest: Any) -> TerminalObservation:
    shown = {name: value for name, value in cast("dict[str, Any]", info).items() if name in INFO_FIELDS}
    return TerminalObservation.model_validate({**shown, "waits": list(info.get("waits", ())), "text": text, **rest})


def _lost(error: HarborGymError) -> TerminalObservation:
    """Return the observation of a lost episode.

    Raises:
        HarborGymError: The error itself, if it is not a failure of the infrastructure.
    """
    if not error.is_infrastructure:
        raise error
    return TerminalObservation(
        done=True,
        reward=None,
        end_reason=EndReason.INFRASTRUCTURE_ERROR,
        failure_kind=classify(error).failure_kind,
        error=str(error)[:_ERROR_CHARACTERS],
    )
