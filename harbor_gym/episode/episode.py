"""Harbor's Trial with inverted control: the caller acts as the agent."""

import asyncio
import contextvars
import os
import shutil
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.models.task.task import Task
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig, VerifierConfig
from harbor.models.trial.result import StepResult, TimingInfo, TrialResult
from harbor.trial.trial import Trial
from pydantic import ValidationError

from harbor_gym._runtime.disks import describe_disk_failure
from harbor_gym._runtime.imports import import_named
from harbor_gym._runtime.loggers import forget_loggers
from harbor_gym._runtime.owners import temporary_prefix
from harbor_gym._runtime.portal import current_portal
from harbor_gym._runtime.shielded import cancel_and_wait, shielded
from harbor_gym.config import AmbiguousFailures
from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.episode import _harbor_patches, agent, failures
from harbor_gym.episode.diagnostics import VerifierReport, read_diagnostics, read_services, read_verifier
from harbor_gym.episode.grading.breakage import LATE_PROBE_SEC, find_breakage
from harbor_gym.episode.grading.guard import BeforeGrading, GradingGuard, current_step
from harbor_gym.episode.grading.rewards import RewardFunction
from harbor_gym.episode.grading.untouched import UntouchedVerdict
from harbor_gym.episode.grading.verifiers import require_separate_verifiers
from harbor_gym.episode.reported import reported
from harbor_gym.episode.resources import Resources
from harbor_gym.episode.stops import turn_to_stop
from harbor_gym.episode.task import phase_timeout_sec, require_variables
from harbor_gym.errors import (
    HarborGymError,
    SandboxError,
    SandboxLostError,
    SandboxStartError,
    SandboxTimeoutError,
    TaskUnsupportedError,
    UsageError,
    VerifierError,
)
from harbor_gym.sandboxes.extensions import ReportsLeftBehind, SupportsProcessCopies
from harbor_gym.terminal.session import Leftovers

# Harbor's agent timeout would count the policy's thinking time; our budgets end episodes instead.
_NO_AGENT_TIMEOUT_SEC = 10.0 * 365 * 24 * 3600


@dataclass(frozen=True)
class AgentPhase:
    """An agent phase of the trial: a running sandbox, and the policy's instruction."""

    instruction: str
    """The task's instruction, or in a multi-step task the current step's, with the lists of :attr:`resources`."""

    environment: BaseEnvironment
    """The running sandbox. It belongs to the trial: never stop it from here."""

    user: str | int | None
    """The user that the task requires the policy to be; None is the image's own."""

    timeout_sec: float | None
    """Seconds that the task, or the step, gives the policy; None is no limit. Harbor is kept from counting them."""

    context: contextvars.Context = field(repr=False)
    """The trial's context. Run sandbox calls of this phase in it: Harbor scopes agent settings by it."""

    done: asyncio.Future[None] = field(repr=False)
    """Resolved by the episode when the phase is over."""

    resources: Resources
    """Skills and MCP servers that the task declares; the instruction lists them already."""


@dataclass(frozen=True)
class StoredDump:
    """A sandbox's dump in another process's file. The holder must close it."""

    record: Any
    """All of it but its processes and files, as JSON values."""

    packed: int
    """A descriptor of the file, whose offset is at the beginning of those."""

    def close(self) -> None:
        """Close the file."""
        os.close(self.packed)


@dataclass(frozen=True)
class DumpedPhase:
    """The first phase of an episode at one moment, from which copies begin. The holder must close it."""

    instruction: str
    resources: Resources
    before: BeforeGrading
    dump: Any
    """The sandbox's."""

    def close(self) -> None:
        """Free the dump. Copies that were restored go on."""
        self.dump.close()


@dataclass(frozen=True)
class PhaseEnd:
    """The verifier's result for the phase that just ended."""

    rewards: Mapping[str, float]
    """Every key of the verifier's rewards."""

    next_phase: AgentPhase | None
    """The next step of a multi-step task, or None at the end of the episode."""

    verifier_sec: float
    """Seconds spent verifying."""

    episode_rewards: Mapping[str, float]
    """At the end of the episode: the task's rewards, for a multi-step task combined by its own strategy."""

    stopped_processes: int
    """Processes of the policy that still ran and were killed before grading."""

    stopped_names: tuple[str, ...]
    """The names of some of them."""

    oom_kills: int | None
    """Processes that the sandbox's memory limit killed during the phase; None where the sandbox doesn't report it."""

    is_gated: bool
    """Whether the task has further steps that this one's reward keeps closed (``min_reward``)."""

    breakage: str | None = None
    """How the policy broke the sandbox, so that there is no verdict, which counts as 0."""

    verifier: VerifierReport | None = None
    """The verifier's output and files; None where it left no files."""

    unplayed: tuple[Mapping[str, float], ...] = ()
    """Rewards of further steps that were opened and ended without an action of the policy."""


class Episode:
    """One Harbor trial, driven from outside: :meth:`start`, act in the sandbox, :meth:`end_phase`, :meth:`close`.

    Args:
        task: A task, as :func:`harbor_gym.episode.task.load_task` read it.
        environment: Harbor's configuration of the sandbox.
        trials_dir: Keep the trial's folder here; None uses a temporary one that ``close`` removes.
        stop_timeout_sec: Seconds that ``close`` waits for Harbor to stop the sandbox.
        verifier: Harbor's settings of a run's verifier (its ``VerifierConfig``); None are Harbor's defaults.
        verify_paths: As ``TerminalEnvConfig.verify_paths``.
        ambiguous_failures: As ``TerminalEnvConfig.ambiguous_failures``.
        choose: Makes the reward of the verifier's; where it can make none, the policy may have written them.
        copied: Begin as a copy: what is before the policy was done, and seen, in the episode that was dumped.

    Raises:
        UsageError: A verifier's setting is unknown or would disable it, or its class can't be imported.
    """

    def __init__(
        self,
        task: Task,
        environment: EnvironmentConfig,
        *,
        trials_dir: Path | None,
        stop_timeout_sec: float,
        verifier: Mapping[str, Any] | None = None,
        verify_paths: VerifyPaths = "auto",
        ambiguous_failures: AmbiguousFailures = "zero",
        choose: RewardFunction | None = None,
        copied: DumpedPhase | None = None,
    ) -> None:
        self._task = task
        self._copied = copied
        self._environment_config = environment
        self._verifier_config = _verifier_config(verifier or {})
        self._verify_paths: VerifyPaths = verify_paths
        self._ambiguous_failures: AmbiguousFailures = ambiguous_failures
        self._choose = choose
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
        self._guard: GradingGuard | None = None

    @property
    def trial_dir(self) -> Path | None:
        """The trial's folder, once started; it survives ``close`` only under a ``trials_dir``."""
        return self._trial.paths.trial_dir if self._trial is not None else None

    @property
    def missing_protections(self) -> tuple[str, ...]:
        """The protections that the started sandbox can't give to the grading, one sentence each."""
        return self._guard.missing_protections if self._guard is not None else ()

    @property
    def step_names(self) -> list[str]:
        """The names of a multi-step task's steps, in order; none for another task."""
        return [step.name for step in self._task.config.steps or ()]

    @property
    def sandbox_start_sec(self) -> float:
        """Seconds that building and starting the sandbox took."""
        return _seconds(self._trial.result.environment_setup) if self._trial is not None else 0.0

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closing is not None

    async def start(self) -> AgentPhase:
        """Start the trial and return when its sandbox is ready for the policy.

        Raises:
            TaskError: The task or the configuration asks for something that the sandbox type can't do.
            SandboxThrottledError: The sandbox's provider requires fewer or later starts.
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
        if self._closing is not None:
            # Closed while the trial was made, which has made its folder again.
            self._remove_traces()
        self._check_open()
        self._guard = GradingGuard(
            self._trial,
            verify_paths=self._verify_paths,
            ambiguous_failures=self._ambiguous_failures,
            before=self._copied.before if self._copied is not None else None,
        )
        if self._copied is not None:
            sandbox, dump = _copyable(self._trial.agent_environment), self._copied.dump
            if isinstance(dump, StoredDump):
                dump = sandbox.stored_dump(dump.record, dump.packed)
                self._copied = replace(self._copied, dump=dump)
            sandbox.begin_as(dump)
            _harbor_patches.prepare_nothing(self._trial.agent_environment, lambda: self._copied is not None)
        _harbor_patches.note_start_error(self._trial.agent_environment, self._note_start_error)
        if (portal := current_portal()) is not None:
            portal.close_at_exit(self)
        self._run = asyncio.create_task(self._trial.run(), name=f"harbor-trial-{self._trial.config.trial_name}")
        phase = await self._next_phase()
        if phase is None:
            error = failures.start_failure(self._finished_result(self._run), self._start_error)
            raise await self.explain(error) from self._start_error
        return phase

    async def dump(self, find_root: Callable[[], Awaitable[int]]) -> DumpedPhase:
        """Dump the sandbox with the processes of the policy's terminal, which go on undisturbed.

        Args:
            find_root: Ends all else that this machine runs in the sandbox, and returns the id of the terminal's first
                process there.

        Raises:
            UsageError: The sandbox can't be copied, or this is a later step of a multi-step task.
            SandboxError: Its processes can't be dumped.
        """
        if self._phase is None or self._guard is None:
            raise UsageError("no agent phase is running")
        sandbox = _copyable(self._phase.environment)
        if self._phases_ended:
            raise UsageError('mode="exact" copies the first step of a multi-step task alone: use mode="replay"')
        dump = await sandbox.dump(await find_root())
        return DumpedPhase(self._phase.instruction, self._phase.resources, self._guard.before, dump)

    async def restore(self) -> None:
        """Bring back the processes of the phase that this episode is a copy of. Once, before anything else runs there.

        Raises:
            SandboxError: They can't be restored.
        """
        assert self._copied is not None
        assert self._trial is not None
        await _copyable(self._trial.agent_environment).restore(self._copied.dump)
        self._copied = None

    async def end_phase(
        self, *, keep_processes: bool | None = None, is_last: bool = False, terminal: Leftovers | None = None
    ) -> PhaseEnd:
        """End the policy's phase, let Harbor verify it, and return the verdict.

        Args:
            keep_processes: As :class:`harbor_gym.episode.grading.guard.GradingGuard`'s.
            is_last: End the episode here. Further steps of a multi-step task are opened and ended at once, and their
                rewards without an action count, as for an agent that has spent its budget.
            terminal: The processes and files that the policy's detached terminal left in the sandbox.

        Raises:
            VerifierError: There is no verdict: the verifier crashed, timed out or wrote no usable reward.
            SandboxStartError: A multi-step task's next step could not be set up.
            SandboxLostError: The trial had already ended by itself, or its sandbox is gone.
        """
        if self._phase is None or self._run is None:
            raise UsageError("no agent phase is running")
        try:
            return await self._end_phase(
                self._phase, self._run, keep_processes=keep_processes, is_last=is_last, terminal=terminal
            )
        except HarborGymError as exc:
            raise await self.explain(exc) from exc.__cause__

    async def grade_untouched(self) -> UntouchedVerdict:
        """Grade the sandbox as it starts. The caller closes.

        Raises:
            HarborGymError: As :meth:`start`, or something other than the verifier failed.
        """
        await self.start()
        assert self._trial is not None
        try:
            end = await self.end_phase(is_last=True)
        except VerifierError:
            if not failures.is_of_verifier(self._trial.result):
                raise
            return UntouchedVerdict(None)
        if end.breakage is not None:
            raise SandboxError(end.breakage)
        return UntouchedVerdict(end.episode_rewards)

    async def service_output(self) -> dict[str, str]:
        """Return the end of what each service of the task's Compose file has printed so far, by name."""
        return {} if self.trial_dir is None else await asyncio.to_thread(read_services, self.trial_dir)

    async def explain[E: HarborGymError](self, error: E) -> E:
        """Attach the trial's diagnostics so far to an error, and return it.

        Args:
            error: An error of this episode. One that already has diagnostics is returned unchanged.
        """
        if error.diagnostics or self._trial is None:
            return error
        diagnostics = await asyncio.to_thread(read_diagnostics, self._trial.paths.trial_dir)
        if self._guard is not None and (postmortem := self._guard.postmortem) is not None and postmortem.output:
            diagnostics.setdefault("verifier_output", postmortem.output.strip())
        return error.attach(diagnostics, trial_dir=self.trial_dir if self._trials_dir is not None else None)

    async def _end_phase(
        self,
        phase: AgentPhase,
        run: asyncio.Task[TrialResult],
        *,
        keep_processes: bool | None,
        is_last: bool,
        terminal: Leftovers | None,
    ) -> PhaseEnd:
        assert self._trial is not None
        end = await self._graded(phase, run, keep_processes=keep_processes, terminal=terminal)
        steps = self._trial.task.config.steps
        step = steps[self._phases_ended - 1].name if steps else None
        with reported(f"the verifier's files of {self._trial.config.trial_name} can't be listed"):
            report = await asyncio.to_thread(read_verifier, self._trial.paths.trial_dir, step)
            end = replace(end, verifier=report if report.files else None)
        while is_last and end.next_phase is not None:
            further = await self._graded(end.next_phase, run, keep_processes=keep_processes, terminal=None)
            end = replace(
                end,
                next_phase=further.next_phase,
                verifier_sec=end.verifier_sec + further.verifier_sec,
                episode_rewards=further.episode_rewards,
                unplayed=(*end.unplayed, further.rewards),
                breakage=further.breakage,
            )
        return end

    async def _graded(
        self,
        phase: AgentPhase,
        run: asyncio.Task[TrialResult],
        *,
        keep_processes: bool | None,
        terminal: Leftovers | None,
    ) -> PhaseEnd:
        assert self._guard is not None
        if run.done():
            raise failures.lost(self._finished_result(run))
        self._guard.keep_processes, self._guard.terminal = keep_processes, terminal
        phase.done.set_result(None)
        self._phase = None
        next_phase = await self._next_phase()
        self._phases_ended += 1
        if next_phase is None:
            self._finished_result(run)
        return await self._verdict(next_phase)

    async def find_breakage(self, terminal: Leftovers | None = None, failure: Exception | None = None) -> str | None:
        """Return how the policy broke the sandbox of the running phase; None without evidence that it did.

        Args:
            terminal: The processes of a terminal in it that failed.
            failure: How it failed; None if it is only late.
        """
        if self._phase is None:
            return None
        return await find_breakage(
            self._phase.environment,
            terminal=terminal.pids if terminal is not None else (),
            # A sandbox that is reported lost but still exists gave an answer that can't be read.
            answers_nonsense=isinstance(failure, SandboxLostError | ValueError | LookupError),
            has_timed_out=isinstance(failure, SandboxTimeoutError),
            limit_sec=LATE_PROBE_SEC,
        )

    def _end_as_broken(self, breakage: str) -> PhaseEnd:
        """Return the end of a phase whose policy broke the sandbox, so that there is no verdict."""
        assert self._trial is not None
        assert self._guard is not None
        return PhaseEnd(
            rewards={},
            next_phase=None,
            verifier_sec=0.0,
            episode_rewards=self._guard.rewards_without_verdict(),
            stopped_processes=self._guard.stopped.processes,
            stopped_names=self._guard.stopped.names,
            oom_kills=self._guard.stopped.oom_kills,
            is_gated=False,
            breakage=breakage,
        )

    async def open_phase(
        self, instruction: str, environment: BaseEnvironment, context: contextvars.Context, resources: Resources
    ) -> asyncio.Future[None]:
        """Open an agent phase (called by the trial's agent)."""
        assert self._trial is not None
        done = asyncio.get_running_loop().create_future()
        if self._copied is not None:
            instruction, resources = self._copied.instruction, self._copied.resources
        limit_sec = phase_timeout_sec(self._task, current_step(self._trial))
        phase = AgentPhase(instruction, environment, environment.default_user, limit_sec, context, done, resources)
        self._phases.put_nowait(phase)
        return done

    async def close(self) -> None:
        """Stop the trial and remove everything that the configuration does not keep.

        Idempotent, and safe at any time. A cancellation is delivered only after the sandbox is down.

        Raises:
            SandboxTimeoutError: Harbor did not stop the sandbox within ``stop_timeout_sec``.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="harbor-gym-close")
        await shielded(self._closing)

    async def _create_trial(self, key: str) -> Trial:
        config = TrialConfig(
            task=TaskConfig(path=self._task.task_dir),
            trials_dir=await self._ensure_trials_dir(),
            agent=AgentConfig(
                import_path=agent.IMPORT_PATH, kwargs={"phase_handler": key}, override_timeout_sec=_NO_AGENT_TIMEOUT_SEC
            ),
            environment=self._environment_config,
            verifier=self._verifier_config,
        )
        require_variables(self._task, self._verifier_config.env)
        try:
            self._trial = trial = await _harbor_patches.create_trial(config, self._task)
            require_separate_verifiers(trial)
            return trial
        except ValidationError as exc:
            raise TaskUnsupportedError(f"task {self._task.name!r} can't run on this sandbox: {exc}") from exc
        except (ValueError, TypeError, NotImplementedError, ImportError, RuntimeError) as exc:
            # Harbor raises a RuntimeError for GPUs or TPUs that the sandbox does not offer.
            raise TaskUnsupportedError(f"task {self._task.name!r} can't run on this sandbox: {exc}") from exc
        except OSError as exc:
            why = describe_disk_failure(exc, config.trials_dir) or exc
            raise SandboxStartError(f"the sandbox of task {self._task.name!r} can't be set up: {why}") from exc

    def _note_start_error(self, error: BaseException) -> None:
        self._start_error = error

    async def _ensure_trials_dir(self) -> Path:
        if self._trials_dir is not None:
            return self._trials_dir
        # Not in a thread: a cancellation would lose the folder between its making and this assignment.
        self._temporary_dir = Path(tempfile.mkdtemp(prefix=temporary_prefix("trial")))
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
        """Return the ended trial's result, or raise why there is none."""
        self._check_open()
        if run.cancelled():
            raise SandboxLostError(f"the trial of task {self._task.name!r} was cancelled from outside")
        if (error := run.exception()) is not None:
            if self._guard is not None and (result := self._guard.graded_before(error)) is not None:
                return result
            why = describe_disk_failure(error, self._trials_dir) or error
            raise SandboxLostError(f"the trial of task {self._task.name!r} broke off: {why}") from error
        return run.result()

    async def _verdict(self, next_phase: AgentPhase | None) -> PhaseEnd:
        assert self._trial is not None
        assert self._guard is not None
        result = self._trial.result
        graded: StepResult | TrialResult = result
        if result.step_results:
            graded = result.step_results[self._phases_ended - 1]
        rewards = graded.verifier_result.rewards if graded.verifier_result is not None else None
        begun = len(result.step_results or ())
        is_cut = next_phase is None and begun > self._phases_ended
        failure = None
        if rewards is None or next_phase is None:
            failure = await self._guard.policy_failure(result, self._choose)
        if failure is not None:
            end = self._end_as_broken(failure)
            return replace(end, rewards=_floats(rewards or {}), verifier_sec=_seconds(graded.verifier))
        if rewards is None:
            raise failures.grading_failure(
                result, graded.exception_info or result.exception_info, self._guard.oom_kills
            )
        if is_cut:
            raise failures.step_failure(result)
        if (denied := failures.denied_verdict(result)) is not None:
            raise denied
        combined = result.verifier_result.rewards if result.verifier_result is not None else None
        return PhaseEnd(
            rewards=_floats(rewards),
            next_phase=next_phase,
            verifier_sec=_seconds(graded.verifier),
            episode_rewards=_floats(combined or {}),
            stopped_processes=self._guard.stopped.processes,
            stopped_names=self._guard.stopped.names,
            oom_kills=self._guard.stopped.oom_kills,
            is_gated=next_phase is None and begun < len(self._task.config.steps or ()),
        )

    async def _close(self) -> None:
        try:
            if self._run is not None:
                async with turn_to_stop(self._stop_timeout_sec):
                    await self._stop(self._run)
        finally:
            if self._run is not None and not self._run.done():
                # A trial that did not stop in time goes on, and writes its log and its result.
                self._run.add_done_callback(self._end_late)
            else:
                if self._trial is not None:
                    forget_loggers(self._trial.logger)
                if self._temporary_dir is not None:
                    # Not a bound method: the thread may keep a reference to it for a moment.
                    await asyncio.to_thread(shutil.rmtree, self._temporary_dir, ignore_errors=True)

    def _end_late(self, run: asyncio.Task[TrialResult]) -> None:
        """Forget a trial that ends after its ``close``, which reported that it is late."""
        if not run.cancelled():
            run.exception()  # retrieved: asyncio would log it
        self._remove_traces()

    def _remove_traces(self) -> None:
        """Remove the trial's loggers and temporary folder."""
        if self._trial is not None:
            forget_loggers(self._trial.logger)
        if self._temporary_dir is not None:
            shutil.rmtree(self._temporary_dir, ignore_errors=True)

    async def _stop(self, run: asyncio.Task[TrialResult]) -> None:
        if not run.cancelling():
            # A second cancellation would interrupt Harbor's clean-up; the end of the loop may have sent the first.
            run.cancel()
        if not run.done():  # one that ended with its loop can't be waited for
            await asyncio.wait((run,), timeout=self._stop_timeout_sec)
        stopping = self._guard.stopping if self._guard is not None else None
        if run.done() and stopping is not None and stopping is not run and not stopping.done():
            # A cancelled trial ends without its shielded stop, which goes on alone.
            await asyncio.wait((stopping,), timeout=self._stop_timeout_sec)
        if not run.done() or (stopping is not None and not stopping.done()):
            raise SandboxTimeoutError(
                f"the sandbox of task {self._task.name!r} did not stop within {self._stop_timeout_sec:g} s; "
                "look for what is left with the sandbox's own tools (for Docker: docker ps)"
            )
        if not run.cancelled():
            run.exception()  # retrieved: the error was reported to the caller that waited for it
        # Harbor only logs that a sandbox could not be removed.
        sandbox = self._trial.agent_environment if self._trial is not None else None
        if isinstance(sandbox, ReportsLeftBehind) and sandbox.left_behind:
            raise SandboxTimeoutError(sandbox.left_behind)


async def run_in_phase[T](phase: AgentPhase, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in the context of the trial's agent phase, where Harbor's per-agent settings apply.

    Args:
        phase: The phase that is running.
        work: A coroutine that uses the phase's environment. A cancellation waits for its end.
    """
    task = asyncio.get_running_loop().create_task(work, context=phase.context.copy())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await cancel_and_wait(task)
        raise


def _copyable(environment: BaseEnvironment) -> SupportsProcessCopies:
    """Return a sandbox whose processes can be copied.

    Raises:
        UsageError: They can't.
    """
    if isinstance(environment, SupportsProcessCopies) and environment.is_forkable:
        return environment
    raise UsageError(
        'mode="exact" needs a local sandbox with the option forkable (sandbox="local", sandbox_options={"forkable": '
        'True}): use that, or mode="replay", which types the same keystrokes again and compares each screen'
    )


def _verifier_config(settings: Mapping[str, Any]) -> VerifierConfig:
    unknown = settings.keys() - (VerifierConfig.model_fields.keys() - {"disable"})  # without a verdict no reward
    if unknown:
        raise UsageError(f"a verifier has no setting {', '.join(sorted(unknown))} here (TerminalEnvConfig.verifier)")
    if isinstance(name := settings.get("import_path"), str):
        import_named(name, what="TerminalEnvConfig.verifier: import_path")  # Harbor would do so after the episode
    try:
        return VerifierConfig(**settings)
    except ValidationError as exc:
        raise UsageError(f"TerminalEnvConfig.verifier: {exc}") from exc


def _floats(rewards: Mapping[str, float | int]) -> dict[str, float]:
    return {name: float(value) for name, value in rewards.items()}


def _seconds(timing: TimingInfo | None) -> float:
    if timing is None or timing.started_at is None:
        return 0.0
    end = timing.finished_at or datetime.now(timing.started_at.tzinfo)
    return (end - timing.started_at).total_seconds()
