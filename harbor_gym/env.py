"""The environment: order of calls, budgets, outcomes. Terminal and trial are other rooms' work."""

import asyncio
import contextlib
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from harbor_gym.config import TerminalEnvConfig
from harbor_gym.episode.grading.account import RewardAccount, step_share
from harbor_gym.episode.grading.rewards import reward_function
from harbor_gym.episode.guarded_turn import PATIENCE_SEC, longest_wait_sec, take_turn
from harbor_gym.episode.prepared import PreparedEpisode, open_phase_terminal
from harbor_gym.episode.trajectory import Trajectory
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.formats import parse_action, prompts
from harbor_gym.formats.parsed import ParsedAction
from harbor_gym.pool import WarmPool
from harbor_gym.sandboxes import image_substitutions, shares_setup
from harbor_gym.terminal import Screen, Terminal, TerminalTurn
from harbor_gym.terminal.recording import CastRecorder
from harbor_gym.types import Command, EndReason, EpisodeInfo, StepResult

if TYPE_CHECKING:
    from harbor_gym.episode import AgentPhase, Episode
    from harbor_gym.episode.side_command import SideResult

Action = str | Sequence[Command | tuple[str, float]]
"""Commands (keystrokes, duration in seconds), or the text of one message in the configuration's ``action_format``."""


_POLICYS_END = (EndReason.COMPLETED, EndReason.NO_TOOL_CALL)


class _State(StrEnum):
    IDLE = "not reset"
    STARTING = "starting"
    READY = "ready"
    STEPPING = "in a step"
    DONE = "done"
    FAILED = "failed"
    CLOSED = "closed"


class AsyncTerminalGymEnv:
    """A terminal in a Harbor sandbox as a reinforcement-learning environment.

    One instance runs one episode at a time and any number in a row. Reward is 0.0 until the episode is done, then the
    task verifier's; ``TerminalEnvConfig.step_rewards`` pays the steps of a multi-step task as they end. A failure of
    the infrastructure raises; it never becomes a reward.

    Args:
        config: The task, the sandbox and the budgets.
        pool: Take sandboxes from this pool, which its maker closes. None starts one at each ``reset``.

    Example::

        async with AsyncTerminalGymEnv(TerminalEnvConfig(task_dir="tasks/devops_task", sandbox="local")) as env:
            observation, info = await env.reset()
            observation, reward, done, info = await env.step([("ls -la\\n", 1.0)])
    """

    def __init__(self, config: TerminalEnvConfig, *, pool: WarmPool | None = None) -> None:
        if pool is not None:
            pool.require_fit(config)
        self.config = config
        self._choose_reward = reward_function(config.reward_key, config.reward_function)
        self._reward_account = RewardAccount(self._choose_reward)
        self._step_rewards: list[dict[str, float]] = []
        self._pool = pool
        self._prepared: PreparedEpisode | None = None
        self._state = _State.IDLE
        self._episode: Episode | None = None
        self._terminal: Terminal | None = None
        self._phase: AgentPhase | None = None
        self._turn = 0
        self._parse_failures = 0
        self._confirmation_pending = False
        self._terminal_sec = 0.0
        self._time_limit_sec: float | None = None
        self._limited_from_sec = 0.0
        self._recorder: CastRecorder | None = None
        self._trajectory: Trajectory | None = None
        self._started = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.screen: Screen | None = None
        """The screen after the last turn, where the configuration sets ``capture_screen``; it outlives the episode."""

    @property
    def remaining(self) -> tuple[float, float]:
        """What is left of the turns and of the terminal time, as fractions in [0, 1]; 1 where there is no limit."""
        limits = (self.config.max_turns, self._time_limit_sec)
        spent = (self._turn, self._terminal_sec - self._limited_from_sec)
        turns, seconds = (1.0 if n is None else max(0.0, 1 - used / n) for n, used in zip(limits, spent, strict=True))
        return turns, seconds

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, EpisodeInfo]:
        """Start a fresh sandbox and return its terminal.

        A previous episode is closed first, whatever its state.

        Args:
            seed: Accepted for Gymnasium's sake. A sandbox has no seed: tasks that vary do so by themselves.
            options: Accepted for Gymnasium's sake; none are known, so anything but None or empty is refused.

        Returns:
            The terminal's text, and ``info`` with the task's ``instruction``.

        Raises:
            TaskError: The task directory is missing something, is malformed, or can't run on this sandbox.
            MissingDependencyError: The sandbox type needs a program, a package or a key that isn't there.
            SandboxError: The sandbox could not be built or started.
            TerminalStartError: The sandbox has no usable shell or tmux.
        """
        if options:
            raise UsageError(f"reset knows no options, got {', '.join(sorted(options))}")
        self._require(_State.IDLE, _State.READY, _State.DONE, _State.FAILED, doing="reset")
        self._require_loop(doing="reset")
        self._state = _State.STARTING
        try:
            await self._release()
            self._loop = asyncio.get_running_loop()
            observation, info = await self._start()
        except BaseException:
            await self._fail()
            raise
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
        """
        parsed = parse_action(action, format=self.config.action_format)
        return await self._transition("step", lambda: self._step(parsed, action if isinstance(action, str) else ""))

    async def exec(self, command: str, *, timeout_sec: float) -> "SideResult":
        """Run shell text in the sandbox as the policy's user, beside its terminal.

        For adapters whose tools are no keystrokes. It is no turn and no recording has it; its time counts for the
        episode's time limit, which the next ``step`` enforces.

        Args:
            command: Text for a shell, up to 128 KiB.
            timeout_sec: Longest run in seconds; what does not end by then has no ``return_code``.

        Raises:
            UsageError: There is no running episode.
            SandboxError: The infrastructure failed, as for ``step``.
        """
        from harbor_gym.episode.side_command import run_side_command

        self._require(_State.READY, doing="exec")
        assert self._phase is not None
        self._state = _State.STEPPING
        try:
            result = await run_side_command(self._phase, command, timeout_sec=timeout_sec)
        except BaseException as exc:
            await self._explain(exc)
            await self._fail()
            raise
        self._terminal_sec += result.duration_sec
        self._become(_State.READY)
        return result

    async def close(self) -> None:
        """Stop the sandbox and remove everything that was not asked to be kept. Idempotent, at any time.

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
        if getattr(self, "_episode", None) is not None:
            warnings.warn(f"{self!r} was never closed: its sandbox may still run", ResourceWarning, stacklevel=1)

    # -- one episode ---------------------------------------------------------------------------------------------

    async def _start(self) -> tuple[str, EpisodeInfo]:
        prepared, metrics = await self._prepare()
        self._turn = self._parse_failures = 0
        self._terminal_sec = 0.0
        share = step_share(prepared.task) if self.config.step_rewards else 0.0
        self._reward_account = RewardAccount(self._choose_reward, self.config.zero_reward_on_limit, share)
        self._step_rewards = []
        self._limit_time(prepared.phase)
        self._started = time.monotonic()
        if (path := self._recording_path(prepared.episode)) is not None:
            await asyncio.to_thread(self._start_recording, path, prepared.task.name)
        if self.config.trials_dir is not None:
            self._trajectory = Trajectory(sandbox=self.config.sandbox, action_format=self.config.action_format)
        turn = await prepared.look()
        self._prepared, self._episode, self._terminal = None, prepared.episode, prepared.terminal
        await self._look(prepared.terminal)
        info = self._show(prepared.phase, turn)
        info["task"] = prepared.task.name
        if self.config.setup_command is not None:
            is_shared = shares_setup(self.config.sandbox, prepared.phase.environment)
            info["setup"] = "shared" if is_shared else "each_start"
        info["metrics"] |= {"time/sandbox_start_sec": prepared.episode.sandbox_start_sec, **metrics}
        info["metrics"]["time/terminal_open_sec"] = prepared.terminal_open_sec
        return turn.text, info

    async def _prepare(self) -> tuple[PreparedEpisode, dict[str, float]]:
        """Return an episode with its terminal open, and metrics of where it came from."""
        if self._pool is None:
            # Known here before it starts, so that a close() meanwhile can stop it.
            prepared = self._prepared = PreparedEpisode(self.config)
            await prepared.prepare()
            return prepared, {}
        lease = await self._pool.lease()
        self._prepared = lease.prepared
        if self._state is _State.CLOSED:
            raise UsageError("the environment was closed while it waited for a sandbox")
        return lease.prepared, {"pool/hit": float(lease.hit), "pool/wait_sec": lease.wait_sec}

    async def _open_phase(self, phase: "AgentPhase") -> tuple[str, EpisodeInfo]:
        """Open a terminal in the phase's sandbox; return its screen."""
        started = time.monotonic()
        self._limit_time(phase)
        self._terminal = await open_phase_terminal(phase, self.config)
        turn = await self._terminal.run([])
        await self._look(self._terminal)
        info = self._show(phase, turn)
        info["metrics"]["time/terminal_open_sec"] = time.monotonic() - started
        return turn.text, info

    def _show(self, phase: "AgentPhase", turn: TerminalTurn) -> EpisodeInfo:
        self._phase, self._confirmation_pending = phase, False
        self._record("", turn)
        if self._trajectory is not None:
            self._trajectory.open_phase(phase.instruction, turn.text)
        info = EpisodeInfo(
            instruction=phase.instruction,
            sandbox=self.config.sandbox,
            image_substitutions=image_substitutions(phase.environment),
            turn=self._turn,
            transport=turn.transport,
            metrics={},
        )
        if phase.resources.skills_dir is not None:
            info["skills_dir"] = phase.resources.skills_dir
        if phase.resources.mcp_servers:
            info["mcp_servers"] = tuple(server.model_dump() for server in phase.resources.mcp_servers)
        return info

    async def _step(self, parsed: ParsedAction, message: str) -> StepResult:
        assert self._terminal is not None
        language = self.config.action_format
        self._turn += 1
        info = EpisodeInfo(turn=self._turn, parse_error=parsed.error, metrics={})
        if parsed.error is not None:
            self._parse_failures += 1
            observation = prompts.parse_error(parsed.error, parsed.warning, language)
            reason = self._parse_failures_exhausted()
        else:
            self._parse_failures = 0
            turn = await self._take_turn(self._terminal, parsed.commands)
            self._account(turn, info)
            self._record("".join(command.keystrokes for command in parsed.commands), turn)
            observation, reason = turn.text, EndReason.SESSION_ENDED if turn.ended else None
            if parsed.task_complete:
                reason = self._declared_complete() or reason
                if reason is None:
                    observation = prompts.confirmation_request(observation, language)
            else:
                self._confirmation_pending = False
                observation = prompts.with_warning(parsed.warning, observation)
        info["confirmation_pending"] = self._confirmation_pending
        if self._trajectory is not None:
            self._trajectory.turn(message, parsed.commands, observation, info)
        reason = reason or self._exhausted_budget()
        if reason is None:
            return StepResult(observation, 0.0, False, info)
        # The task's own limit is each step's, and Harbor goes on to the next one; ours is the episode's.
        is_the_steps = reason is EndReason.TIME_LIMIT and self.config.time_limit_sec is None
        is_last = reason is not EndReason.COMPLETED and not is_the_steps
        return await self._end_phase(reason, observation, info, is_last=is_last)

    async def _take_turn(self, terminal: Terminal, commands: Sequence[Command]) -> TerminalTurn:
        episode, config = self._episode, self.config.terminal
        assert episode is not None
        turn = await take_turn(
            terminal,
            commands,
            late_sec=longest_wait_sec(commands, config) + PATIENCE_SEC,
            find_breakage=lambda nonsense: episode.find_breakage(terminal.leavings, answers_nonsense=nonsense),
        )
        if not turn.ended:
            await self._look(terminal)
        return turn

    async def truncate(self, reason: EndReason) -> StepResult:
        """End the episode for a reason that only the caller sees, and have it verified.

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
        """End the policy's work because the caller's loop saw it end, and have it verified.

        For adapters of frameworks that own the loop: the policy stopped calling tools, or called one of the
        framework's that ends the episode. No confirmation is asked for. In a multi-step task the next step opens, as
        after ``task_complete``.

        Args:
            reason: ``COMPLETED`` or ``NO_TOOL_CALL``.

        Returns:
            As ``step``; the observation is empty unless a next step opened.

        Raises:
            UsageError: There is no running episode, or the reason isn't one of the policy's.
            SandboxError, TerminalError, VerifierError: As for ``step``.
        """
        if reason not in _POLICYS_END:
            raise UsageError(
                f"{reason.value} is no end that a policy brings about; finish takes completed, no_tool_call"
            )
        return await self._end(reason, is_last=False, doing="finish")

    async def _end(self, reason: EndReason, *, is_last: bool, doing: str) -> StepResult:
        info = EpisodeInfo(turn=self._turn, metrics={})
        return await self._transition(doing, lambda: self._end_phase(reason, "", info, is_last=is_last))

    async def _transition(self, doing: str, work: Callable[[], Awaitable[StepResult]]) -> StepResult:
        """Run one transition of a running episode; where it fails, the episode is over."""
        self._require(_State.READY, doing=doing)
        self._require_loop(doing=doing)
        self._state = _State.STEPPING
        try:
            result = await work()
        except BaseException as exc:
            await self._explain(exc)
            await self._fail()
            raise
        self._become(_State.DONE if result.done else _State.READY)
        return result

    async def _end_phase(self, reason: EndReason, observation: str, info: EpisodeInfo, *, is_last: bool) -> StepResult:
        """Run the verifier on what the policy left; continue with a multi-step task's next step if there is one."""
        assert self._episode is not None
        keep, leavings = self._keeps_processes(self._episode), None
        if self._terminal is not None:
            await self._terminal.detach()
            leavings = self._terminal.leavings
        end = await self._episode.end_phase(keep_processes=keep, is_last=is_last, terminal=leavings)
        if end.verifier is not None:
            info["verifier_output"], info["verifier_files"] = end.verifier.output, dict(end.verifier.files)
        info["metrics"]["time/verifier_sec"] = end.verifier_sec
        info["metrics"]["stopped_processes"] = end.stopped_processes
        if end.oom_kills is not None:
            info["metrics"]["oom_kills"] = end.oom_kills
        if self._episode.step_names:
            self._step_rewards.append(dict(end.rewards))
            info["step_rewards"] = tuple(self._step_rewards)
        if end.next_phase is not None:
            pay = self._reward_account.pay_step(end.rewards)
            screen, entered = await self._open_phase(end.next_phase)
            entered["metrics"] = {**info["metrics"], **entered["metrics"]}
            merged: EpisodeInfo = {**info, **entered}
            return StepResult(prompts.next_step(end.next_phase.instruction, screen), pay, False, merged)
        if end.breakage is not None:
            reason, info["breakage"] = EndReason.SANDBOX_BROKEN, end.breakage
        elif end.is_gated and reason in _POLICYS_END:
            reason = EndReason.STEP_GATE
        info["rewards"] = dict(end.episode_rewards)
        info["episode_reward"] = reward = self._reward_account.settle(end.episode_rewards, reason)
        if self._reward_account.is_capped(reason):
            info["metrics"]["zero_reward_on_limit"] = 1.0
        await self._conclude(reason, info)
        return StepResult(observation, reward - self._reward_account.paid, True, info)

    async def _conclude(self, reason: EndReason, info: EpisodeInfo) -> None:
        assert self._episode is not None
        info["end_reason"] = reason
        info["truncated"] = reason.is_truncation
        info["missing_protections"] = self._episode.missing_protections
        info["trial_dir"] = self._episode.trial_dir if self.config.trials_dir is not None else None
        info["metrics"]["time/terminal_sec"] = self._terminal_sec
        trajectory, self._trajectory = self._trajectory, None
        if trajectory is not None and info["trial_dir"] is not None:
            await asyncio.to_thread(trajectory.write, info["trial_dir"], info, self._episode.step_names)
        await self._release()

    def _keeps_processes(self, episode: "Episode") -> bool:
        keep = self.config.keep_agent_processes
        return episode.task_keeps_processes if keep is None else keep

    async def _explain(self, error: BaseException) -> None:
        """Put what the trial has left on an infrastructure failure, while it is still there."""
        if isinstance(error, HarborGymError) and error.is_infrastructure and self._episode is not None:
            await self._episode.explain(error)

    def _recording_path(self, episode: "Episode") -> Path | None:
        # Not into the trial's agent folder: a sandbox may mount that, and the policy could turn the file into a link.
        kept = episode.trial_dir / "recording.cast" if self.config.trials_dir and episode.trial_dir else None
        return self.config.recording_path or kept

    def _start_recording(self, path: Path, task_name: str) -> None:
        terminal = self.config.terminal
        self._recorder = CastRecorder(path, columns=terminal.columns, rows=terminal.rows, title=task_name)

    def _record(self, keystrokes: str, turn: TerminalTurn) -> None:
        if self._recorder is not None:
            at_sec = time.monotonic() - self._started
            self._recorder.turn(self._turn, keystrokes, turn.text, at_sec, shown=turn.shown)

    # -- small decisions -----------------------------------------------------------------------------------------

    async def _look(self, terminal: Terminal) -> None:
        if self.config.capture_screen:
            self.screen = await terminal.screen() or self.screen

    def _account(self, turn: TerminalTurn, info: EpisodeInfo) -> None:
        self._terminal_sec += turn.duration_sec
        info["exit_code"] = turn.exit_code
        info["waits"] = turn.waits
        info["transport"] = turn.transport
        info["omitted_bytes"] = turn.omitted_bytes
        info["metrics"]["time/step_sec"] = turn.duration_sec

    def _declared_complete(self) -> EndReason | None:
        """Take note of ``task_complete``: the first asks for confirmation, the second in a row ends."""
        if self._confirmation_pending or not self.config.confirm_task_complete:
            self._confirmation_pending = False
            return EndReason.COMPLETED
        self._confirmation_pending = True
        return None

    def _parse_failures_exhausted(self) -> EndReason | None:
        limit = self.config.max_consecutive_parse_failures
        return EndReason.PARSE_FAILURES if limit is not None and self._parse_failures >= limit else None

    def _limit_time(self, phase: "AgentPhase") -> None:
        own = self.config.time_limit_sec
        self._time_limit_sec = phase.timeout_sec if own is None else own
        self._limited_from_sec = self._terminal_sec if own is None else 0.0

    def _exhausted_budget(self) -> EndReason | None:
        if self.config.max_turns is not None and self._turn >= self.config.max_turns:
            return EndReason.MAX_TURNS
        spent_sec = self._terminal_sec - self._limited_from_sec
        if self._time_limit_sec is not None and spent_sec >= self._time_limit_sec:
            return EndReason.TIME_LIMIT
        return None

    # -- life cycle ----------------------------------------------------------------------------------------------

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
        ended = ", which has ended and the episode with it" if loop.is_closed() else ""
        raise UsageError(
            f"{doing} was called on another event loop than reset{ended}. Each asyncio.run makes a loop of its own: "
            'run the whole episode inside one, or use gym.make("HarborTerminal-v0"), which needs none'
        )

    def _become(self, state: _State) -> None:
        # close() may have come in from another task meanwhile, and it has the last word.
        if self._state is not _State.CLOSED:
            self._state = state

    async def _fail(self) -> None:
        self._become(_State.FAILED)
        try:
            await self._release()
        except HarborGymError as exc:
            # The first failure is the one to report; a failed release is a warning beside it.
            warnings.warn(f"after a failed episode: {exc}", ResourceWarning, stacklevel=2)

    async def _release(self) -> None:
        episode, self._episode = self._episode, None
        terminal, self._terminal, self._phase = self._terminal, None, None
        prepared, self._prepared = self._prepared, None
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()
        try:
            # A closed loop has taken the terminal's channel with it, and cancelled the trial, which stops its sandbox.
            if terminal is not None and not (self._loop is not None and self._loop.is_closed()):
                # Its channel is a process of this machine. What it runs in the sandbox ends with that in any case.
                with contextlib.suppress(HarborGymError):
                    await terminal.detach()
        finally:
            if episode is not None:
                await episode.close()
            if prepared is not None:
                await prepared.close()
