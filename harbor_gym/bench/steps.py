"""Measure every step in every implementation, in turn, in the same sandbox."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from harbor_gym.bench.implementations import TRANSPORTS, HarborTerminal, Implementation, OurTerminal
from harbor_gym.bench.report import Sample, StepReport, summarize
from harbor_gym.bench.sandbox import ExecCounter, started_environment
from harbor_gym.bench.scenarios import Scenario, Step, make_scenarios
from harbor_gym.errors import TerminalStartError

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

logger = logging.getLogger(__name__)


async def bench_steps(sandbox: str, *, repeat: int, on_progress: Callable[[int], None] = lambda _: None) -> StepReport:
    """Measure one sandbox's terminals against Harbor's ``TmuxSession``.

    Within a repetition the implementations take turns scenario by scenario, in a rotating order, so that other load on
    the machine affects all alike. An implementation whose step went wrong starts a new session.

    Args:
        sandbox: ``local``, ``docker``, or any other sandbox by name.
        repeat: Repetitions of every step.
        on_progress: Called with the number of finished repetitions.

    Raises:
        SandboxStartError: The sandbox did not start.
        SandboxLostError: The sandbox is gone.
    """
    async with started_environment(sandbox) as environment, contextlib.AsyncExitStack() as stack:
        counter = ExecCounter(environment)
        implementations, unavailable = await _open_all(environment, stack)
        samples = await take_turns([(item, counter) for item in implementations], repeat, on_progress)
    return summarize(
        samples,
        sandbox=sandbox,
        repeat=repeat,
        fallbacks={item.name: item.fallbacks for item in implementations},
        unavailable=unavailable,
    )


async def take_turns(
    players: list[tuple[Implementation, ExecCounter]], repeat: int, on_progress: Callable[[int], None]
) -> list[Sample]:
    """Play every scenario ``repeat`` times with each implementation, after one scenario that is not counted.

    Args:
        players: Open implementations, each with the counter of its sandbox.
        repeat: Repetitions of every step.
        on_progress: Called with the number of finished repetitions.

    Raises:
        SandboxLostError: A sandbox is gone.
    """
    for implementation, counter in players:
        await _play(make_scenarios(repeat)[0], implementation, counter, repeat)
    samples: list[Sample] = []
    for repetition in range(repeat):
        for number, scenario in enumerate(make_scenarios(repetition)):
            for implementation, counter in rotate(players, repetition + number):
                samples += await _play(scenario, implementation, counter, repetition)
        on_progress(repetition + 1)
    return samples


async def _open_all(
    environment: BaseEnvironment, stack: contextlib.AsyncExitStack
) -> tuple[list[Implementation], dict[str, str]]:
    opened: list[Implementation] = []
    unavailable: dict[str, str] = {}
    candidates: list[Implementation] = [OurTerminal(environment, name) for name in TRANSPORTS]
    for item in [*candidates, HarborTerminal(environment)]:
        try:
            await item.open()
        except TerminalStartError as error:
            unavailable[item.name] = str(error)
            continue
        stack.push_async_callback(item.close)
        opened.append(item)
    return opened, unavailable


async def _play(
    scenario: Scenario, implementation: Implementation, counter: ExecCounter, repetition: int
) -> list[Sample]:
    """Take the scenario's steps in order. After a wrong one the session's state is unknown, so it is replaced."""
    taken = [await _take(step, implementation, counter, repetition) for step in scenario]
    if wrong := [item for item in taken if item.observation is not None]:
        logger.debug("%s: wrong after %r: %r", implementation.name, wrong[0].row, wrong[0].observation)
        await implementation.close()
        await implementation.open()
    return [sample for step, sample in zip(scenario, taken, strict=True) if step.row is not None]


async def _take(step: Step, implementation: Implementation, counter: ExecCounter, repetition: int) -> Sample:
    execs, started = counter.count, time.perf_counter()
    texts = [await implementation.run(commands) for commands in step.turns]
    seconds, execs = time.perf_counter() - started, counter.count - execs
    return Sample(
        row=step.row or "",
        implementation=implementation.name,
        repetition=repetition,
        seconds=seconds,
        turns=len(step.turns),
        execs=execs,
        observation=None if step.is_right(texts) else "\n".join(texts),
    )


def rotate[T](items: list[T], by: int) -> list[T]:
    """Return the items rotated by ``by``, so that none is always the first."""
    start = by % len(items)
    return items[start:] + items[:start]
