"""Many terminals in one process: ``gym.make_vec("HarborTerminal-v0", num_envs=…)`` steps them concurrently."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, override

import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from numpy.typing import NDArray

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.portal import Portal, get_portal, refuse_to_copy
from harbor_gym._runtime.task_groups import task_group
from harbor_gym.adapters.gymnasium.interface import RENDER_MODES, ActionKind, Interface, ObservationKind
from harbor_gym.adapters.gymnasium.sub_env import SubEnv
from harbor_gym.adapters.gymnasium.tasks import TaskSet
from harbor_gym.errors import HarborGymError, UsageError

ERROR = "infrastructure_error"
"""Key in ``infos``: the exceptions of sub-environments whose sandbox, terminal or verifier failed, else None."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of one call for one sub-environment."""

    observation: Any
    info: dict[str, Any]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    needs_reset: bool = False


class HarborTerminalVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """``num_envs`` terminals, each in its own sandbox, stepped concurrently on one event loop.

    An infrastructure failure affects only its sub-environment, which gets the reward NaN (an average over it is NaN
    too), ``truncated``, an empty observation, and its exception in ``infos["infrastructure_error"]``. Exclude from
    training those that ``infos["_infrastructure_error"]`` marks. The next reset, in any autoreset mode, starts a
    fresh sandbox. If *all* sub-environments fail to reset, the first error is raised.

    Args:
        num_envs: Number of sub-environments.
        task_dir: As for :class:`HarborTerminalEnv`.
        task_dirs: As for :class:`HarborTerminalEnv`; each reset draws each sub-environment's task again.
        action: As for :class:`HarborTerminalEnv`.
        observation: As for :class:`HarborTerminalEnv`.
        render_mode: As for :class:`HarborTerminalEnv`, but not ``human``.
        autoreset_mode: When a finished sub-environment starts its next episode; see Gymnasium's ``AutoresetMode``.
        max_episode_steps: The default of ``max_turns``; such an episode is verified.
        settings: Fields of :class:`harbor_gym.TerminalEnvConfig`.

    Raises:
        UsageError: An argument is wrong, or there is no task in ``task_dirs``.
    """

    metadata: dict[str, Any] = {"render_modes": [mode for mode in RENDER_MODES if mode != "human"]}  # noqa: RUF012 - as Gymnasium declares it
    __getstate__ = refuse_to_copy

    def __init__(
        self,
        num_envs: int = 1,
        task_dir: StrPath | None = None,
        *,
        task_dirs: StrPath | Sequence[StrPath] | None = None,
        action: ActionKind = "keystrokes",
        observation: ObservationKind = "text",
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        **settings: Any,
    ) -> None:
        if num_envs < 1:
            raise UsageError(f"num_envs is at least 1, got {num_envs}")
        if render_mode == "human":
            raise UsageError("render_mode 'human' shows one terminal; render several as 'ansi' or 'rgb_array'")
        if max_episode_steps is not None:
            settings.setdefault("max_turns", max_episode_steps)
        interface = Interface.make(TaskSet(task_dir, task_dirs), action, observation, render_mode, settings)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**type(self).metadata, "render_fps": 4, "autoreset_mode": self.autoreset_mode}
        self.single_action_space = interface.action_space()
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.single_observation_space = interface.observation_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._interface = interface
        self._sub_envs = [SubEnv(interface) for _ in range(num_envs)]
        self._randoms = [seeding.np_random()[0] for _ in range(num_envs)]
        self._observations = [interface.nothing() for _ in range(num_envs)]
        self._needs_reset = np.ones(num_envs, dtype=np.bool_)
        self._portal: Portal | None = None
        self._disown: Callable[[], None] = lambda: None

    @override
    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every sub-environment, or in those that ``options["reset_mask"]`` marks.

        Args:
            seed: The first sub-environment's seed, incremented by one for each further one, or a seed for each.
            options: ``task``: the task of all these episodes. ``reset_mask``: an array of ``num_envs`` booleans.

        Raises:
            HarborGymError: The task or an argument is wrong, or no sub-environment could be reset.
        """
        seeds = self._spread(seed)
        for number, item in enumerate(seeds):
            if item is not None:
                self._randoms[number] = seeding.np_random(item)[0]
        options = dict(options or {})
        mask = self._read_mask(options.pop("reset_mask", None))
        jobs = {
            number: partial(self._reset_one, number, self._choose(number, options), seeds[number])
            for number in map(int, np.flatnonzero(mask))
        }
        outcomes = self._open_portal().call(_run_all, jobs)
        errors = [outcome.info[ERROR] for outcome in outcomes.values() if ERROR in outcome.info]
        if errors and len(errors) == len(outcomes):
            raise errors[0]
        observations, _, _, _, infos = self._collect(outcomes)
        return observations, infos

    @override
    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take one step in every sub-environment concurrently; it takes as long as the slowest one's.

        Raises:
            UsageError: ``actions`` are not ``num_envs`` actions, or a finished sub-environment was not reset
                (``AutoresetMode.DISABLED``).
        """
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise UsageError(f"actions must be a sequence of {self.num_envs}, one for each sub-environment")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._needs_reset.any():
            raise UsageError(
                f"sub-environments {np.flatnonzero(self._needs_reset).tolist()} need a reset first: "
                "reset(options={'reset_mask': …})"
            )
        for number, action in enumerate(actions):
            if not self._needs_reset[number]:
                self._interface.to_action(action)  # an invalid action must raise before any other has stepped
        jobs = {number: partial(self._advance, number, action) for number, action in enumerate(actions)}
        return self._collect(self._open_portal().call(_run_all, jobs))

    @override
    def render(self) -> Any:
        """Return each sub-environment's screen after the last call, or None if it has none."""
        if self.render_mode is None:
            return None
        screens = [sub_env.screen for sub_env in self._sub_envs]
        if self.render_mode == "ansi":
            return tuple(None if screen is None else screen.text for screen in screens)
        from harbor_gym.adapters.gymnasium.rendering import draw

        return tuple(None if screen is None else draw(screen) for screen in screens)

    @override
    def close_extras(self) -> None:
        """Stop all sandboxes concurrently."""
        if self._portal is not None and not self._portal.is_inherited:
            self._portal.call(_close_all, self._sub_envs)
            self._disown()

    # -- one sub-environment, on the loop --------------------------------------------------------------------------

    async def _advance(self, number: int, action: Any) -> _Outcome:
        if self._needs_reset[number]:
            return await self._reset_one(number, self._choose(number, {}), None)
        outcome = await self._step_one(number, action)
        if not outcome.needs_reset or self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return outcome
        after = await self._reset_one(number, self._choose(number, {}), None)
        info = {"final_obs": outcome.observation, "final_info": outcome.info, **after.info}
        if ERROR in outcome.info:
            info[ERROR] = outcome.info[ERROR]
        return _Outcome(
            after.observation, info, outcome.reward, outcome.terminated, outcome.truncated, after.needs_reset
        )

    async def _step_one(self, number: int, action: Any) -> _Outcome:
        try:
            observation, reward, terminated, truncated, info = await self._sub_envs[number].step(action)
        except HarborGymError as exc:
            return self._failure(exc)
        return _Outcome(observation, info, reward, terminated, truncated, needs_reset=terminated or truncated)

    async def _reset_one(self, number: int, task_dir: Path, seed: int | None) -> _Outcome:
        try:
            observation, info = await self._sub_envs[number].reset(task_dir, seed=seed)
        except HarborGymError as exc:
            return self._failure(exc)
        return _Outcome(observation, info)

    def _failure(self, error: HarborGymError) -> _Outcome:
        if not error.is_infrastructure:
            raise error
        return _Outcome(self._interface.nothing(), {ERROR: error}, float("nan"), truncated=True, needs_reset=True)

    # -- batches ---------------------------------------------------------------------------------------------------

    def _collect(
        self, outcomes: Mapping[int, _Outcome]
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        infos: dict[str, Any] = {}
        rewards = np.zeros(self.num_envs)
        terminations, truncations = (np.zeros(self.num_envs, dtype=np.bool_) for _ in range(2))
        for number, outcome in outcomes.items():
            self._observations[number] = outcome.observation
            self._needs_reset[number] = outcome.needs_reset
            rewards[number] = outcome.reward
            terminations[number], truncations[number] = outcome.terminated, outcome.truncated
            infos = self._add_info(infos, outcome.info, number)
        empty = create_empty_array(self.single_observation_space, self.num_envs)
        batch = concatenate(self.single_observation_space, self._observations, empty)  # pyright: ignore[reportArgumentType]  # None for text, by Gymnasium's own convention
        return batch, rewards, terminations, truncations, infos

    def _choose(self, number: int, options: Mapping[str, Any]) -> Path:
        return self._interface.tasks.choose(options, self._randoms[number])

    def _spread(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int):
            return [seed + number for number in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise UsageError(f"expected {self.num_envs} seeds, one for each sub-environment, got {len(seed)}")
        return list(seed)

    def _read_mask(self, mask: Any) -> NDArray[np.bool_]:
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise UsageError(f"reset_mask must be a numpy array of {self.num_envs} booleans, got {mask!r}")
        if not mask.any():
            raise UsageError("reset_mask marks no sub-environment")
        return mask

    def _open_portal(self) -> Portal:
        if self.closed:
            raise UsageError("the environment is closed: make a new one")
        if self._portal is None:
            self._portal = get_portal()
            sub_envs = self._sub_envs
            self._disown = self._portal.own(self, lambda: _close_all(sub_envs))
        return self._portal


async def _run_all(jobs: Mapping[int, Callable[[], Coroutine[Any, Any, _Outcome]]]) -> dict[int, _Outcome]:
    """Run the jobs concurrently. An exception is the caller's mistake, and cancels the other jobs."""
    async with task_group() as group:
        tasks = {number: group.create_task(job()) for number, job in jobs.items()}
    return {number: task.result() for number, task in tasks.items()}


async def _close_all(sub_envs: Sequence[SubEnv]) -> None:
    """Close every sub-environment, also if others fail, and raise the first error at the end."""
    results = await asyncio.gather(*(sub_env.close() for sub_env in sub_envs), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
