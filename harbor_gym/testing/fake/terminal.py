"""The fake sandbox's terminal: lines in, text out, no tmux."""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harbor_gym._runtime.shielded import cancel_and_wait
from harbor_gym.config import TerminalConfig
from harbor_gym.errors import TerminalError
from harbor_gym.terminal import Leftovers, TerminalTurn
from harbor_gym.terminal.screen import observation
from harbor_gym.terminal.screen.screen import Screen
from harbor_gym.testing.fake.shell import Output
from harbor_gym.types import Command

if TYPE_CHECKING:
    from harbor_gym.testing.fake.environment import FakeEnvironment

_PROMPT = "$ "
_INTERRUPTED = 130
_TURNS = 100
"""Turns of the event loop that a command gets in addition to its time, so that one without a wait also ends on a slow
machine."""


class FakeTerminal:
    """A line-wise terminal over a fake sandbox, with the contract of :class:`harbor_gym.terminal.Terminal`.

    Whole lines run as commands of one shell; of keys it knows C-c and C-d. A line that is typed while another
    command runs waits for that command.
    """

    def __init__(self, environment: "FakeEnvironment", config: TerminalConfig, *, user: str | int | None) -> None:
        self._environment = environment
        self._config = config
        self._shell = environment.shell(user=user)
        self._screen = self._history = _PROMPT
        self._typed = ""
        self._lines: list[str] = []
        self._running: asyncio.Task[Output] | None = None
        self._code: int | None = None
        self._ended = False

    async def run(self, commands: Sequence[Command]) -> TerminalTurn:
        """See :meth:`harbor_gym.terminal.Terminal.run`."""
        started = time.monotonic()
        self._environment.require_running()
        self._code = None
        waits = [await self._take(command) for command in commands]
        header = observation.describe(
            waits[-1] if waits else None,
            exit_code=self._code,
            waited_sec=commands[-1].duration_sec if commands else 0.0,
            typed_line=True,
        )
        text = self._screen.rstrip()
        composed = observation.compose(header, observation.Excerpt(text), max_bytes=self._config.max_observation_bytes)
        self._screen = self._screen.rpartition("\n")[2]
        return TerminalTurn(
            text=composed.text,
            ended=self._ended,
            waits=tuple(waits),
            exit_code=self._code,
            duration_sec=time.monotonic() - started,
            omitted_bytes=composed.omitted_bytes,
            transport="fake",
        )

    async def screen(self) -> Screen:
        """See :meth:`harbor_gym.terminal.Terminal.screen`."""
        lines = self._history.split("\n")[-self._config.rows :]
        rest = ("",) * (self._config.rows - len(lines))
        return Screen(
            columns=self._config.columns,
            rows=self._config.rows,
            lines=(*lines, *rest),
            cursor_row=len(lines) - 1,
            cursor_column=min(len(lines[-1]), self._config.columns - 1),
            is_cursor_visible=True,
            is_full_screen=False,
        )

    @property
    def leftovers(self) -> Leftovers:
        """See :attr:`harbor_gym.terminal.Terminal.leftovers`. This terminal has no processes and no files."""
        return Leftovers((), "")

    async def detach(self) -> None:
        """See :meth:`harbor_gym.terminal.Terminal.detach`. This terminal holds nothing."""

    async def close(self) -> None:
        """End the running command. Idempotent."""
        if self._running is not None:
            await cancel_and_wait(self._running)
            self._running = None

    async def _take(self, command: Command) -> str:
        if self._ended:
            return "ended"
        if command.keystrokes.rstrip("\n") == "C-c":
            await self._interrupt()
        elif command.keystrokes.rstrip("\n") == "C-d":
            self._ended = self._running is None
        else:
            self._type(command.keystrokes)
        limit = min(max(command.duration_sec, self._config.min_wait_sec), self._config.max_wait_sec)
        wait = await self._wait(time.monotonic() + limit)
        if not command.keystrokes and wait == "prompt":
            await asyncio.sleep(min(command.duration_sec, self._config.max_wait_sec))
        return wait

    def _type(self, keystrokes: str) -> None:
        *lines, self._typed = (self._typed + keystrokes).split("\n")
        self._lines += lines

    async def _interrupt(self) -> None:
        self._print("^C\n")
        self._typed, self._lines = "", []
        if self._running is not None:
            await self.close()
            self._code = _INTERRUPTED
        self._print(_PROMPT)

    async def _wait(self, deadline: float) -> str:
        """Run the typed lines until all are done or the time is up."""
        while self._running is not None or self._lines:
            if self._running is None:
                line = self._lines.pop(0)
                self._print(f"{line}\n")
                self._running = asyncio.ensure_future(self._environment.run(line, self._shell))
                self._running.add_done_callback(_retrieve)
            task = self._running
            await asyncio.wait([task], timeout=max(0.0, deadline - time.monotonic()))
            for _ in range(_TURNS):
                if task.done():
                    break
                await asyncio.sleep(0)
            else:
                return "deadline"
            if task.cancelled():
                raise TerminalError("the fake terminal was closed while a command ran")
            self._running = None
            self._show(task.result())
            if self._ended:
                return "ended"
        return "prompt"

    def _print(self, text: str) -> None:
        plain = "".join(char for char in text if char.isprintable() or char in "\n\t")
        self._screen += plain
        self._history += plain

    def _show(self, output: Output) -> None:
        self._print("".join([*output.stdout, *output.stderr]))
        self._code = self._shell.code = output.code
        self._ended = output.exited
        if not self._ended:
            self._print(_PROMPT if self._screen.endswith("\n") else f"\n{_PROMPT}")


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve a command's exception even if nothing waits for it any more."""
    if not task.cancelled():
        task.exception()
