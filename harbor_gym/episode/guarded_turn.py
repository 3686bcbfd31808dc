"""A terminal's turn that ends even if the policy broke the terminal."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harbor_gym._runtime.shielded import cancel_and_wait
from harbor_gym.config import TerminalConfig
from harbor_gym.errors import HarborGymError, TerminalError
from harbor_gym.formats import prompts
from harbor_gym.terminal import Terminal, TerminalTurn
from harbor_gym.terminal.screen.observation import Excerpt, compose
from harbor_gym.types import Command

if TYPE_CHECKING:
    from harbor_gym.episode.mcp import ToolResult

PATIENCE_SEC = 5.0
"""Seconds that a terminal may be late before it is checked whether the policy broke it."""

type FindBreakage = Callable[[Exception | None], Awaitable[str | None]]
"""Returns how the policy broke the terminal, or None; the argument is how the turn failed, None while it is late."""

_logger = logging.getLogger(__name__)


async def take_turn(
    terminal: Terminal, commands: Sequence[Command], *, late_sec: float, find_breakage: FindBreakage
) -> TerminalTurn:
    """Type commands and return the turn; that of an ended session where the policy broke the terminal.

    Args:
        terminal: The terminal.
        commands: The commands to type.
        late_sec: Seconds without an answer after which ``find_breakage`` is called, once.
        find_breakage: Finds out whether the policy broke the terminal.

    Raises:
        SandboxError, TerminalError: The infrastructure failed.
    """
    started = time.monotonic()
    turn = asyncio.ensure_future(terminal.run(commands))
    breakage = None
    try:
        await asyncio.wait((turn,), timeout=late_sec)
        if not turn.done():
            breakage = await _unless_done(turn, find_breakage(None))
        if breakage is None:
            return await turn
    except HarborGymError as exc:
        if not exc.is_infrastructure or (breakage := await find_breakage(exc)) is None:
            raise
    except (ValueError, LookupError) as exc:
        # The policy controls the sandbox's answers: no answer may end an episode without a verdict.
        if (breakage := await find_breakage(exc)) is None:
            raise TerminalError(f"the terminal gave no usable answer: {type(exc).__name__}: {exc}") from exc
    finally:
        await cancel_and_wait(turn)
    _logger.info("the policy broke its terminal: %s", breakage)
    waits = ("ended",) * len(commands)
    return TerminalTurn(prompts.TERMINAL_BROKEN, True, waits, None, time.monotonic() - started, 0, "none")


async def _unless_done(turn: asyncio.Future[TerminalTurn], finding: Awaitable[str | None]) -> str | None:
    """Return what is found, unless the turn ends meanwhile: an answer is better evidence than the lack of another."""
    search = asyncio.ensure_future(finding)
    try:
        await asyncio.wait((turn, search), return_when=asyncio.FIRST_COMPLETED)
        return None if turn.done() else search.result()
    finally:
        await cancel_and_wait(search)


def as_turn(result: "ToolResult", *, max_bytes: int) -> TerminalTurn:
    """Return a tool's result as a turn in which nothing was typed, cut like a terminal's text."""
    seen = compose(result.head, Excerpt(result.text), max_bytes=max_bytes)
    return TerminalTurn(seen.text, False, (), None, result.duration_sec, seen.omitted_bytes, "mcp")


def joined(turns: Sequence[TerminalTurn], *, max_bytes: int) -> TerminalTurn:
    """Return the successive turns of one message as one turn.

    Args:
        turns: The turns, one or more.
        max_bytes: Longest observation, in UTF-8 bytes.
    """
    seen = compose("", Excerpt("\n".join(turn.text for turn in turns)), max_bytes=max_bytes)
    typed = [turn for turn in turns if turn.waits] or turns
    return replace(
        typed[-1],
        text=seen.text,
        ended=turns[-1].ended,
        waits=tuple(wait for turn in turns for wait in turn.waits),
        duration_sec=sum(turn.duration_sec for turn in turns),
        omitted_bytes=seen.omitted_bytes + sum(turn.omitted_bytes for turn in turns),
        shown=(),
    )


def longest_wait_sec(commands: Sequence[Command], config: TerminalConfig) -> float:
    """Return the longest time in seconds that a terminal's turn may take by its configuration."""
    return sum(min(max(command.duration_sec, config.min_wait_sec), config.max_wait_sec) for command in commands)
