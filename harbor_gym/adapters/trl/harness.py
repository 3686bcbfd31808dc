"""The base class of tool harnesses, which implements TRL's environment protocol."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from harbor_gym._runtime.portal import Portal, get_portal
from harbor_gym.adapters.trl.slot import ToolSlot, run_of
from harbor_gym.config import DEFAULT_MAX_RETRIES, TerminalEnvConfig
from harbor_gym.errors import UsageError
from harbor_gym.formats.parsed import check_commands
from harbor_gym.slots import Preparation
from harbor_gym.stragglers import Stragglers
from harbor_gym.terminal.screen.observation import Excerpt, compose
from harbor_gym.types import EndReason


@dataclass(frozen=True)
class HarnessSettings:
    """The settings of a spec's environments. Picklable."""

    config: TerminalEnvConfig
    """The sandbox and the budgets. The episode's task replaces its ``task_dir``."""

    task_dirs: Mapping[int, Path]
    """Task directories by ``task_index``."""

    pool_size: int | None = None
    """Sandboxes that a warm pool keeps ready for each task; None starts one per episode."""

    max_retries: int = DEFAULT_MAX_RETRIES
    """Most retries of an episode's start."""

    stragglers: Stragglers = field(default_factory=Stragglers)
    """Limits on a group's slowest episodes."""

    run_id: str = ""
    """The spec's identifier, by which its sandboxes are closed."""

    def config_of(self, task_index: int | None) -> TerminalEnvConfig:
        """Return the configuration of one task's episodes.

        Args:
            task_index: The value of the dataset's column; None is the suite's only task.

        Raises:
            UsageError: There is no such task, or ``task_index`` is None and there are several.
        """
        if task_index is None and len(self.task_dirs) == 1:
            (task_index,) = self.task_dirs
        if task_index is None or task_index not in self.task_dirs:
            known = ", ".join(map(str, self.task_dirs))
            raise UsageError(f"task_index must be one of {known}, got {task_index}; train on the spec's train_dataset")
        return self.config.model_copy(update={"task_dir": self.task_dirs[task_index]})


class ToolHarness:
    """A terminal whose public methods are the policy's tools. Subclass it to write your own tools.

    Every public method of a subclass except ``reset`` and ``get_reward`` is a tool. Its name, docstring and annotations
    are part of the prompt, so each needs a docstring in Google style with every argument. Tools act through
    :meth:`_type` and :meth:`_exec`, which block; TRL shows a tool's exception to the policy. The constructor must take
    only the settings, because a pickled factory makes the object. The sandbox is stopped when the episode is graded,
    when the object is garbage-collected, when the spec is closed, and at the latest at the interpreter's exit.

    Args:
        settings: Made by :class:`harbor_gym.adapters.trl.HarborSpec`.

    Example::

        class Greeter(ToolHarness):
            def greet(self, name: str) -> str:
                \"\"\"Print a greeting.

                Args:
                    name: The person to greet.
                \"\"\"
                return self._type(f"echo hello {shlex.quote(name)}\\n")

        spec = HarborSpec("tasks", agent=Greeter)
    """

    _preparation: ClassVar[Preparation | None] = None
    """An async function that receives the :class:`harbor_gym.AsyncTerminalGymEnv` after its reset and before the policy
    acts, for instance to start a server with ``env.exec``. If it raises ``TaskError``, the training ends. As a class
    attribute it needs ``staticmethod``."""

    _takes_steps: ClassVar[bool] = False
    """Whether the harness supports tasks of several steps, with a tool that calls :meth:`_finish_step`."""

    _takes_text: ClassVar[bool] = False
    """Whether the tools type commands as literal text instead of keystrokes: the terminal's ``keys`` are then
    ``literal``, unless the spec sets them."""

    def __init__(self, settings: HarnessSettings) -> None:
        self._settings = settings
        self._slot = ToolSlot(settings.run_id)
        self._portal: Portal | None = None
        self._disown: Callable[[], None] = lambda: None

    def reset(self, *, task_index: int | None = None, **row: object) -> None:
        """Schedule an episode and return at once; the first tool call waits for its terminal.

        Args:
            task_index: The task's index in the dataset's row.
            row: The dataset's other columns, which are ignored.

        Raises:
            UsageError: There is no such task, or the spec is closed.
        """
        run_of(self._settings.run_id).require_open()
        config = self._settings.config_of(task_index)
        if self._portal is None:
            self._portal = get_portal()
            self._disown = self._portal.own(self, self._slot.close)
        self._portal.submit(
            self._slot.begin,
            config,
            pool_size=self._settings.pool_size,
            max_retries=self._settings.max_retries,
            deadline_sec=self._settings.stragglers.batch_deadline_sec,
            prepare=type(self)._preparation,
        )

    def _type(self, keystrokes: str, *, timeout_sec: float | None = None) -> str:
        """Type keystrokes into the episode's terminal, and return its new text. Blocks.

        Args:
            keystrokes: Typed as they are: end a command with a line feed to run it. A key's name on its own, such as
                ``C-c``, presses that key; empty text only waits.
            timeout_sec: Longest wait in seconds; a finished command returns at once. None: the configuration's
                ``terminal.max_wait_sec``.

        Returns:
            The terminal's new text. After the end of the episode or a failure of the infrastructure, a line in brackets
            that states that nothing was executed.

        Raises:
            UsageError: ``reset`` was not called, or the text can't be typed. TRL shows the message to the policy.
        """
        portal = self._require_reset()
        longest_sec = self._settings.config.terminal.max_wait_sec
        commands, problem = check_commands([(keystrokes, longest_sec if timeout_sec is None else timeout_sec)])
        if problem is not None:
            raise UsageError(problem)
        return portal.call(self._slot.run, commands)

    def _exec(self, command: str, *, timeout_sec: float) -> str:
        """Run shell text in the sandbox outside the terminal, as the task's user, and return its output. Blocks.

        The call counts as a turn of the episode.

        Args:
            command: Text for a shell, up to 128 KiB.
            timeout_sec: Longest run in seconds.

        Returns:
            Standard output and error, cut in the middle like a terminal's text. After the end of the episode or a
            failure of the infrastructure, and if the command did not end, a line in brackets.

        Raises:
            UsageError: ``reset`` was not called.
        """
        output = self._require_reset().call(self._slot.exec, command, timeout_sec=timeout_sec)
        return compose("", Excerpt(output), max_bytes=self._settings.config.terminal.max_observation_bytes).text

    def _finish_step(self) -> str:
        """Verify the work so far and continue with a task's next step. Blocks.

        Returns:
            The next step's instruction and the terminal's text, or a line in brackets if there is no next step.

        Raises:
            UsageError: ``reset`` was not called.
        """
        return self._require_reset().call(self._slot.finish_step)

    def _require_reset(self) -> Portal:
        """Return the loop of the episodes.

        Raises:
            UsageError: ``reset`` was not called.
        """
        if self._portal is None:
            raise UsageError("a tool can't be called before reset")
        return self._portal

    async def _finish(self, reason: EndReason) -> float | None:
        """Verify the episode and return its reward; None if there is no verdict. On the portal's loop."""
        if self._portal is None:
            raise UsageError("an episode can't be graded before reset")
        return await self._slot.finish(reason)

    @property
    def _error(self) -> Exception | None:
        """The error that ended the episode without a reward."""
        return self._slot.error


def make_factory(harness: type[ToolHarness], settings: HarnessSettings) -> Callable[[], ToolHarness]:
    """Return a picklable factory."""
    return functools.partial(harness, settings)
