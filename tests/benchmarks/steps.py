"""Every step in every terminal, in turn, in the same sandbox: ours over each of its transports, and Harbor's."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, override
from uuid import uuid4

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym.config import TerminalConfig
from harbor_gym.errors import TerminalStartError
from harbor_gym.terminal import Terminal, open_terminal
from harbor_gym.types import Command
from tests.benchmarks.report import BenchReport, percentile, rotate
from tests.benchmarks.sandbox import ExecCounter, started_environment
from tests.benchmarks.scenarios import ROWS, Scenario, Step, make_scenarios

if TYPE_CHECKING:
    from harbor.agents.terminus_2.tmux_session import TmuxSession
    from harbor.environments.base import BaseEnvironment

logger = logging.getLogger(__name__)

HARBOR = "harbor"
"""Name of Harbor's own terminal in reports."""

PORTABLE = "portable"
PERSISTENT = "persistent"
TRANSPORTS = (PORTABLE, PERSISTENT)


class Implementation(Protocol):
    """One terminal session, in a sandbox that all implementations share."""

    name: str
    fallbacks: int
    """Turns that used another transport than the measured one."""

    async def open(self) -> None:
        """Start a fresh session; the previous one must be closed."""
        ...

    async def run(self, commands: Sequence[Command]) -> str:
        """Take one turn; return its observation."""
        ...

    async def close(self) -> None:
        """End the session and all its processes."""
        ...


def terminal_config(transport: str | None, **settings: Any) -> TerminalConfig:
    """Return a configuration with a transport and further settings; None leaves the transport to the terminal."""
    return TerminalConfig.model_validate({"transport": transport or "auto", **settings})


class OurTerminal:
    """Our terminal over one transport."""

    def __init__(self, environment: BaseEnvironment, transport: str) -> None:
        self.name = transport
        self.fallbacks = 0
        self._environment = environment
        self._terminal: Terminal | None = None

    async def open(self) -> None:
        """See :class:`Implementation`."""
        self._terminal = await open_terminal(self._environment, terminal_config(self.name))
        await self._terminal.run([])

    async def run(self, commands: Sequence[Command]) -> str:
        """See :class:`Implementation`."""
        assert self._terminal is not None, "run() before open()"
        turn = await self._terminal.run(commands)
        self.fallbacks += turn.transport != self.name
        return turn.text

    async def close(self) -> None:
        """See :class:`Implementation`."""
        if self._terminal is not None:
            await self._terminal.close()


class HarborTerminal:
    """Harbor's ``TmuxSession``, used as in Terminus-2's command loop, which sleeps for every duration.

    Terminus-2 then limits the text to 10 000 bytes, half from each end. Here it is judged uncut.
    """

    def __init__(self, environment: BaseEnvironment) -> None:
        self.name = HARBOR
        self.fallbacks = 0
        self._environment = environment
        self._session: TmuxSession | None = None
        self._session_name = ""

    async def open(self) -> None:
        """See :class:`Implementation`."""
        from harbor.agents.terminus_2.tmux_session import TmuxSession
        from harbor.models.trial.paths import EnvironmentPaths

        self._session_name = f"terminus-{uuid4().hex[:8]}"
        self._session = TmuxSession(
            session_name=self._session_name,
            environment=self._environment,
            logging_path=EnvironmentPaths.agent_dir / f"{self._session_name}.pane",
            local_asciinema_recording_path=None,
            remote_asciinema_recording_path=None,
            user=self._environment.default_user,
        )
        await self._session.start()
        await self._session.get_incremental_output()

    async def run(self, commands: Sequence[Command]) -> str:
        """See :class:`Implementation`."""
        assert self._session is not None, "run() before open()"
        for command in commands:
            await self._session.send_keys(command.keystrokes, block=False, min_timeout_sec=command.duration_sec)
        return await self._session.get_incremental_output()

    async def close(self) -> None:
        """See :class:`Implementation`."""
        if self._session is not None:
            await self._session.stop()
            # A tmux server exits after its last session, and a session that is opened meanwhile is lost.
            await self._environment.exec(
                f"tmux set-option -s exit-empty off; tmux kill-session -t {self._session_name}",
                user=self._environment.default_user,
            )


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


# --- the report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of a step."""

    row: str
    implementation: str
    repetition: int
    seconds: float
    turns: int
    execs: int
    """Calls of ``environment.exec`` in all its turns."""

    observation: str | None
    """The observation of a step that went wrong; None if it was right."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """The samples of one step in one implementation."""

    row: str
    implementation: str
    median_ms: float
    p95_ms: float
    correct: int
    """Samples with the expected observation, out of ``of``."""

    of: int
    execs_per_step: float


@dataclass(frozen=True, slots=True)
class StepReport(BenchReport):
    """The results of ``make bench ARGS=step``."""

    sandbox: str
    repeat: int
    rows: tuple[StepRow, ...]

    ratios: dict[str, dict[str, float]]
    """Row → our implementation → speed-up over Harbor's: the median ratio of the same repetitions."""

    fallbacks: dict[str, int]
    """Implementation → turns that used another transport than the measured one."""

    unavailable: dict[str, str]
    """Implementation → why it could not be opened here."""

    wrong: tuple[dict[str, str], ...]
    """The first wrong observation of each row and implementation."""

    @property
    @override
    def is_right(self) -> bool:
        """Whether every step in our implementations had the expected observation."""
        return all(row.correct == row.of for row in self.rows if row.implementation != HARBOR)

    @override
    def as_object(self) -> dict[str, Any]:
        """Return the report as a JSON object with ``rows`` and ``summary``."""
        return {
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "summary": {
                "env": self.sandbox,
                "repeat": self.repeat,
                "ratio_to_harbor": self.ratios,
                "all_correct": self.is_right,
                "fallbacks": self.fallbacks,
                "unavailable": self.unavailable,
                "wrong": list(self.wrong),
            },
        }


def summarize(
    samples: Sequence[Sample],
    *,
    sandbox: str,
    repeat: int,
    fallbacks: dict[str, int],
    unavailable: dict[str, str],
) -> StepReport:
    """Make the report from all samples of one run."""
    names = list(dict.fromkeys(sample.implementation for sample in samples))
    rows = tuple(
        _summarize_row(row, name, chosen)
        for row in ROWS
        for name in names
        if (chosen := [item for item in samples if (item.row, item.implementation) == (row, name)])
    )
    ratios = {
        row: {name: ratio for name in names if name != HARBOR and (ratio := _ratio(samples, row, name)) is not None}
        for row in ROWS
    }
    wrong: dict[tuple[str, str], str] = {}
    for item in samples:
        if item.observation is not None:
            wrong.setdefault((item.row, item.implementation), item.observation)
    return StepReport(
        sandbox=sandbox,
        repeat=repeat,
        rows=rows,
        ratios=ratios,
        fallbacks=fallbacks,
        unavailable=unavailable,
        wrong=tuple(
            {"row": row, "implementation": name, "observation": text[-1000:]} for (row, name), text in wrong.items()
        ),
    )


def _summarize_row(row: str, name: str, samples: Sequence[Sample]) -> StepRow:
    milliseconds = [item.seconds * 1000 for item in samples]
    return StepRow(
        row=row,
        implementation=name,
        median_ms=round(statistics.median(milliseconds), 2),
        p95_ms=round(percentile(milliseconds, 95), 2),
        correct=sum(item.observation is None for item in samples),
        of=len(samples),
        execs_per_step=round(sum(item.execs for item in samples) / sum(item.turns for item in samples), 2),
    )


def _ratio(samples: Sequence[Sample], row: str, name: str) -> float | None:
    taken = {(item.implementation, item.repetition): item.seconds for item in samples if item.row == row}
    pairs = [
        (taken[HARBOR, repetition], seconds)
        for (implementation, repetition), seconds in taken.items()
        if implementation == name and (HARBOR, repetition) in taken
    ]
    return round(statistics.median(theirs / ours for theirs, ours in pairs), 2) if pairs else None


def format_table(report: StepReport) -> str:
    """Return the report for people."""
    titles = ("step", "terminal", "median ms", "p95 ms", "correct", "execs", "x Harbor")
    misread = {row.row for row in report.rows if row.implementation == HARBOR and row.correct < row.of}
    cells = [_cells(row, report, misread) for row in report.rows]
    lines = [plain_table(titles, cells, right=range(2, len(titles)))]
    if misread:
        lines.append("* Harbor's observation did not show the step's result: its time is that of not having waited.")
    lines += [f"{name} could not be opened: {reason}" for name, reason in report.unavailable.items()]
    lines += [f"{name} fell back in {count} turns" for name, count in report.fallbacks.items() if count]
    return "\n".join(lines)


def _cells(row: StepRow, report: StepReport, misread: set[str]) -> tuple[str, ...]:
    ratio = report.ratios[row.row].get(row.implementation)
    return (
        row.row,
        row.implementation,
        f"{row.median_ms:.1f}",
        f"{row.p95_ms:.1f}",
        f"{row.correct}/{row.of}",
        f"{row.execs_per_step:g}",
        "" if ratio is None else f"{ratio:.1f}{'*' if row.row in misread else ' '}",
    )
