"""Keep a policy out of its own grading, in a Harbor trial of our own loop or of one of Harbor's agents.

The guard attaches to a trial by Harbor's hooks, and by the methods that :mod:`harbor_gym.episode._harbor_patches`
replaces. Before the policy's phase it notes the running processes. After it, the guard lets what the policy started run
on, as Harbor does, and gives the verifier directories of its own; or, with a pristine view or where that is asked for,
it stops these processes, and those that were started in between.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from harbor.environments.base import BaseEnvironment
from harbor.models.task.config import MultiStepRewardStrategy, StepConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.trial import Trial

from harbor_gym.config import AmbiguousFailures
from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.episode import _harbor_patches, failures
from harbor_gym.episode.grading import cleanup
from harbor_gym.episode.grading.breakage import LATE_PROBE_SEC, Grader, can_run, find_breakage, interpreter_of
from harbor_gym.episode.grading.process_watch import ProcessWatch
from harbor_gym.episode.grading.rewards import RewardFunction
from harbor_gym.episode.grading.untouched import untouched_verdict
from harbor_gym.episode.grading.verifier_view import VerifierView, kind_of, paths_in_view
from harbor_gym.episode.grading.verifiers import build_for_verifier
from harbor_gym.episode.task import grades_in_shared_sandbox, keeps_processes, phase_users, sets_up, test_script
from harbor_gym.errors import SandboxError, SandboxLostError, VerifierError
from harbor_gym.sandboxes.archive.environment import CarriesFiles
from harbor_gym.sandboxes.declared import require_user
from harbor_gym.sandboxes.extensions import (
    SupportsCleanUp,
    SupportsSetUpView,
    SupportsSharedView,
    SupportsUnblocking,
    SupportsVerifierView,
)
from harbor_gym.terminal.session import Leftovers

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BeforeGrading:
    """Facts from before the policy, which it could falsify later."""

    image_user_id: str | None = None
    """The id of the image's user, where it grades."""

    unable_verifiers: frozenset[str | int | None] = frozenset()
    """The verifiers' users that could not run at all."""


class GradingGuard:
    """Guards the grading of one trial that has not run yet.

    Args:
        trial: The trial. Add hooks that must run before the clean-up, such as the end of a tunnel, before the guard.
        verify_paths: As ``TerminalEnvConfig.verify_paths``.
        keep_processes: As ``TerminalEnvConfig.keep_agent_processes``; None is the task's own setting, and without one
            they are kept unless there is a pristine view.
        ambiguous_failures: As ``TerminalEnvConfig.ambiguous_failures``.
        before: What was found before the policy in the episode that this trial's is a copy of, in its first phase. It
            holds here: the copy's own files are the policy's.

    Raises:
        TaskError: Paths are given for a sandbox that has no pristine view.
    """

    def __init__(
        self,
        trial: Trial,
        *,
        verify_paths: VerifyPaths = "auto",
        keep_processes: bool | None = None,
        ambiguous_failures: AmbiguousFailures = "zero",
        before: BeforeGrading | None = None,
    ) -> None:
        self._trial = trial
        self._environment = trial.agent_environment
        self._watch = ProcessWatch(self._environment)
        self._verify_paths: VerifyPaths = verify_paths
        self._view = _plan_view(trial, verify_paths)
        self._pristine = self._view if self._view is not None and self._view.is_pristine else None
        self._set_up_agent = trial.agent.setup
        self._agent_has_processes = False
        self._ambiguous_failures: AmbiguousFailures = ambiguous_failures
        self._is_copy = before is not None
        self.before = before or BeforeGrading()
        """What was found before the policy."""
        self._phases_ended = 0
        self._is_abandoned = self._is_ending_step = False
        declared = keeps_processes(trial.task)
        self._keeps_by_default = self._pristine is None if declared is None else declared
        self.keep_processes = keep_processes
        """Whether the policy's processes run on during grading; None: as the task has it."""
        self.terminal: Leftovers | None = None
        """The processes and files of the policy's terminal, which is detached by the end of the phase."""
        self.stopped = cleanup.CleanupResult(0, None)
        """The result of the clean-up after the last phase."""
        self.postmortem: cleanup.Postmortem | None = None
        """The sandbox's report about a verifier that gave no verdict."""
        self.stopping: asyncio.Task[object] | None = None
        """The task in which Harbor stops the sandbox."""
        self.stopped_names: tuple[str, ...] = ()
        """The names of some of the policy's processes that were stopped before a verification."""
        self._breakage: str | None = None
        self._failure: SandboxError | None = None
        self._last_switches: int | None = None
        """Switches of the network since the last verification began."""
        self._attach()

    def _attach(self) -> None:
        trial, environment = self._trial, self._environment
        _harbor_patches.silence_checksum(trial.task)
        _harbor_patches.contain_agent_logs(trial)
        _harbor_patches.build_before_start(trial)
        trial.agent.setup = self._begin
        trial.add_hook(TrialEvent.AGENT_START, self._begin_phase)
        trial.add_hook(TrialEvent.AGENT_END, self._end_phase)
        trial.add_hook(TrialEvent.VERIFICATION_START, self._begin_verification)
        trial.add_hook(TrialEvent.CANCEL, self._abandon)
        trial.add_hook(TrialEvent.END, self._end)
        _harbor_patches.examine_before_stop(environment, self._examine)
        _harbor_patches.tolerate_last_switch(environment, self._is_last_switch)
        _harbor_patches.precede_commands(environment, self._begin_set_up)
        _harbor_patches.leave_out_reward_removal(environment, trial.agent_env_paths.verifier_dir)
        _harbor_patches.leave_out_chmod(environment)
        _harbor_patches.keep_closed(environment, trial.agent_env_paths.verifier_dir, self._end_step)

    @property
    def missing_protections(self) -> tuple[str, ...]:
        """The protections that the sandbox can't give to this task's grading, one sentence each."""
        task, environment = self._trial.task, self._environment
        if not any(grades_in_shared_sandbox(task, step) for step in task.config.steps or [None]):
            return ()
        kind = kind_of(environment)
        missing: list[str] = []
        if self._pristine is None and not isinstance(environment, SupportsVerifierView):
            missing.append(f"{kind} sandboxes have no pristine view: the verifier runs among the policy's files")
        if self._keeps and self._view is None:
            missing.append(
                f"{kind} sandboxes show the verifier's directories to the processes that the policy left running: "
                "keep_agent_processes = false stops them before grading"
            )
        later = [step for step in (task.config.steps or ())[1:] if sets_up(task, step)]
        if later and self._pristine is not None and not isinstance(environment, SupportsSetUpView):
            missing.append(f"{kind} sandboxes prepare later steps among the policy's files, its shell included")
        if not isinstance(environment, SupportsCleanUp):
            missing.append(f"{kind} sandboxes are cleaned up by a script inside, which a root policy can replace")
        return tuple(missing)

    @property
    def _keeps(self) -> bool:
        return self._keeps_by_default if self.keep_processes is None else self.keep_processes

    @property
    def oom_kills(self) -> int:
        """The number of processes that the memory limit killed since the last phase ended; 0 if unknown."""
        before, after = self._watch.oom_kills, self.postmortem.oom_kills if self.postmortem is not None else None
        return after - before - (self.stopped.oom_kills or 0) if before is not None and after is not None else 0

    async def policy_failure(self, result: TrialResult, choose: RewardFunction | None = None) -> str | None:
        """Return in words why a trial without a usable verdict is the policy's failure; None if it is not.

        Where that depends on what the verifier says in a sandbox that no policy was in, one is asked, once a task.

        Args:
            result: The trial's result, finished or not.
            choose: Makes the scalar of the rewards, which the policy's programs may have written: a verdict of which it
                can make none is not usable. None if the trial is not finished.
        """
        last = result.step_results[-1] if result.step_results else result
        if choose is not None and last.verifier_result is not None and result.verifier_result is not None:
            return await self._unusable(choose, result.verifier_result.rewards or {})
        trial = self._trial
        finding = failures.SandboxFinding(
            is_shared=grades_in_shared_sandbox(trial.task, current_step(trial)),
            breakage=self._breakage,
            was_full=self.stopped.was_full,
            oom_kills=self.oom_kills,
            verifier_timeout_sec=None if trial.task.config.steps else trial.verifier_timeout_sec,
            is_well=self.postmortem is not None,
        )
        if self._ambiguous_failures == "zero" and failures.lacks_verdict(result, finding):
            untouched = await untouched_verdict(trial, self._verify_paths)
            finding = replace(finding, has_verdict_untouched=untouched and untouched.rewards is not None)
        return failures.policy_failure(result, finding, self._ambiguous_failures)

    async def _unusable(self, choose: RewardFunction, rewards: Mapping[str, float]) -> str | None:
        try:
            choose(rewards)
        except VerifierError as exc:
            if self._ambiguous_failures != "zero" or self._phases_ended == 0:
                return None
            untouched = await untouched_verdict(self._trial, self._verify_paths)
            if untouched is None or untouched.rewards is None:
                return None
            with contextlib.suppress(VerifierError):
                choose(untouched.rewards)
                return f"its verdict can't be used, and that in an untouched sandbox can: {exc}"
        return None

    def graded_before(self, error: BaseException) -> TrialResult | None:
        """Return the trial's result if it has the task's verdict although the trial raised ``error`` after it.

        What follows a verdict is cleaning up, such as writing the trial's files; its failure is logged.
        """
        result = self._trial.result
        if result.verifier_result is None or not isinstance(error, Exception):
            return None
        _logger.warning("after the verdict of trial %s: %s: %s", result.trial_name, type(error).__name__, error)
        return result

    def rewards_without_verdict(self) -> dict[str, float]:
        """Return the task's rewards if the policy prevented a verdict: that step and the later ones count as 0."""
        config, steps = self._trial.task.config, self._trial.result.step_results or ()
        if config.multi_step_reward_strategy is MultiStepRewardStrategy.FINAL:
            return {}
        graded = [step.verifier_result.rewards or {} for step in steps if step.verifier_result is not None]
        names = {name for rewards in graded for name in rewards}
        return {name: sum(rewards.get(name, 0) for rewards in graded) / len(config.steps or [None]) for name in names}

    # --- the trial's moments, in order ----------------------------------------------------------------------------

    async def _begin(self, environment: BaseEnvironment) -> None:
        """Note the task's own processes, then set up the agent, whose processes count as the policy's."""
        await self._watch.begin_phase()
        if self._is_copy:
            return
        await self._note_users()
        await self._set_up_agent(environment)
        if len(self._trial.task.config.steps or ()) > 1:
            self._agent_has_processes = await self._watch.has_others()

    async def _begin_set_up(self) -> None:
        """Prepare a later step in a view without the policy's programs, and with its processes stopped."""
        step = current_step(self._trial)
        if self._pristine is None or step is None or self._is_ending_step or not sets_up(self._trial.task, step):
            return
        if await self._pristine.enter_for_set_up() and isinstance(self._environment, SupportsCleanUp):
            await self._watch.take_room_back()  # before the set-up, which could use it all up
            await self._watch.stop_again()

    async def _begin_phase(self, _: TrialHookEvent) -> None:
        if self._pristine is not None:
            async with self._blaming_policy():
                await self._pristine.begin_phase()
        if self._phases_ended == 0:
            return
        await self._watch.begin_phase()
        if self._agent_has_processes and not self._keeps:
            # The clean-up after the step before ended its processes, such as the terminal of Terminus-2.
            agent_user, _verifier_user = phase_users(self._trial.task, current_step(self._trial))
            with self._environment.with_default_user(agent_user):
                await self._set_up_agent(self._environment)

    async def _end_phase(self, _: TrialHookEvent) -> None:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            return  # a cancelled trial is not graded
        self._phases_ended += 1
        terminal, self.terminal = self.terminal, None
        if isinstance(self._environment, SupportsUnblocking):
            await self._environment.unblock()
        async with self._blaming_policy():
            self.stopped = await self._watch.end_phase(keep_processes=self._keeps, terminal=terminal)
        self.stopped_names = tuple(dict.fromkeys((*self.stopped_names, *self.stopped.names)))

    async def _begin_verification(self, _: TrialHookEvent) -> None:
        """Give the verifier a view of its own, or at least directories without the policy's files."""
        if self._breakage is not None:
            raise cleanup.BrokenByPolicyError(self._breakage)  # a multi-step trial goes on after a failed clean-up
        if self._failure is not None:
            raise self._failure  # likewise: a step that was not played is not graded
        task, environment = self._trial.task, self._environment
        if not grades_in_shared_sandbox(task, current_step(self._trial)):
            await build_for_verifier(self._trial, current_step(self._trial))
            return  # a sandbox that the policy never saw
        is_last = self._phases_ended >= len(task.config.steps or ())
        self._last_switches = 0 if is_last else None
        await self._watch.begin_verification(is_last=is_last)
        reset = self._verifier_dirs_reset()
        if self._pristine is not None:
            await self._pristine.enter()
        elif self._view is not None and self._watch.keeps_processes:
            try:
                await self._view.enter_shared(reset.directories)
            except SandboxLostError:
                raise
            except SandboxError as exc:  # what the policy left prevents it, or a link of the image
                _logger.warning("the policy's processes are stopped before grading: %s", exc)
                await self._watch.stop_kept()
        if isinstance(environment, SupportsCleanUp):
            # Since the clean-up, Harbor may have run a program that the policy replaced, to collect artifacts.
            await self._watch.stop_again()
        await cleanup.reset_verifier_dirs(environment, reset)
        if isinstance(environment, CarriesFiles):
            script = test_script(task, current_step(self._trial)).name
            environment.executable, environment.is_executable = self._trial.agent_env_paths.tests_dir / script, False

    async def _end_step(self) -> None:
        """Stop the processes that a step's verifier left. Harbor's first action on the next step calls this."""
        steps = self._trial.result.step_results or ()
        if len(steps) > 1 and steps[-1].agent_execution is None:
            self._is_ending_step = True  # the clean-up's own commands are no set-up
            try:
                await self._watch.end_verification()
            finally:
                self._is_ending_step = False

    def _is_last_switch(self) -> bool:
        """Return whether this switch of the network is the one back, after the last verifier."""
        if self._last_switches is None:
            return False
        self._last_switches += 1
        return self._last_switches > 1

    async def _abandon(self, _: TrialHookEvent) -> None:
        self._is_abandoned = True

    async def _end(self, _: TrialHookEvent) -> None:
        verdict = self._trial.result.verifier_result
        if self.stopped_names and verdict is not None and not any((verdict.rewards or {}).values()):
            _note_stopped(self._trial.task.name, self.stopped_names)

    async def _examine(self) -> None:
        """Examine a sandbox whose verifier gave no verdict, before Harbor stops it."""
        self.stopping = asyncio.current_task()
        if self._is_abandoned or not self._lacks_verdict():
            return
        trial, environment = self._trial, self._environment
        step = current_step(trial)
        interpreter = interpreter_of(test_script(trial.task, step))
        self._breakage = self._breakage or await find_breakage(
            environment, grader=self._grader(step), interpreter=interpreter
        )
        if self._breakage is None:
            test_output: PurePosixPath = trial.agent_env_paths.verifier_dir / "test-stdout.txt"
            self.postmortem = await cleanup.examine(environment, test_output)

    # --- parts ----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _blaming_policy(self) -> AsyncGenerator[None]:
        """Record a failure of the block as the policy's, if the policy broke the sandbox."""
        try:
            yield
        except cleanup.BrokenByPolicyError as exc:
            self._breakage = str(exc)
            raise
        except SandboxError as exc:
            if (breakage := await find_breakage(self._environment, limit_sec=LATE_PROBE_SEC)) is None:
                self._failure = exc
                raise
            self._breakage = breakage
            raise cleanup.BrokenByPolicyError(breakage) from exc

    def _lacks_verdict(self) -> bool:
        result = self._trial.result
        graded = result.step_results[-1] if result.step_results else result
        has_failed = (graded.exception_info or result.exception_info) is not None
        was_reached = graded.verifier is not None or (graded.agent_execution is not None and has_failed)
        return graded.verifier_result is None and (was_reached or (self._phases_ended > 0 and has_failed))

    async def _note_users(self) -> None:
        """Note facts that the policy could falsify later: the image's user, and the verifiers that can't run at all."""
        task = self._trial.task
        users = {phase_users(task, step) for step in task.config.steps or [None]}
        for agent, _ in users:
            await require_user(self._environment, agent)
        verifiers = {verifier for agent, verifier in users if agent != verifier}
        image_user_id = await cleanup.user_id(self._environment) if None in verifiers else None
        unable = [user for user in verifiers if not await can_run(self._environment, user)]
        self.before = BeforeGrading(image_user_id, frozenset(unable))

    def _grader(self, step: StepConfig | None) -> Grader | None:
        """Return the user that grades in the policy's sandbox, if it could run before the policy's phase."""
        trial, user = self._trial, phase_users(self._trial.task, step)[1]
        graded = trial.result.step_results[-1] if trial.result.step_results else trial.result
        was_able = user not in self.before.unable_verifiers
        if graded.verifier is None or not was_able or not grades_in_shared_sandbox(trial.task, step):
            return None
        return Grader(user, trial.agent_env_paths.verifier_dir)

    def _verifier_dirs_reset(self) -> cleanup.VerifierDirsReset:
        paths = self._trial.agent_env_paths
        agent_user, verifier_user = phase_users(self._trial.task, current_step(self._trial))
        owner = ""
        if agent_user != verifier_user:
            owner = str(verifier_user) if verifier_user is not None else self.before.image_user_id or ""
        return cleanup.VerifierDirsReset((paths.verifier_dir, paths.tests_dir), owner)


def current_step(trial: Trial) -> StepConfig | None:
    """Return the running step of a multi-step trial; None before the first, and in any other trial."""
    begun, steps = len(trial.result.step_results or ()), trial.task.config.steps
    return steps[begun - 1] if steps and begun else None


_explained: set[str] = set()


def _note_stopped(task: str, names: tuple[str, ...]) -> None:
    """Log what was stopped before a task's verifier paid 0, once for a task."""
    if task in _explained:
        return
    _explained.add(task)
    _logger.warning(
        "task %s: the reward is 0, and before grading these processes of the policy were stopped: %s. If the verifier "
        "needs them, set keep_agent_processes = true under [metadata]",
        task,
        ", ".join(names),
    )


def _plan_view(trial: Trial, verify_paths: VerifyPaths) -> VerifierView | None:
    environment = trial.agent_environment
    paths = paths_in_view(trial.task, environment, verify_paths)
    if paths is None and not isinstance(environment, SupportsSharedView):
        return None
    return VerifierView(environment, paths, lambda: len(trial.result.step_results or ()))
