"""Turns with a terminal that is late, fails or answers nonsense."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import pytest

from harbor_gym.config import TerminalConfig
from harbor_gym.episode.guarded_turn import longest_wait_sec, take_turn
from harbor_gym.errors import SandboxLostError, SandboxTimeoutError, TerminalError, UsageError
from harbor_gym.terminal import Terminal, TerminalTurn
from harbor_gym.types import Command

TURN = TerminalTurn("$", False, ("prompt",), 0, 0.1, 0, "persistent")
COMMANDS = [Command("ls\n")]


class OneTurn:
    """A terminal with turns that a function makes."""

    def __init__(self, work: Callable[[], Awaitable[TerminalTurn]]) -> None:
        self.work = work

    async def run(self, commands: Sequence[Command]) -> TerminalTurn:
        return await self.work()


async def turn_of(
    work: Callable[[], Awaitable[TerminalTurn]], *, breakage: str | None, late_sec: float = 60.0
) -> tuple[TerminalTurn, list[Exception | None]]:
    """Take a turn; return it, and how it was looked into."""
    asked: list[Exception | None] = []

    async def find(failure: Exception | None) -> str | None:
        asked.append(failure)
        return breakage

    terminal = cast("Terminal", OneTurn(work))
    return await take_turn(terminal, COMMANDS, late_sec=late_sec, find_breakage=find), asked


async def in_time() -> TerminalTurn:
    return TURN


async def slow() -> TerminalTurn:
    await asyncio.sleep(0.05)
    return TURN


async def never() -> TerminalTurn:
    await asyncio.Event().wait()
    return TURN


def failing(error: Exception) -> Callable[[], Awaitable[TerminalTurn]]:
    async def fail() -> TerminalTurn:
        raise error

    return fail


async def test_a_turn_in_time_is_not_looked_into() -> None:
    assert await turn_of(in_time, breakage="broken") == (TURN, [])


async def test_a_late_terminal_that_nobody_broke_is_waited_for() -> None:
    assert await turn_of(slow, breakage=None, late_sec=0.0) == (TURN, [None])


async def test_a_late_terminal_that_the_policy_broke_is_an_ended_session() -> None:
    turn, asked = await turn_of(never, breakage="stopped", late_sec=0.0)
    assert (turn.ended, turn.waits, turn.exit_code, asked) == (True, ("ended",), None, [None])
    assert len(asyncio.all_tasks()) == 1


async def test_a_late_terminal_that_answers_during_the_search_is_taken_at_its_word() -> None:
    answer = asyncio.Event()

    async def answering() -> TerminalTurn:
        await answer.wait()
        return TURN

    async def find(_: Exception | None) -> str | None:
        answer.set()
        await asyncio.Event().wait()
        return "no command runs in it any more"

    terminal = cast("Terminal", OneTurn(answering))
    async with asyncio.timeout(60):
        assert await take_turn(terminal, COMMANDS, late_sec=0.0, find_breakage=find) == TURN
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize(
    "error",
    [
        SandboxTimeoutError("late"),
        SandboxLostError("unreadable"),
        ValueError("not a number"),
        IndexError("too few words"),
    ],
)
async def test_a_terminal_that_fails_is_looked_into(error: Exception) -> None:
    turn, asked = await turn_of(failing(error), breakage="broken")
    assert (turn.ended, asked) == (True, [error])
    with pytest.raises(TerminalError if isinstance(error, ValueError | IndexError) else type(error)):
        await turn_of(failing(error), breakage=None)


async def test_a_mistake_of_the_callers_is_passed_on() -> None:
    with pytest.raises(UsageError):
        await turn_of(failing(UsageError("wrong order")), breakage="broken")


async def test_a_cancelled_turn_leaves_nothing() -> None:
    task = asyncio.create_task(turn_of(never, breakage=None))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1


def test_the_longest_wait_is_the_configurations() -> None:
    config = TerminalConfig(min_wait_sec=1.0, max_wait_sec=5.0)
    assert longest_wait_sec([Command("a", 0.1), Command("b", 3.0), Command("c", 90.0)], config) == 9.0


async def test_a_cancelled_turn_that_fails_on_its_way_out_is_no_forgotten_failure() -> None:
    forgotten: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context["message"]))

    async def stopped() -> TerminalTurn:
        try:
            return await never()
        except asyncio.CancelledError:
            raise SandboxLostError("it was stopped meanwhile") from None

    taking = asyncio.create_task(turn_of(stopped, breakage=None))
    await asyncio.sleep(0.01)
    taking.cancel()
    await asyncio.wait([taking])
    assert taking.cancelled()
    del taking
    await asyncio.sleep(0)
    gc.collect()
    assert forgotten == []
