"""The environment: the order of calls, budgets and outcomes; ``terminal`` and ``episode`` do the rest."""

import asyncio
import contextlib
import copy
import logging
import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from harbor_gym._runtime.console import under_way
from harbor_gym._runtime.portal import refuse_to_copy
from harbor_gym._runtime.shielded import shielded
from harbor_gym._runtime.shipped import folder_digest
from harbor_gym._runtime.task_groups import task_group
from harbor_gym._runtime.traces import is_wanted
from harbor_gym.config import Snapshot, TerminalEnvConfig, require_own_loop
from harbor_gym.config.dump_file import DumpFile
from harbor_gym.config.snapshot import NO_START, read_start
from harbor_gym.episode.budgets import EpisodeBudgets, Spent
from harbor_gym.episode.copy_mark import apply_mark, marks_of, new_mark
from harbor_gym.episode.grading.account import RewardAccount, step_share
from harbor_gym.episode.guarded_turn import PATIENCE_SEC, as_turn, joined, longest_wait_sec, take_turn
from harbor_gym.episode.prepared import DumpedEpisode, PreparedEpisode
from harbor_gym.episode.replay import EXACT, REPLAY, require_mode, require_same, require_start, with_patience
from harbor_gym.episode.reported import reported
from harbor_gym.episode.trajectory import Trajectory
from harbor_gym.errors import HarborGymError, SandboxError, UsageError
from harbor_gym.formats import parse_action, prompts
from harbor_gym.formats.parsed import ParsedAction
from harbor_gym.formats.tool_text import ToolCall, ToolDefinition
from harbor_gym.outcomes import losing_one_episode, note_reward
from harbor_gym.pool import WarmPool
from harbor_gym.sandboxes import shares_setup
from harbor_gym.terminal import Screen, Terminal, TerminalTurn
from harbor_gym.terminal.recording import CastRecorder, Recording
from harbor_gym.transcripts import trace_transcript
from harbor_gym.types import (
    Command,
    CopyMark,
    EndInfo,
    EndReason,
    EpisodeInfo,
    ForkMode,
    ResetInfo,
    Rollback,
    StepResult,
    Transcript,
    Turn,
)

if TYPE_CHECKING:
    from harbor_gym.episode import AgentPhase, Episode
    from harbor_gym.episode.side_command import SideResult
    from harbor_gym.episode.state import EpisodeState

Action = str | Sequence[Command | tuple[str, float]]
"""Commands (keystrokes, duration in seconds), or the text of one message in the configuration's ``action_format``."""


_logger = logging.getLogger(__name__)

_POLICYS_END = (EndReason.COMPLETED, EndReason.NO_TOOL_CALL)


@dataclass
class _Running:
    """The state of one episode."""

    prepared: PreparedEpisode
    """The trial, with the phase that it is in and its terminal."""

    account: RewardAccount
    started: float = field(default_factory=time.monotonic)
    step_rewards: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    confirmation_pending: bool = False
    recorder: CastRecorder | None = None
    trajectory: Trajectory | None = None
    seed: int | None = None
    start_info: EpisodeInfo = field(default_factory=lambda: EpisodeInfo(turn=0, metrics={}))
    turns: list[Turn] = field(default_factory=list[Turn])
    shown: str = ""
    """The last observation that the policy was shown."""

    task_digest: str = ""
    fork_mode: str | None = None
    why_replay: str = ""
    """Why it could not be copied exactly the last time, which the log has."""

    began: float = field(default_factory=time.time)
    """When the start began, by the clock."""

    returned: float = 0.0
    """When the last call returned."""

    waits: dict[int, float] = field(default_factory=dict[int, float])
    """Number of a turn, from 0 → seconds between its call and the one before, in which the caller sampled."""

    tool_metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Counts of the calls of MCP servers' tools so far; empty where the episode has no such tools."""

    beside_turns: str | None = None
    """The name of a method that changed the episode without taking a turn, which no replay repeats."""

    def transcript(self, end: StepResult | None = None) -> Transcript:
        """Return the episode for its trace.

        Args:
            end: The end that followed no turn.
        """
        turns = [replace(turn, thinking_sec=self.waits.get(number)) for number, turn in enumerate(self.turns)]
        cut = None if end is None else (end.reward, end.info)
        return Transcript(turns, started=self.began, start_info=self.start_info, cut=cut)

    def state(self, spent: Spent) -> "EpisodeState":
        """Return what a copy of the episode goes on with beside its turns."""
        from harbor_gym.episode.state import EpisodeState

        return EpisodeState(
            spent=spent,
            paid=self.account.paid,
            elapsed_sec=time.monotonic() - self.started,
            step_rewards=self.step_rewards,
            tool_metrics=self.tool_metrics,
            confirmation_pending=self.confirmation_pending,
            start_info={**self.start_info},
            last_info={**(self.turns[-1].info if self.turns else self.start_info)},
            phases=None if self.trajectory is None else self.trajectory.phases,
            recording=None if self.recorder is None else self.recorder.so_far(),
        )


class _State(StrEnum):
    IDLE = "not reset"
    STARTING = "starting"
    READY = "ready"
    STEPPING = "in a step"
    COPYING = "being copied"
    RETURNING = "being rolled back"
    DONE = "done"
    FAILED = "failed"
    CLOSED = "closed"


_DOING = {
    _State.STARTING: "starting its sandbox",
    _State.READY: "waiting for the model",
    _State.STEPPING: "running its commands",
    _State.COPYING: "being copied",
    _State.RETURNING: "being rolled back",
}
"""What an episode that is under way does in each state."""


class AsyncTerminalGymEnv:
    """A terminal in a Harbor sandbox as a reinforcement-learning environment.

    One instance runs one episode at a time and any number in a row. Reward is 0.0 until the episode is done, then the
    task verifier's; ``TerminalEnvConfig.step_rewards`` pays the steps of a multi-step task as they end. A failure of
    the infrastructure raises; it never becomes a reward.

    Args:
        config: The task, the sandbox and the budgets.
        pool: Take sandboxes from this pool, which the caller closes. None starts one at each ``reset``.

    Example::

        async with AsyncTerminalGymEnv(TerminalEnvConfig(task_dir="tasks/devops_task", sandbox="local")) as env:
            observation, info = await env.reset()
            observation, reward, done, info = await env.step([("ls -la\\n", 1.0)])
    """

    __getstate__ = refuse_to_copy

    def __init__(self, config: TerminalEnvConfig, *, pool: WarmPool | None = None) -> None:
        require_own_loop(config, "AsyncTerminalGymEnv")
        if pool is not None:
            pool.require_fit(config)
        self.config = config
        self._unpaid = RewardAccount.of(config)
        self._pool = pool
        self._budgets = EpisodeBudgets(config)
        self._state = _State.IDLE
        self._running: _Running | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._copied: tuple[str, ResetInfo] | None = None
        """The result of ``reset`` for a copy in which nothing was done yet."""

        self.screen: Screen | None = None
        """The screen after the last turn, where the configuration sets ``capture_screen``; it outlives the episode."""

    def __repr__(self) -> str:
        turns = "" if self._running is None else f", turn {len(self._running.turns)}"
        config = self.config
        return f"<{type(self).__name__} {config.task_dir.name} on {config.sandbox}: {self._state}{turns}>"

    @property
    def remaining(self) -> tuple[float, float]:
        """Return the rest of the turns and of the terminal time, as fractions in [0, 1]; 1 where there is no limit."""
        return self._budgets.remaining

    @property
    def tools(self) -> tuple[ToolDefinition, ...]:
        """The tools that a message can call beside the terminal's, in the running phase of the episode."""
        return self._running.prepared.tools if self._running is not None else ()

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, ResetInfo]:
        """Start a fresh sandbox and return its terminal.

        A previous episode is closed first, whatever its state. A copy that :meth:`fork` made has begun, and its first
        ``reset`` returns how it stands. With ``TerminalEnvConfig.start_from`` that episode is replayed, and observation
        and ``info`` are as its last turn left them.

        Args:
            seed: Accepted for Gymnasium's sake. A sandbox has no seed: tasks that vary do so by themselves.
            options: Accepted for Gymnasium's sake; there are no options, so anything but None or empty is refused.

        Returns:
            The terminal's text, and ``info`` with the task's ``instruction``.

        Raises:
            UsageError: A call is running, the environment is closed, or the options or the event loop can't be used.
            TaskError: The task directory is missing something, is malformed, or can't run on this sandbox.
            MissingDependencyError: The sandbox type needs a program, a package or a key that isn't there.
            SandboxError: The sandbox could not be built or started.
            TerminalStartError: The sandbox has no usable shell or tmux.
            ForkDivergedError: The replay shows another screen than the episode of ``start_from`` did.
        """
        if options:
            raise UsageError(f"reset takes no options, got {', '.join(sorted(options))}")
        self._require(_State.IDLE, _State.READY, _State.DONE, _State.FAILED, doing="reset")
        self._require_loop(doing="reset")
        copied, self._copied = self._copied, None
        if copied is not None and self._state is _State.READY:
            return copied
        return await self._begin(lambda: self._start(seed))

    async def _begin(self, start: Callable[[], Awaitable[tuple[str, ResetInfo]]]) -> tuple[str, ResetInfo]:
        self._state = _State.STARTING
        try:
            await self._release()
            self._loop = asyncio.get_running_loop()
            observation, info = await start()
        except BaseException as exc:
            await self._fail(exc)
            raise
        if self._running is not None:  # close() may have come meanwhile
            self._running.returned = time.monotonic()
        self._become(_State.READY)
        return observation, info

    async def step(self, action: Action) -> StepResult:
        """Type the action's keystrokes and return what the terminal shows.

        Args:
            action: A list of commands, or the text of one message in the configuration's ``action_format``. Text that
                can't be read executes nothing: the observation then states what was wrong.

        Returns:
            Observation (terminal text), reward, done, ``info``; see :class:`harbor_gym.types.EpisodeInfo`.

        Raises:
            UsageError: There is no running episode, or the action is neither text nor commands with a duration of 0 or
                more. Nothing has happened then, and a running episode goes on.
            SandboxError, TerminalError, VerifierError: The infrastructure failed. The episode is over without a
                reward; ``reset`` starts a new one.
            UnexpectedError: Likewise, after an exception that is not of this package.
        """
        parsed = self._read(action)
        message, commands = (action, None) if isinstance(action, str) else ("", parsed.commands)

        async def play() -> StepResult:
            running = self._episode_at_hand
            result = await self._step(parsed, message)
            known = copy.deepcopy(result.info)  # the caller may change its own
            running.turns.append(Turn(running.shown, message, known, result.reward, commands=commands))
            running.shown = result.observation
            return result

        return await self._transition("step", play)

    async def snapshot(self, *, mode: ForkMode = "replay") -> Snapshot:
        """Return the actions and observations of the running episode so far, from which other episodes can begin.

        Args:
            mode: ``replay``: nothing else, which costs next to nothing. ``exact``: also a dump of processes and files,
                as for :meth:`fork`, and the episode stands still meanwhile. ``Snapshot.write`` puts it beside the
                snapshot, and ``TerminalEnvConfig.start_mode`` states how another episode begins from it. ``auto``: the
                dump where there can be one.

        Raises:
            UsageError: There is no running episode, a call is running, or ``exec`` or ``finish`` was called in it,
                which no replay repeats; or the mode can't be had.
            SandboxError: The processes can't be copied. The episode goes on.
        """
        require_mode(mode)
        taken = await self._snapshot()
        async with self._dumped(mode) as dumped:
            if dumped is None:
                return taken
            from harbor_gym.episode.state import store

            state = self._episode_at_hand.state(self._budgets.spent)
            try:
                return replace(taken, dump=await shielded(asyncio.to_thread(store, state, dumped)))
            except SandboxError as exc:
                if mode == EXACT:
                    raise
                _logger.warning("the snapshot is without processes: %s", exc)
                return taken

    async def _snapshot(self) -> Snapshot:
        self._require(_State.READY, doing="snapshot")
        task_dir = self.config.task_dir.resolve()
        if not self._episode_at_hand.task_digest:
            running, digest = self._episode_at_hand, await asyncio.to_thread(folder_digest, task_dir)
            running.task_digest = digest
            self._require(_State.READY, doing="snapshot")  # another call may have begun meanwhile
        running = self._episode_at_hand
        if running.beside_turns is not None:
            raise UsageError(f"the episode can't be replayed: {running.beside_turns} was called, which is no turn")
        known = {**NO_START, "task_dir": task_dir, "recording_path": None}
        return Snapshot(
            config=self.config.model_copy(update=known),
            turns=tuple(running.turns),
            observation=running.shown,
            start_info=running.start_info,
            task_digest=running.task_digest,
            seed=running.seed,
        )

    async def fork(self, n: int, *, mode: ForkMode = "auto") -> list[Self]:
        """Copy the running episode: return environments that stand where it does, each with a sandbox of its own.

        The episode goes on undisturbed. What it used of its budgets counts in each copy. A copy's ``reset`` begins at
        the same turn; a trial's folder is the copy's own, and ``recording_path`` is the parent's alone.
        ``TerminalEnvConfig.copy_command`` has run in each. The caller closes the copies.

        Args:
            n: How many, at least 1.
            mode: ``replay``: type the episode's keystrokes in fresh sandboxes, which takes the time of its commands,
                and compare each screen. It is exact for commands that do the same each time; a difference that no
                screen shows is not seen. ``exact``: copy files and processes, by CRIU; for ``local`` sandboxes with the
                option ``forkable``. ``auto``: ``exact`` where that can be done, else ``replay``; the copies'
                ``info["fork_mode"]`` states which, and the log why.

        Raises:
            UsageError: As :meth:`snapshot`, or the mode can't be had.
            ForkDivergedError: A replay shows another screen. As with any failure, no copy is left then.
            SandboxError, TerminalError: As :meth:`reset`, or the processes can't be copied. The episode goes on.
        """
        require_mode(mode)
        if n < 1:
            raise UsageError(f"fork makes at least 1 copy, got {n}")
        # The task is this episode's own: no copy has to read its files again.
        taken = replace(await self._snapshot(), task_digest="")
        start = {**NO_START, "start_from": taken, "recording_path": None}
        copies = [type(self)(self.config.model_copy(update=start), pool=self._pool) for _ in range(n)]
        running = self._episode_at_hand
        async with self._dumped(mode) as dumped:
            state = None if dumped is None else running.state(self._budgets.spent)
            try:
                async with task_group() as group:
                    for each in copies:
                        group.create_task(each._begin_copy(taken, state, dumped, running.task_digest))
            except BaseException:
                await shielded(_close(copies))
                raise
        for each in copies:
            each.screen = each.screen or self.screen
        return copies

    async def rollback(self, to: int | Snapshot) -> tuple[str, ResetInfo]:
        """Return the running episode to an earlier turn, any number of times.

        A copy of the episode as it stood then takes the place of its sandbox, so what its processes did since is gone.
        Budgets, rewards, turns and snapshots go on as if the turns since had not been taken: no transcript has
        them but as a number in ``info["rollbacks"]``, a recording goes on behind them, and what they did
        outside of the sandbox stays. ``TerminalEnvConfig.copy_command`` has run, as in each copy.

        Args:
            to: A snapshot of this episode: exact where it was taken with ``mode="exact"``. Or the number of turns that
                are kept, which are then replayed as for :meth:`fork`.

        Returns:
            The observation of the turn at which the episode stands, and ``info`` as from ``reset``.

        Raises:
            UsageError: There is no running episode, a call is running, or there is no such turn or snapshot in it;
                for a number, ``exec`` or ``finish`` was called, which no replay repeats.
            ForkDivergedError, SandboxError, TerminalError: As :meth:`fork`. The episode goes on where it was.
        """
        self._require(_State.READY, doing="rollback")
        self._require_loop(doing="rollback")
        taken = to if isinstance(to, Snapshot) else (await self._snapshot()).at(to)
        running = self._episode_at_hand
        _require_part(taken, running.turns, running.shown)
        start = {**NO_START, "start_from": replace(taken, task_digest=""), "recording_path": None}
        other = type(self)(self.config.model_copy(update=start), pool=self._pool)
        self._state = _State.RETURNING
        try:
            observation, info = await other.reset()
            await shielded(self._take_over(other, running))
        finally:
            self._become(_State.READY)
            await shielded(other.close())
        if self._running is None:
            raise UsageError("the environment was closed while it was being rolled back")
        info["rollbacks"] = self._running.start_info.get("rollbacks", ())
        return observation, info

    async def _take_over(self, other: Self, old: _Running) -> None:
        """Go on with the episode of another environment in place of one's own, unless that was closed meanwhile."""
        if self._running is not old:
            return
        new, other._running = other._episode_at_hand, None
        self._running, self._budgets, self.screen = new, other._budgets, other.screen or self.screen
        self._copied = None
        undone = Rollback(turn=len(new.turns), undone=len(old.turns) - len(new.turns))
        new.start_info["rollbacks"] = (*old.start_info.get("rollbacks", ()), undone)
        new.began, new.started, new.seed, new.task_digest = old.began, old.started, old.seed, old.task_digest
        new.waits = {turn: waited for turn, waited in old.waits.items() if turn < len(new.turns)}
        new.returned = time.monotonic()
        with reported(f"after {self._name} was rolled back"):
            await self._go_on_recording(new, old)
            await old.prepared.discard()

    async def _go_on_recording(self, new: _Running, old: _Running) -> None:
        if old.recorder is None or (path := self._recording_path(new.prepared.episode)) is None:
            return
        if new.recorder is not None:  # of a replay, in a kept trial's folder
            new.recorder.close()
        old.recorder.close()
        after = await asyncio.to_thread(old.recorder.so_far)
        new.recorder = await asyncio.to_thread(self._open_recording, path, new.prepared.task.name, after)

    @contextlib.asynccontextmanager
    async def _dumped(self, mode: ForkMode) -> AsyncGenerator[DumpedEpisode | None]:
        """Hold the episode at the present turn with a dump of it; None where it is to be replayed."""
        if mode == REPLAY:
            yield None
            return
        self._state, running = _State.COPYING, self._episode_at_hand
        try:
            dumped = await running.prepared.dump()
        except (UsageError, SandboxError) as exc:
            if mode == EXACT:
                raise
            if (why := str(exc)) != running.why_replay:
                _logger.info("the episode is copied by replay: %s", why)
            running.why_replay = why
        else:
            with contextlib.closing(dumped):
                yield dumped
            return
        finally:
            self._become(_State.READY)
        yield None

    async def exec(self, command: str, *, timeout_sec: float, service: str | None = None) -> "SideResult":
        """Run shell text in the sandbox as the policy's user, beside its terminal, or in a service of the episode.

        For adapters with tools that type nothing. The call is not a turn, and recordings omit it; its time counts
        toward the episode's time limit, which the next ``step`` enforces.

        Args:
            command: Text for a shell, up to 128 KiB.
            timeout_sec: Longest run in seconds; a command that runs longer has no ``return_code`` and no output.
            service: The service of the task's Compose file in which it runs instead, by its ``sh``, as its own user.

        Raises:
            UsageError: There is no running episode, or no such service, or that does not run; the episode goes on.
            SandboxError: The infrastructure failed, as for ``step``.
        """
        from harbor_gym.episode.side_command import run_side_command

        self._require(_State.READY, doing="exec")
        phase = self._episode_at_hand.prepared.phase
        self._episode_at_hand.beside_turns, self._copied = "exec", None
        self._state = _State.STEPPING
        try:
            with losing_one_episode(self._name):
                result = await run_side_command(phase, command, timeout_sec=timeout_sec, service=service)
        except UsageError:
            self._become(_State.READY)
            raise
        except BaseException as exc:
            await self._explain(exc)
            await self._fail(exc)
            raise
        self._budgets.terminal_sec += result.duration_sec
        self._become(_State.READY)
        return result

    async def close(self) -> None:
        """Stop the sandbox and remove everything that the configuration does not keep. Idempotent, at any time.

        Raises:
            SandboxTimeoutError: The sandbox did not stop in the time that the configuration allows.
            UsageError: The episode runs on another event loop, which is still open.
        """
        self._require_loop(doing="close")
        self._state = _State.CLOSED
        await self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_running", None) is not None:
            warnings.warn(f"{self!r} was never closed: its sandbox may still run", ResourceWarning, stacklevel=1)

    def _read(self, action: Action) -> ParsedAction:
        return parse_action(action, format=self.config.action_format, tools=self.tools)

    # -- one episode ---------------------------------------------------------------------------------------------

    async def _begin_copy(
        self, taken: Snapshot, state: "EpisodeState | None", dumped: DumpedEpisode | None, task_digest: str
    ) -> None:
        async def start() -> tuple[str, ResetInfo]:
            if state is None or dumped is None:
                return await self._start(None)
            begun = await self._start_copy(replace(taken, task_digest=task_digest), state, dumped)
            return await self._marked(*begun)

        self._copied = await self._begin(start)

    async def _start_stored(self, taken: Snapshot, file: DumpFile) -> tuple[str, ResetInfo]:
        """Go on from a dump in a file, as :meth:`_start_copy`.

        Raises:
            UsageError: It can't be read, or not be restored here.
            SandboxError: It does not come up.
        """
        from harbor_gym.episode.state import load

        state, dumped = await shielded(asyncio.to_thread(load, file))
        with contextlib.closing(dumped):
            observation, info = await self._start_copy(taken, state, dumped)
        await self._capture_screen(self._episode_at_hand.prepared.terminal)
        return observation, info

    async def _start_copy(self, taken: Snapshot, state: "EpisodeState", dumped: DumpedEpisode) -> tuple[str, ResetInfo]:
        """Go on with another episode's turns in a copy of its sandbox; return what its last one returned."""
        prepared, state = PreparedEpisode(self.config, dumped), copy.deepcopy(state)
        running = self._running = self._run(prepared)
        await prepared.prepare()
        running.turns, running.shown, running.seed = list(taken.turns), taken.observation, taken.seed
        running.task_digest, running.fork_mode = taken.task_digest, EXACT
        running.started = time.monotonic() - state.elapsed_sec
        running.step_rewards, running.tool_metrics = state.step_rewards, state.tool_metrics
        running.confirmation_pending = state.confirmation_pending
        running.start_info = cast("EpisodeInfo", state.start_info)
        running.account.step_share = self._step_share(prepared)
        running.account.paid = state.paid
        self._budgets = EpisodeBudgets(self.config)
        self._budgets.enter_phase(prepared.phase.timeout_sec)
        self._budgets.go_on(state.spent)
        if self._budgets.exhausted() is not None:
            raise UsageError(f"start_from: a limit ends the episode at turn {taken.turn} of {taken.turn}")
        await self._keep_records(running, state)
        metrics = {
            "time/sandbox_start_sec": prepared.episode.sandbox_start_sec,
            "time/terminal_open_sec": prepared.terminal_open_sec,
            **dumped.metrics,
        }
        known = cast("ResetInfo", {**state.start_info, **state.last_info})
        instruction = prepared.phase.instruction
        info: ResetInfo = {**known, "metrics": metrics, "instruction": instruction, "fork_mode": EXACT}
        screen = running.shown if running.turns else (await prepared.first_screen()).text
        return screen, info

    async def _start(self, seed: int | None) -> tuple[str, ResetInfo]:
        snapshot = await asyncio.to_thread(read_start, self.config)
        task_digest = ""
        if snapshot is not None:
            if snapshot.task_digest:
                task_digest = await asyncio.to_thread(folder_digest, self.config.task_dir)
            require_start(snapshot, self.config, task_digest)
            if (exact := await self._start_exact(snapshot)) is not None:
                return await self._marked(*exact)
        running, metrics = await self._prepare()
        running.seed, running.task_digest = seed, task_digest
        prepared = running.prepared
        running.started = time.monotonic()
        running.account.step_share = self._step_share(prepared)
        self._budgets = EpisodeBudgets(self.config)
        self._budgets.enter_phase(prepared.phase.timeout_sec)
        await self._keep_records(running)
        turn = await prepared.first_screen()
        await self._capture_screen(prepared.terminal)
        info = self._show(running, turn)
        info["task"] = prepared.task.name
        if self.config.setup_command is not None:
            is_shared = shares_setup(self.config.sandbox, prepared.phase.environment)
            info["setup"] = "shared" if is_shared else "each_start"
        info["metrics"] |= {"time/sandbox_start_sec": prepared.episode.sandbox_start_sec, **metrics}
        info["metrics"]["time/terminal_open_sec"] = prepared.terminal_open_sec
        running.start_info = copy.deepcopy(info)
        running.shown = prompts.first_message(prepared.phase.instruction, turn.text)
        if snapshot is None:
            return turn.text, info
        return await self._marked(*await self._replay(running, snapshot, turn.text, info))

    async def _marked(self, observation: str, info: ResetInfo) -> tuple[str, ResetInfo]:
        """Mark the sandbox as that of one more copy, and run ``copy_command`` in it."""
        if (running := self._running) is None:
            raise UsageError("the environment was closed while it was being copied")
        mark, started = new_mark(len(running.turns), self.config.copy_command), time.monotonic()
        await self._apply(running, (mark,))
        info["copies"] = running.start_info["copies"] = (*running.start_info.get("copies", ()), mark)
        if mark["command"] is not None:
            info["metrics"]["time/copy_command_sec"] = time.monotonic() - started
        return observation, info

    async def _apply(self, running: _Running, marks: Sequence[CopyMark]) -> None:
        """Apply the marks of copies that began at the present turn."""
        limit_sec, turn = running.prepared.task.config.environment.build_timeout_sec, len(running.turns)
        for mark in (mark for mark in marks if mark["turn"] == turn):
            await apply_mark(running.prepared.phase, mark, timeout_sec=limit_sec)

    async def _start_exact(self, snapshot: Snapshot) -> tuple[str, ResetInfo] | None:
        """Begin with a snapshot's dump if the configuration allows it; None where the turns are to be replayed."""
        mode = self.config.start_mode
        if mode == REPLAY or (mode == "auto" and snapshot.dump is None):
            return None
        try:
            if snapshot.dump is None:
                raise UsageError('start_from: the snapshot has no dump for start_mode "exact", only turns to replay')
            return await self._start_stored(snapshot, snapshot.dump)
        except (UsageError, SandboxError) as exc:
            if mode == EXACT or self._state is _State.CLOSED:
                raise
            _logger.warning("the episode goes on by replay: %s", exc)
            await self._release()
            return None

    async def _keep_records(self, running: _Running, state: "EpisodeState | None" = None) -> None:
        """Record the episode as the configuration says, after what another one has recorded of its beginning."""
        prepared = running.prepared
        if self.config.trials_dir is not None:
            running.trajectory = Trajectory(sandbox=self.config.sandbox, action_format=self.config.action_format)
            if state is not None and state.phases is not None:
                running.trajectory.phases = state.phases
            elif state is not None:
                running.trajectory.open_phase(prepared.phase.instruction, running.shown)
        if (path := self._recording_path(prepared.episode)) is not None:
            after = state.recording if state is not None else None
            running.recorder = await asyncio.to_thread(self._open_recording, path, prepared.task.name, after)
            if self._running is not running:
                running.recorder.close()  # close() came meanwhile, and there was none yet

    def _step_share(self, prepared: PreparedEpisode) -> float:
        return step_share(prepared.task) if self.config.step_rewards else 0.0

    async def _replay(
        self, running: _Running, snapshot: Snapshot, screen: str, info: ResetInfo
    ) -> tuple[str, ResetInfo]:
        """Repeat a snapshot's turns in the fresh sandbox; return the last one's observation and info."""
        started, running.fork_mode = time.monotonic(), REPLAY
        if running.seed is None:
            running.seed = snapshot.seed
        following = [*(turn.observation for turn in snapshot.turns), snapshot.observation]
        require_same(0, following[0], running.shown)
        earlier = marks_of(snapshot.start_info, turn=snapshot.turn)
        for number, turn in enumerate(snapshot.turns, start=1):
            await self._apply(running, earlier)
            parsed = self._read(turn.action if turn.commands is None else turn.commands)
            patient = with_patience(parsed, turn, snapshot.config.terminal)
            result = await self._step(patient, turn.action, spent_sec=turn.info["metrics"].get("time/step_sec", 0.0))
            if result.done and result.info.get("truncated"):
                raise UsageError(f"start_from: a limit ends the episode at turn {number} of {snapshot.turn}")
            require_same(number, following[number], result.observation)
            require_same(number, f"reward {turn.reward}", f"reward {result.reward}")
            running.turns.append(turn)
            running.shown = screen = result.observation
            info = {**info, **result.info, "metrics": info["metrics"]}
        await self._apply(running, earlier)
        running.start_info["copies"] = earlier
        info = {**info, "instruction": running.prepared.phase.instruction, "fork_mode": running.fork_mode}
        info["metrics"]["time/replay_sec"] = time.monotonic() - started
        return screen, info

    async def _prepare(self) -> tuple[_Running, dict[str, float]]:
        """Return an episode with its terminal open, and the pool's metrics, if it came from one."""
        if self._pool is None:
            # Stored before it starts, so that a concurrent close() can stop it.
            running = self._running = self._run(PreparedEpisode(self.config))
            await running.prepared.prepare()
            return running, {}
        lease = await self._pool.lease()
        running = self._running = self._run(lease.prepared)
        if self._state is _State.CLOSED:
            raise UsageError("the environment was closed while it waited for a sandbox")
        return running, {"pool/hit": float(lease.hit), "pool/wait_sec": lease.wait_sec}

    def _run(self, prepared: PreparedEpisode) -> _Running:
        return _Running(prepared, replace(self._unpaid))

    async def _enter_phase(self, running: _Running, phase: "AgentPhase") -> tuple[str, ResetInfo]:
        """Open a terminal in the phase's sandbox; return its screen."""
        started = time.monotonic()
        self._budgets.enter_phase(phase.timeout_sec)
        turn = await running.prepared.enter_phase(phase)
        await self._capture_screen(running.prepared.terminal)
        info = self._show(running, turn)
        info["metrics"]["time/terminal_open_sec"] = time.monotonic() - started
        return turn.text, info

    def _show(self, running: _Running, turn: TerminalTurn) -> ResetInfo:
        phase, running.confirmation_pending = running.prepared.phase, False
        if running.prepared.tools and not running.tool_metrics:
            running.tool_metrics = {"mcp/calls": 0.0, "mcp/failed": 0.0}
        self._record(running, "", turn)
        if running.trajectory is not None:
            running.trajectory.open_phase(phase.instruction, turn.text)
        info = ResetInfo(
            instruction=phase.instruction,
            sandbox=self.config.sandbox,
            turn=self._budgets.turns,
            transport=turn.transport,
            metrics={},
        )
        if phase.resources.skills_dir is not None:
            info["skills_dir"] = phase.resources.skills_dir
        if phase.resources.mcp_servers:
            info["mcp_servers"] = tuple(
                server.model_dump(exclude={"headers"}) for server in phase.resources.mcp_servers
            )
        return info

    async def _step(self, parsed: ParsedAction, message: str, *, spent_sec: float | None = None) -> StepResult:
        """Take one turn; in a replay it counts as ``spent_sec`` seconds."""
        running, budgets, language = self._episode_at_hand, self._budgets, self.config.action_format
        budgets.turns += 1
        info = EpisodeInfo(turn=budgets.turns, parse_error=parsed.error, metrics={})
        reason = budgets.note_parsing(is_failed=parsed.error is not None)
        if parsed.error is not None:
            observation = prompts.parse_error(parsed.error, parsed.warning, language)
        else:
            turn = await self._take_turn(running.prepared, parsed)
            if spent_sec is not None:
                turn = replace(turn, duration_sec=spent_sec)
            self._account(turn, info)
            self._record(running, "".join(command.keystrokes for command in parsed.commands), turn)
            observation, reason = turn.text, EndReason.SESSION_ENDED if turn.ended else None
            if parsed.task_complete:
                reason = self._declared_complete(running) or reason
                if reason is None:
                    observation = prompts.confirmation_request(observation, language)
            else:
                running.confirmation_pending = False
                observation = prompts.with_warning(parsed.warning, observation)
        info["confirmation_pending"] = running.confirmation_pending
        if running.trajectory is not None:
            running.trajectory.turn(message, parsed.parts, observation, info)
        reason = reason or budgets.exhausted()
        if reason is None:
            return StepResult(observation, 0.0, False, info)
        # The task's own limit is each step's, and Harbor goes on to the next one; ours is the episode's.
        is_the_steps = reason is EndReason.TIME_LIMIT and self.config.time_limit_sec is None
        is_last = reason is not EndReason.COMPLETED and not is_the_steps
        return await self._end_phase(reason, observation, info, is_last=is_last)

    async def _take_turn(self, prepared: PreparedEpisode, parsed: ParsedAction) -> TerminalTurn:
        if not parsed.calls:
            return await self._type(prepared, parsed.commands)
        limit, turns = self.config.terminal.max_observation_bytes, list[TerminalTurn]()
        metrics = self._episode_at_hand.tool_metrics
        for part in parsed.parts:
            if isinstance(part, ToolCall):
                result = await prepared.call(part)
                metrics["mcp/calls"] += 1
                metrics["mcp/failed"] += result.is_error
                turns.append(as_turn(result, max_bytes=limit))
            else:
                turns.append(await self._type(prepared, part))
            if turns[-1].ended:
                break
        return joined(turns, max_bytes=limit)

    async def _type(self, prepared: PreparedEpisode, commands: Sequence[Command]) -> TerminalTurn:
        episode, terminal, config = prepared.episode, prepared.terminal, self.config.terminal
        turn = await take_turn(
            terminal,
            commands,
            late_sec=longest_wait_sec(commands, config) + PATIENCE_SEC,
            find_breakage=lambda failure: episode.find_breakage(terminal.leftovers, failure),
        )
        if not turn.ended:
            await self._capture_screen(terminal)
        return turn

    async def truncate(self, reason: EndReason) -> StepResult:
        """End the episode for a reason that only the caller knows, and verify it.

        For adapters: a sampled message hit its token limit, or the next observation would not fit the context.

        Args:
            reason: ``MAX_TOKENS``, ``CONTEXT_OVERFLOW``, ``TIME_LIMIT`` or ``MAX_TURNS``.

        Returns:
            As ``step``, with ``done`` true and an empty observation.

        Raises:
            UsageError: There is no running episode, or the reason isn't a truncation.
            SandboxError, TerminalError, VerifierError: As for ``step``.
        """
        if not reason.is_truncation:
            raise UsageError(f"{reason.value} is not a truncation; the environment ends such an episode itself")
        return await self._end(reason, is_last=True, doing="truncate")

    async def finish(self, reason: EndReason = EndReason.COMPLETED) -> StepResult:
        """End the policy's work because the caller's loop saw it end, and verify it.

        For adapters of frameworks that own the loop: the policy stopped calling tools, or called a tool of the
        framework that ends the episode. No confirmation is asked for. In a multi-step task the next step opens, as
        after ``task_complete``.

        Args:
            reason: ``COMPLETED`` or ``NO_TOOL_CALL``.

        Returns:
            As ``step``; the observation is empty unless a next step opened.

        Raises:
            UsageError: There is no running episode, or the reason is another one.
            SandboxError, TerminalError, VerifierError: As for ``step``.
        """
        if reason not in _POLICYS_END:
            raise UsageError(f"finish takes completed or no_tool_call, got {reason.value}")
        return await self._end(reason, is_last=False, doing="finish")

    async def _end(self, reason: EndReason, *, is_last: bool, doing: str) -> StepResult:
        async def end() -> StepResult:
            self._episode_at_hand.beside_turns = doing
            return await self._end_phase(reason, "", info, is_last=is_last)

        info = EpisodeInfo(turn=self._budgets.turns, metrics={})
        return await self._transition(doing, end)

    async def _transition(self, doing: str, work: Callable[[], Awaitable[StepResult]]) -> StepResult:
        """Run one transition of a running episode; a failure ends the episode."""
        self._require(_State.READY, doing=doing)
        self._require_loop(doing=doing)
        self._state, self._copied = _State.STEPPING, None
        running = self._episode_at_hand
        running.waits[len(running.turns)] = time.monotonic() - running.returned
        try:
            with losing_one_episode(self._name):
                result = await work()
        except BaseException as exc:
            await self._explain(exc)
            await self._fail(exc)
            raise
        running.returned = time.monotonic()
        if result.done:
            self._trace(running, end=None if doing == "step" else result)
        self._become(_State.DONE if result.done else _State.READY)
        return result

    async def _end_phase(self, reason: EndReason, observation: str, info: EpisodeInfo, *, is_last: bool) -> StepResult:
        """Verify the policy's work; continue with a multi-step task's next step if there is one."""
        running = self._episode_at_hand
        episode, terminal, account = running.prepared.episode, running.prepared.terminal, running.account
        self._show_doing("being graded")
        await running.prepared.leave_phase()
        end = await episode.end_phase(
            keep_processes=self.config.keep_agent_processes, is_last=is_last, terminal=terminal.leftovers
        )
        if end.verifier is not None:
            info["verifier_output"], info["verifier_files"] = end.verifier.output, dict(end.verifier.files)
        info["metrics"]["time/verifier_sec"] = end.verifier_sec
        info["metrics"]["stopped_processes"] = end.stopped_processes
        if end.stopped_names:
            info["stopped_processes"] = end.stopped_names
        if end.oom_kills is not None:
            info["metrics"]["oom_kills"] = end.oom_kills
        if episode.step_names:
            running.step_rewards += map(dict, (end.rewards, *end.unplayed))
            info["step_rewards"] = tuple(running.step_rewards)
        if end.next_phase is not None:
            pay = account.pay_step(end.rewards)
            screen, entered = await self._enter_phase(running, end.next_phase)
            entered["metrics"] = {**info["metrics"], **entered["metrics"]}
            merged: EpisodeInfo = {**info, **entered}
            instruction = running.prepared.phase.instruction
            return StepResult(prompts.next_step(instruction, screen), pay, False, merged)
        if end.breakage is not None:
            reason, info["breakage"] = EndReason.SANDBOX_BROKEN, end.breakage
        elif end.is_gated and reason in _POLICYS_END:
            reason = EndReason.STEP_GATE
        reward = account.settle(end.episode_rewards, reason)
        note_reward()
        ended: EndInfo = {
            **info,
            "rewards": dict(end.episode_rewards),
            "episode_reward": reward,
            "end_reason": reason,
            "truncated": reason.is_truncation,
        }
        if account.is_capped(reason):
            ended["metrics"]["zero_reward_on_limit"] = 1.0
        await self._conclude(running, ended)
        return StepResult(observation, reward - account.paid, True, ended)

    async def _conclude(self, running: _Running, info: EndInfo) -> None:
        episode = running.prepared.episode
        if running.fork_mode is not None:
            info["fork_mode"] = running.fork_mode
        info["missing_protections"] = episode.missing_protections
        info["trial_dir"] = episode.trial_dir if self.config.trials_dir is not None else None
        if printed := await episode.service_output():
            info["service_output"] = printed
        info["metrics"] |= {"time/terminal_sec": self._budgets.terminal_sec, **running.tool_metrics}
        if running.trajectory is not None and info["trial_dir"] is not None:
            with reported(f"the trajectory of {self._name} can't be written"):
                await asyncio.to_thread(running.trajectory.write, info["trial_dir"], info, episode.step_names)
        with reported(f"after the verdict of {self._name}"):
            await self._release()

    async def _explain(self, error: BaseException) -> None:
        """Attach the trial's diagnostics to an infrastructure failure before they are removed."""
        if isinstance(error, HarborGymError) and error.is_infrastructure and self._running is not None:
            await self._running.prepared.episode.explain(error)

    def _recording_path(self, episode: "Episode") -> Path | None:
        # Not in the trial's agent folder: a sandbox may mount that, and the policy could turn the file into a link.
        kept = episode.trial_dir / "recording.cast" if self.config.trials_dir and episode.trial_dir else None
        return self.config.recording_path or kept

    def _open_recording(self, path: Path, task_name: str, after: Recording | None) -> CastRecorder:
        terminal = self.config.terminal
        return CastRecorder(path, columns=terminal.columns, rows=terminal.rows, title=task_name, after=after)

    def _record(self, running: _Running, keystrokes: str, turn: TerminalTurn) -> None:
        if running.recorder is not None:
            at_sec = time.monotonic() - running.started
            running.recorder.turn(self._budgets.turns, keystrokes, turn.text, at_sec, shown=turn.shown)

    # -- small decisions -----------------------------------------------------------------------------------------

    async def _capture_screen(self, terminal: Terminal) -> None:
        if self.config.capture_screen:
            self.screen = await terminal.screen() or self.screen

    def _account(self, turn: TerminalTurn, info: EpisodeInfo) -> None:
        self._budgets.terminal_sec += turn.duration_sec
        info["exit_code"] = turn.exit_code
        info["waits"] = turn.waits
        info["transport"] = turn.transport
        info["omitted_bytes"] = turn.omitted_bytes
        info["metrics"]["time/step_sec"] = turn.duration_sec

    def _declared_complete(self, running: _Running) -> EndReason | None:
        """Count a ``task_complete``: the first asks for confirmation, the second in a row ends the episode."""
        is_confirmed = running.confirmation_pending or not self.config.confirm_task_complete
        running.confirmation_pending = not is_confirmed
        return EndReason.COMPLETED if is_confirmed else None

    # -- life cycle ----------------------------------------------------------------------------------------------

    @property
    def _state(self) -> _State:
        return self._known_state

    @_state.setter
    def _state(self, state: _State) -> None:
        self._known_state = state
        self._show_doing(_DOING.get(state))

    def _show_doing(self, doing: str | None) -> None:
        turn = self._budgets.turns + (self._known_state is _State.READY)
        shown = doing and (f"turn {turn}, {doing}" if turn else doing)
        under_way.note(self, self.config.task_dir.name, shown)

    @property
    def _name(self) -> str:
        return f"an episode of {self.config.task_dir.name}"

    @property
    def _episode_at_hand(self) -> _Running:
        assert self._running is not None
        return self._running

    def _require(self, *states: _State, doing: str) -> None:
        if self._state in states:
            return
        hint = {
            _State.IDLE: "call reset() first",
            _State.DONE: "the episode is over: call reset()",
            _State.FAILED: "the episode failed: call reset()",
            _State.CLOSED: "the environment is closed: make a new one",
        }.get(self._state, "wait for the call that is running: one episode takes one call at a time")
        raise UsageError(f"{doing} can't be called while the environment is {self._state.value}; {hint}")

    def _require_loop(self, *, doing: str) -> None:
        """Refuse a call from another event loop than the episode's, unless that is closed and the call starts anew."""
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop() or (loop.is_closed() and doing in ("reset", "close")):
            return
        ended = ", which was closed, and the episode with it" if loop.is_closed() else ""
        raise UsageError(
            f"{doing} was called on another event loop than reset{ended}. Each asyncio.run makes a loop of its own: "
            'run the whole episode inside one, or use gym.make("HarborTerminal-v0"), which needs none'
        )

    def _become(self, state: _State) -> None:
        # Another task may have called close() meanwhile: the environment stays closed.
        if self._state is not _State.CLOSED:
            self._state = state

    async def _fail(self, error: BaseException) -> None:
        self._become(_State.FAILED)
        if self._running is not None:
            self._trace(self._running, error=error)
        try:
            await self._release()
        except HarborGymError as exc:
            # The first failure is the one to report; a failed release is a warning beside it.
            warnings.warn(f"after a failed episode: {exc}", ResourceWarning, stacklevel=2)

    def _trace(self, running: _Running, *, end: StepResult | None = None, error: BaseException | None = None) -> None:
        if is_wanted():
            trace_transcript(running.transcript(end), task=self.config.task_dir.name, error=error)

    async def _release(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        try:
            if running.recorder is not None:
                running.recorder.close()
        finally:
            # A closed loop has closed the terminal's channel and cancelled the trial, which stops its sandbox.
            await running.prepared.close(has_channel=self._loop is None or not self._loop.is_closed())


def _require_part(taken: Snapshot, turns: Sequence[Turn], shown: str) -> None:
    """Check that a snapshot is one of an episode with these turns, which shows this.

    Raises:
        UsageError: It is another episode's.
    """
    then = [(turn.observation, turn.action, turn.commands) for turn in taken.turns]
    known = [(turn.observation, turn.action, turn.commands) for turn in turns]
    following = [*(turn.observation for turn in turns), shown]
    if then != known[: taken.turn] or following[taken.turn] != taken.observation:
        raise UsageError(
            "the snapshot is not of this episode as it stands: its turns are others; begin another episode with "
            "start_from"
        )


async def _close(envs: Sequence[AsyncTerminalGymEnv]) -> None:
    async with task_group() as group:
        for env in envs:
            group.create_task(env.close())
