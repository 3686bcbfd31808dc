"""The synchronous environment: ``gym.make("HarborTerminal-v0", task_dir=…)``."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, SupportsFloat, override

import gymnasium

from harbor_gym._runtime.files import StrPath
from harbor_gym._runtime.portal import Portal, get_portal, refuse_to_copy
from harbor_gym.adapters.gymnasium.interface import RENDER_MODES, ActionKind, Interface, ObservationKind
from harbor_gym.adapters.gymnasium.sub_env import SubEnv
from harbor_gym.adapters.gymnasium.tasks import TaskSet
from harbor_gym.errors import UsageError
from harbor_gym.types import ForkMode

if TYPE_CHECKING:
    from harbor_gym.episode.side_command import SideResult


class HarborTerminalEnv(gymnasium.Env[Any, Any]):
    """A Harbor task's terminal as a Gymnasium environment.

    It runs :class:`harbor_gym.AsyncTerminalGymEnv` on one background event loop per process; calls block. The reward is
    0.0 until the verifier has run. ``terminated``: the task was declared complete (by a last line
    ``<task_complete/>``, twice unless ``confirm_task_complete=False``) or the shell session ended; ``truncated``: a
    budget ran out. Both are verified. Gymnasium's own ``max_episode_steps`` truncates episodes without the verifier:
    use ``max_turns`` instead. An infrastructure failure raises and is never a reward.

    Args:
        task_dir: One Harbor task directory.
        task_dirs: Several task directories instead, or a directory of tasks. ``reset(options={"task": name})`` chooses
            one by its directory's name; by default the seed draws it.
        action: ``keystrokes``: text that is typed unchanged. ``commands``: a sequence of (keystrokes, seconds).
            ``message``: a model's message in ``action_format``, terminus-json-plain by default.
        observation: ``text``: the terminal's new output. ``dict``: ``screen``, ``output`` (the new text), ``exit_code``
            (-1: none), ``cursor`` (row, column), ``remaining`` (fractions of turns and of terminal time).
        render_mode: ``ansi`` (the screen as text), ``rgb_array`` (drawn; needs the ``render`` extra) or ``human``.
        settings: Fields of :class:`harbor_gym.TerminalEnvConfig`: ``sandbox``, ``max_turns``, ``terminal``, …

    Raises:
        UsageError: An argument is wrong, or there is no task in ``task_dirs``.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012 - as Gymnasium declares it
    __getstate__ = refuse_to_copy

    def __init__(
        self,
        task_dir: StrPath | None = None,
        *,
        task_dirs: StrPath | Sequence[StrPath] | None = None,
        action: ActionKind = "keystrokes",
        observation: ObservationKind = "text",
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        interface = Interface.make(TaskSet(task_dir, task_dirs), action, observation, render_mode, settings)
        interface_kind: dict[str, Any] = {"action": action, "observation": observation, "render_mode": render_mode}
        self._arguments: dict[str, Any] = {"task_dir": task_dir, "task_dirs": task_dirs, **interface_kind, **settings}
        self.action_space = interface.action_space()
        self.observation_space = interface.observation_space()
        self.render_mode = render_mode
        self._tasks = interface.tasks
        self._sub_env = SubEnv(interface)
        self._portal: Portal | None = None
        self._disown: Callable[[], None] = lambda: None
        self._is_closed = False

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in a fresh sandbox; see :meth:`harbor_gym.AsyncTerminalGymEnv.reset`.

        Args:
            seed: Draws the task, and is returned in ``info["seed"]``. The sandbox itself has no seed.
            options: ``{"task": name}``, or None.
        """
        super().reset(seed=seed)
        task_dir = self._tasks.choose(options, self.np_random)
        observation, info = self._open_portal().call(self._sub_env.reset, task_dir, seed=seed)
        self._show()
        return observation, info

    @override
    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step; see :meth:`harbor_gym.AsyncTerminalGymEnv.step`."""
        transition = self._open_portal().call(self._sub_env.step, action)
        self._show()
        return transition

    def exec(self, command: str, *, timeout_sec: float, service: str | None = None) -> "SideResult":
        """Run shell text in the sandbox or in a service; see :meth:`harbor_gym.AsyncTerminalGymEnv.exec`."""
        return self._open_portal().call(self._sub_env.exec, command, timeout_sec=timeout_sec, service=service)

    def fork(self, n: int, *, mode: ForkMode = "auto") -> list[Self]:
        """Copy the running episode; see :meth:`harbor_gym.AsyncTerminalGymEnv.fork`.

        With wrappers, call ``env.unwrapped.fork``; the copies have no wrappers. A copy's first ``reset`` returns its
        current observation; with ``task_dirs``, give it the same task (``options={"task": …}``).
        """
        copies = [type(self)(**self._arguments) for _ in range(n)]
        for each, sub_env in zip(copies, self._open_portal().call(self._sub_env.fork, n, mode=mode), strict=True):
            each._sub_env = sub_env
            each._open_portal()
        return copies

    @override
    def render(self) -> Any:
        """Return the screen after the last call, as ``render_mode`` says; ``human`` prints it and returns None."""
        if self.render_mode is None:
            return None
        screen = self._sub_env.screen
        if screen is None:
            raise UsageError("there is no screen to render yet: call reset() first")
        if self.render_mode == "ansi":
            return screen.text
        from harbor_gym.adapters.gymnasium import rendering

        if self.render_mode == "rgb_array":
            return rendering.draw(screen)
        sys.stdout.write(rendering.as_terminal_output(screen, in_place=sys.stdout.isatty()))
        sys.stdout.flush()
        return None

    @override
    def close(self) -> None:
        """Stop the sandbox and remove everything except files that the settings keep. Idempotent."""
        self._is_closed = True
        if self._portal is not None and not self._portal.is_inherited:
            self._portal.call(self._sub_env.close)
            self._disown()

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()

    def _open_portal(self) -> Portal:
        """Return the portal, which starts at the first call, so that forking the process before it is safe."""
        if self._is_closed:
            raise UsageError("the environment is closed: make a new one")
        if self._portal is None:
            self._portal = get_portal()
            self._disown = self._portal.own(self, self._sub_env.close)
        return self._portal
