"""Judge every return of the terminal after the fact: a witness stamps each byte that the pane wrote."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, override

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.processes import start_process
from harbor_gym.terminal import Screen, TerminalTurn, open_terminal
from harbor_gym.terminal.tmux import TmuxTerminal
from harbor_gym.terminal.transports.attach import enter_argv
from harbor_gym.types import Command
from tests.benchmarks.report import BenchReport
from tests.benchmarks.steps import TRANSPORTS, terminal_config
from tests.benchmarks.truth.programs import bring_program
from tests.benchmarks.truth.sessions import Session, TruthStep

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment

WATCH_SEC = 1.4
"""How long the pane is watched after a return: longer than any pause between a program's outputs in the sessions."""

_IDLE_SEC = 2.0
"""A program that wrote nothing for so long before the deadline was waiting for input, if it reads any."""

_ATTACH_SEC = 60.0
"""The witness has attached by then, however busy the machine is."""

_NUMBERED = re.compile(r"^L\d{6}$", re.MULTILINE)
_STYLE = re.compile(r"\x1b\[[0-9;:]*m|[\x0e\x0f]")
_EXPECTED = {"prompt": ("prompt",), "input": ("tty_read",), "screen": ("fullscreen",), "busy": ("deadline",)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one step."""

    transport: str
    session: str
    keys: str
    kind: str
    """``right``, ``early``, ``late``, or ``label``: at the right moment by another name."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class TruthReport(BenchReport):
    """Every verdict, and the lines that went wrong."""

    sandbox: str
    verdicts: tuple[Verdict, ...]
    wrong_lines: tuple[str, ...]
    """Lines lost, doubled or out of order."""

    unavailable: tuple[str, ...] = ()
    """Sessions with programs that the sandbox lacks."""

    left_out: tuple[str, ...] = ()
    """Transport and session of those that were not taken to their end."""

    @property
    @override
    def is_right(self) -> bool:
        """Return whether no return was early and no line went wrong; a late one costs time alone."""
        return not self.wrong_lines and not any(item.kind == "early" for item in self.verdicts)

    def rate(self, kind: str, transport: str | None = None) -> float:
        """Return the share of steps with a verdict, over one transport or all."""
        chosen = [item.kind for item in self.verdicts if transport in (None, item.transport)]
        return chosen.count(kind) / len(chosen) if chosen else 0.0

    @override
    def as_object(self) -> dict[str, Any]:
        names = sorted({item.transport for item in self.verdicts})
        return {
            "sandbox": self.sandbox,
            "transports": {
                name: {
                    "steps": sum(item.transport == name for item in self.verdicts),
                    **{kind: self.rate(kind, name) for kind in ("early", "late", "label")},
                }
                for name in names
            },
            "wrong_lines": list(self.wrong_lines),
            "wrong_steps": [
                [item.transport, item.session, item.keys, item.kind, item.detail]
                for item in self.verdicts
                if item.kind != "right"
            ],
            "unavailable": list(self.unavailable),
            "left_out": list(self.left_out),
        }


def format_truth(report: TruthReport) -> str:
    """Return the report as text."""
    head = ("transport", "steps", "false early", "false late", "other name")
    rows = [
        (name, str(found["steps"]), *(f"{100 * found[kind]:.2f} %" for kind in ("early", "late", "label")))
        for name, found in report.as_object()["transports"].items()
    ]
    lines = [plain_table(head, rows, right=range(1, len(head)))]
    lines.append(f"lines lost, doubled or out of order: {len(report.wrong_lines)}")
    lines += [f"  {line}" for line in report.wrong_lines[:20]]
    counts = Counter(item for item in report.verdicts if item.kind != "right")
    wrong = [(f"  {count} x", *_cells(item)) for item, count in counts.items()]
    lines += plain_table((), wrong).splitlines()
    if report.unavailable:
        lines.append(f"skipped, programs missing: {', '.join(report.unavailable)}")
    if report.left_out:
        lines.append(f"not taken to their end ({len(report.left_out)}): {', '.join(report.left_out)}")
    return "\n".join(lines)


def _cells(item: Verdict) -> tuple[str, str, str]:
    return item.kind, item.transport, f"{item.session}: {item.keys!r} {item.detail}"


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of one session over one transport."""

    transport: str
    session: str
    verdicts: tuple[Verdict, ...]
    wrong_lines: tuple[str, ...]


def format_taken(taken: Taken, done: int, total: int) -> str:
    """Return the row of a table that is printed as it grows, and a line for each step that was not right."""
    kinds = Counter(item.kind for item in taken.verdicts)
    cells = f"{done}/{total}", taken.transport, f"{len(taken.verdicts)} steps", taken.session
    counts = [f"{kinds[kind]} {kind}" for kind in ("early", "late", "label") if kinds[kind]]
    wrong = [f"  {'  '.join(_cells(item))}" for item in taken.verdicts if item.kind != "right"]
    row = plain_table((), [(*cells, ", ".join(counts) or "right")], widths=(7, 10, 8, 27))
    return "\n".join([row, *wrong, *(f"  {line}" for line in taken.wrong_lines)])


@dataclass
class _Witness:
    """A control client that stamps the pane's output, apart from the terminal that is judged."""

    stamps: list[float] = field(default_factory=list[float])
    is_attached: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            if line.startswith(b"%session-changed"):
                self.is_attached.set()
            elif line.startswith(b"%output"):
                self.stamps.append(time.monotonic())

    def since(self, moment: float) -> list[float]:
        return [stamp for stamp in self.stamps if stamp > moment]


@contextlib.asynccontextmanager
async def _watched(environment: BaseEnvironment, terminal: TmuxTerminal, user: str) -> AsyncGenerator[_Witness]:
    command = f"exec tmux -u -S {terminal.directory}/socket -C attach-session -t main"
    argv = await enter_argv(environment, command, user=user)
    assert argv is not None, "the sandbox lets no process in"
    process = await start_process(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        limit=1 << 24,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    witness = _Witness()
    reading = asyncio.create_task(witness.read(process.stdout))
    try:
        # A later one misses a step's output; and where the step removed the socket, it starts a server in its place.
        async with asyncio.timeout(_ATTACH_SEC):
            await witness.is_attached.wait()
        yield witness
    finally:
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading


class TruthRun:
    """Sessions over every transport, each return judged by the pane's later output.

    Args:
        sessions: The sessions to type.
        sandbox: The sandbox's name in the report.
        at_once: Sessions at the same time.
        repeat: Times that every session is taken.
        limit_sec: No session begins later than this after the first. None is no limit.
        on_taken: Receives each session that was taken, and how many of how many that makes.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        *,
        sandbox: str = "local",
        at_once: int = 4,
        repeat: int = 1,
        limit_sec: float | None = None,
        on_taken: Callable[[Taken, int, int], None] = lambda _taken, _done, _all: None,
    ) -> None:
        self._sessions = sessions
        self._sandbox = sandbox
        self._gate = asyncio.Semaphore(at_once)
        self._limit_sec = math.inf if limit_sec is None else limit_sec
        self._on_taken = on_taken
        self._runs = [(session, name) for _ in range(repeat) for session in sessions for name in TRANSPORTS]
        self._unavailable: list[Session] = []
        self._taken: list[Taken] = []

    @property
    def report(self) -> TruthReport:
        """The results so far; a run that was ended early has left the rest out."""
        verdicts = [item for taken in self._taken for item in taken.verdicts]
        wrong_lines = [line for taken in self._taken for line in taken.wrong_lines]
        left = Counter(f"{name} {session.name}" for session, name in self._runs)
        left.subtract(f"{taken.transport} {taken.session}" for taken in self._taken)
        missing = tuple(session.name for session in self._unavailable)
        return TruthReport(self._sandbox, tuple(verdicts), tuple(wrong_lines), missing, tuple(left.elements()))

    async def take(self, environment: BaseEnvironment) -> TruthReport:
        """Take the sessions in a sandbox: those that disturb others last, one at a time.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        for program in sorted({program for session in self._sessions for program in session.needs}):
            await bring_program(environment, program)
        self._unavailable = [session for session in self._sessions if not await _has_all(environment, session)]
        self._runs = [run for run in self._runs if run[0] not in self._unavailable]
        ending = time.monotonic() + self._limit_sec
        async with asyncio.TaskGroup() as group:
            for session, transport in self._runs:
                if not session.is_alone:
                    group.create_task(self._take_one(environment, session, transport, ending))
        for session, transport in self._runs:
            if session.is_alone:
                await self._take_one(environment, session, transport, ending)
        return self.report

    async def _take_one(self, environment: BaseEnvironment, session: Session, transport: str, ending: float) -> None:
        async with self._gate:
            if time.monotonic() > ending:
                return
            taken = await _take_session(environment, session, transport)
        self._taken.append(taken)
        self._on_taken(taken, len(self._taken), len(self._runs))


async def _has_all(environment: BaseEnvironment, session: Session) -> bool:
    look = " && ".join(["true", *(f"command -v {program} >/dev/null" for program in session.needs)])
    if (await environment.exec(look)).return_code:
        return False
    if session.setup:
        await environment.exec(session.setup)
    return True


async def _take_session(environment: BaseEnvironment, session: Session, transport: str) -> Taken:
    config = terminal_config(transport, max_observation_bytes=1_000_000, min_wait_sec=0.5)
    terminal = await open_terminal(environment, config, user=session.user)
    assert isinstance(terminal, TmuxTerminal)
    verdicts: list[Verdict] = []
    shown: list[str] = []
    try:
        async with _watched(environment, terminal, session.user) as witness:
            await terminal.run([])
            for step in session.steps:
                turn = await terminal.run([Command(step.keys, step.deadline_sec)])
                returned = time.monotonic()
                shown.append(turn.text)
                await asyncio.sleep(0 if step.expected == "busy" else WATCH_SEC)
                after = await terminal.screen()
                later = [] if after is None else as_observed(after)
                verdicts.append(_judge(session, transport, step, turn, returned, witness, later))
                if turn.ended:
                    break
    finally:
        await terminal.close()
    expected = [line for step in session.steps for line in step.lines]
    seen = _NUMBERED.findall("\n".join(shown))
    wrong = () if seen == expected else (f"{transport} {session.name}: {_compare(seen, expected)}",)
    return Taken(transport, session.name, tuple(verdicts), wrong)


def _judge(
    session: Session,
    transport: str,
    step: TruthStep,
    turn: TerminalTurn,
    returned: float,
    witness: _Witness,
    later: list[str],
) -> Verdict:
    def verdict(kind: str, detail: str = "") -> Verdict:
        return Verdict(transport, session.name, step.keys, kind, detail)

    (how,) = turn.waits
    if how == "deadline":
        if step.expected == "busy":
            return verdict("right")
        last = max((stamp for stamp in witness.stamps if stamp <= returned), default=returned - _IDLE_SEC)
        return verdict("late" if returned - last >= _IDLE_SEC else "right", f"{turn.text[-60:]!r}")
    if step.expected == "busy":
        return verdict("early", f"{how} {turn.text[-60:]!r}")
    wrote = witness.since(returned)
    changed = later != "\n".join(turn.shown).rstrip().split("\n")
    if wrote and changed and not step.repaints and _screens_differ(turn.shown, later):
        written_ms = 1000 * (wrote[0] - returned)
        return verdict("early", f"{how} at {turn.shown[-3:]!r}, then {written_ms:.0f} ms later {later[-3:]!r}")
    is_right = how in _EXPECTED[step.expected]
    return verdict("right" if is_right else "label", "" if is_right else how)


def as_observed(screen: Screen) -> list[str]:
    """Return a screen's rows as an observation has them: without styles, line drawing characters as letters."""
    rows = [_STYLE.sub("", line).rstrip() for line in screen.lines]
    return "\n".join(rows).rstrip().split("\n")


def _screens_differ(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether two screens hold other text; rows of one may be joined."""
    return "".join("".join(before).split()) != "".join("".join(after).split())


def _compare(seen: list[str], expected: list[str]) -> str:
    lost = [line for line in expected if line not in seen]
    doubled = [line for line, count in Counter(seen).items() if count > 1]
    return f"{len(lost)} lost {lost[:3]}, {len(doubled)} doubled {doubled[:3]}, of {len(expected)}"
