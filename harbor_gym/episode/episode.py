"""Harbor's Trial turned inside out: the caller is the agent."""

import asyncio
import contextvars
import shutil
import tempfile
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.models.task.task import Task
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import ExceptionInfo, StepResult, TimingInfo, TrialResult
from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.trial import Trial
from pydantic import ValidationError

from harbor_gym.cancellation import uninterrupted
from harbor_gym.episode import agent, failures
from harbor_gym.episode.task import grades_in_shared_sandbox
from harbor_gym.errors import (
    SandboxLostError,
    SandboxStartError,
    SandboxTimeoutError,
    TaskError,
    UsageError,
    VerifierError,
)
from harbor_gym.owners import temporary_prefix

# Harbor's agent timeout would count the policy's thinking time; our budgets end episodes instead.
_NO_AGENT_TIMEOUT_SEC = 10.0 * 365 * 24 * 3600


@dataclass(frozen=True)
class AgentPhase:
    """The policy's turn: a sandbox that is up, and what to do in it."""

    instruction: str
    """The task's instruction, or the current step's in a multi-step task."""

    environment: BaseEnvironment
    """The running sandbox. It belongs to the trial: never stop it from here."""

    user: str | int | None
    """The user that the task wants the policy to be; None is the image's own."""

    context: contextvars.Context = field(repr=False)
    """The trial's context. Run sandbox calls of this phase in it: Harbor scopes agent settings by it."""

    done: asyncio.Future[None] = field(repr=False)
    """Resolved by the episode when the phase is over."""


@dataclass(frozen=True)
class PhaseEnd:
    """What the verifier said about the phase that just ended."""

    rewards: Mapping[str, float]
    """Every key that the verifier wrote."""

    next_phase: AgentPhase | None
    """The next step of a multi-step task, or None at the end of the episode."""

    verifier_sec: float
    """Seconds spent verifying."""

    episode_rewards: Mapping[str, float]
    """At the end of the episode: the task's rewards, for a multi-step task combined by its own strategy."""


class Episode:
    """One Harbor trial, driven from outside: :meth:`start`, act in the sandbox, :meth:`end_phase`, :meth:`close`.

    Args:
        task: A task, as :func:`harbor_gym.episode.task.load_task` read it.
        environment: Harbor's configuration of the sandbox.
        trials_dir: Keep the trial's folder here; None uses a temporary one that ``close`` removes.
        stop_timeout_sec: Seconds that ``close`` waits for Harbor to stop the sandbox.
    """

    def __init__(
        self, task: Task, environment: EnvironmentConfig, *, trials_dir: Path | None, stop_timeout_sec: float
    ) -> None:
        self._task = task
        self._environment_config = environment
        self._trials_dir = trials_dir
        self._stop_timeout_sec = stop_timeout_sec
        self._temporary_dir: Path | None = None
        self._trial: Trial | None = None
        self._run: asyncio.Task[TrialResult] | None = None
        self._phases: asyncio.Queue[AgentPhase] = asyncio.Queue()
        self._phase: AgentPhase | None = None
        self._phases_ended = 0
        self._closing: asyncio.Task[None] | None = None
        self._start_error: BaseException | None = None

    @property
    def trial_dir(self) -> Path | None:
        """The trial's folder, once started; it survives ``close`` only under a ``trials_dir``."""
        return self._trial.paths.trial_dir if self._trial is not None else None

    @property
    def sandbox_start_sec(self) -> float:
        """Seconds that building and starting the sandbox took."""
        return _seconds(self._trial.result.environment_setup) if self._trial is not None else 0.0

    @property
    def is_closed(self) -> bool:
        """Whether nothing of the episode is left, or will be as soon as the running ``close`` is done."""
        return self._closing is not None

    async def start(self) -> AgentPhase:
        """Start the trial and return when its sandbox is ready for the policy.

        Raises:
            TaskError: The configuration asks for something that the sandbox type can't do.
            SandboxThrottledError: The sandbox's provider wants fewer or later starts.
            SandboxStartError: The sandbox could not be built or started.
            SandboxTimeoutError: It did not start in the time that the task allows.
        """
        if self._trial is not None:
            raise UsageError("this episode was started before; make a new one")
        key = uuid.uuid4().hex
        forget = agent.register(key, self)
        try:
            self._trial = await self._create_trial(key)
        finally:
            forget()
        self._check_open()
        self._trial.add_hook(TrialEvent.VERIFICATION_START, self._discard_planted_verdict)
        self._keep_start_error(self._trial.agent_environment)
        self._run = asyncio.create_task(self._trial.run(), name=f"harbor-trial-{self._trial.config.trial_name}")
        phase = await self._next_phase()
        if phase is None:
            raise failures.start_failure(self._finished_result(self._run), self._start_error) from self._start_error
        return phase

    async def end_phase(self) -> PhaseEnd:
        """End the policy's phase, let Harbor verify it, and return the verdict.

        Raises:
            VerifierError: There is no verdict: the verifier crashed, timed out or wrote no usable reward.
            SandboxLostError: The trial had already ended by itself.
        """
        if self._phase is None or self._run is None:
            raise UsageError("no agent phase is running")
        if self._run.done():
            raise failures.lost(self._finished_result(self._run))
        self._phase.done.set_result(None)
        self._phase = None
        next_phase = await self._next_phase()
        self._phases_ended += 1
        if next_phase is None:
            self._finished_result(self._run)
        return self._verdict(next_phase)

    def enter(
        self, instruction: str, environment: BaseEnvironment, context: contextvars.Context
    ) -> asyncio.Future[None]:
        """Take over an agent phase (called by the trial's agent)."""
        done = asyncio.get_running_loop().create_future()
        self._phases.put_nowait(AgentPhase(instruction, environment, environment.default_user, context, done))
        return done

    async def close(self) -> None:
        """Stop the trial, whatever it is doing, and remove what was not asked to be kept.

        Idempotent, and safe at any time. A cancellation is honoured only after the sandbox is down.

        Raises:
            SandboxTimeoutError: Harbor did not stop the sandbox within ``stop_timeout_sec``.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="harbor-gym-close")
        await uninterrupted(self._closing)

    async def _create_trial(self, key: str) -> Trial:
        config = TrialConfig(
            task=TaskConfig(path=self._task.task_dir),
            trials_dir=await self._ensure_trials_dir(),
            agent=AgentConfig(
                import_path=agent.IMPORT_PATH, kwargs={"stage": key}, override_timeout_sec=_NO_AGENT_TIMEOUT_SEC
            ),
            environment=self._environment_config,
        )
        try:
            return await Trial.create(config)
        except ValidationError as exc:
            raise TaskError(f"task {self._task.name!r} can't run on this sandbox: {exc}") from exc
        except (ValueError, NotImplementedError, ImportError) as exc:
            raise TaskError(f"task {self._task.name!r} can't run on this sandbox: {exc}") from exc
        except (OSError, RuntimeError) as exc:
            raise SandboxStartError(f"the sandbox of task {self._task.name!r} can't be set up: {exc}") from exc

    def _keep_start_error(self, environment: BaseEnvironment) -> None:
        """Keep the object that starting raises: Harbor's result has its name and text, not what hangs on it."""
        start = environment.start

        async def kept(force_build: bool) -> None:
            try:
                await start(force_build)
            except BaseException as exc:
                self._start_error = exc
                raise

        environment.start = kept

    async def _ensure_trials_dir(self) -> Path:
        if self._trials_dir is not None:
            return self._trials_dir
        self._temporary_dir = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=temporary_prefix("trial")))
        return self._temporary_dir

    async def _next_phase(self) -> AgentPhase | None:
        """Wait for the next agent phase, or for the end of the trial (None)."""
        assert self._run is not None
        arrival = asyncio.ensure_future(self._phases.get())
        try:
            await asyncio.wait((arrival, self._run), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not arrival.done():
                arrival.cancel()
        self._phase = arrival.result() if arrival.done() and not arrival.cancelled() else None
        return self._phase

    def _check_open(self) -> None:
        if self._closing is not None:
            raise UsageError("the episode was closed while it was in use")

    def _finished_result(self, run: asyncio.Task[TrialResult]) -> TrialResult:
        """Return what the ended trial left, or raise why it left nothing."""
        self._check_open()
        if run.cancelled():
            raise SandboxLostError(f"the trial of task {self._task.name!r} was cancelled from outside")
        if (error := run.exception()) is not None:
            raise SandboxLostError(f"the trial of task {self._task.name!r} broke off: {error}") from error
        return run.result()

    def _verdict(self, next_phase: AgentPhase | None) -> PhaseEnd:
        assert self._trial is not None
        result = self._trial.result
        graded: StepResult | TrialResult = result
        if result.step_results:
            graded = result.step_results[self._phases_ended - 1]
        rewards = graded.verifier_result.rewards if graded.verifier_result is not None else None
        if rewards is None:
            raise failures.grading_failure(result, _cause(graded, result))
        combined = result.verifier_result.rewards if result.verifier_result is not None else None
        return PhaseEnd(
            rewards=_floats(rewards),
            next_phase=next_phase,
            verifier_sec=_seconds(graded.verifier),
            episode_rewards=_floats(combined or {}),
        )

    async def _discard_planted_verdict(self, event: TrialHookEvent) -> None:
        """Empty the verifier's directories, so that nothing the policy wrote there can be taken for a verdict."""
        assert self._trial is not None
        if self._task.has_steps or not grades_in_shared_sandbox(self._task):
            return  # Harbor empties them itself in these modes
        environment, paths = self._trial.agent_environment, self._trial.agent_env_paths
        async with asyncio.TaskGroup() as group:
            emptied = [
                group.create_task(environment.empty_dirs([paths.verifier_dir], chmod=True)),
                group.create_task(environment.empty_dirs([paths.tests_dir], chmod=False)),
            ]
        for task in emptied:
            outcome = task.result()
            if outcome is not None and outcome.return_code != 0:
                output = outcome.stderr or outcome.stdout
                raise VerifierError(f"the verifier's directories could not be emptied before grading: {output}")

    async def _close(self) -> None:
        try:
            if self._run is not None:
                await self._stop(self._run)
        finally:
            if self._temporary_dir is not None:
                await asyncio.to_thread(shutil.rmtree, self._temporary_dir, ignore_errors=True)

    async def _stop(self, run: asyncio.Task[TrialResult]) -> None:
        if not run.cancelling():
            # A second cancellation would cut Harbor's clean-up short: the end of the loop may have sent the first.
            run.cancel()
        await asyncio.wait((run,), timeout=self._stop_timeout_sec)
        if not run.done():
            raise SandboxTimeoutError(
                f"the sandbox of task {self._task.name!r} did not stop within {self._stop_timeout_sec:g} s; "
                "look for what is left with the sandbox's own tools (for Docker: docker ps)"
            )
        if not run.cancelled():
            run.exception()  # retrieved: whatever ended the trial was reported to the one who waited for it
        # Harbor notes down that a sandbox could not be removed, and goes on.
        if self._trial is not None and (left := getattr(self._trial.agent_environment, "left_behind", None)):
            raise SandboxTimeoutError(left)


async def run_in_phase[T](phase: AgentPhase, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in the context of the trial's agent phase, where Harbor's per-agent settings apply.

    Args:
        phase: The phase that is running.
        work: A coroutine that uses the phase's environment.
    """
    task = asyncio.get_running_loop().create_task(work, context=phase.context.copy())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        raise


def _cause(graded: StepResult | TrialResult, result: TrialResult) -> ExceptionInfo | None:
    return graded.exception_info or result.exception_info


def _floats(rewards: Mapping[str, float | int]) -> dict[str, float]:
    return {name: float(value) for name, value in rewards.items()}


def _seconds(timing: TimingInfo | None) -> float:
    if timing is None or timing.started_at is None:
        return 0.0
    end = timing.finished_at or datetime.now(timing.started_at.tzinfo)
    return (end - timing.started_at).total_seconds()
