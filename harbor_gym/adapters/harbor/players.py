"""Players of one task: this package's own loop, or a Harbor trial whose agent calls a session of the gateway."""

import asyncio
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from harbor_gym._runtime.loggers import forget_loggers
from harbor_gym.adapters.harbor.agents import attach, point_at_session
from harbor_gym.adapters.harbor.results import Grading, finished_rollout, lost_rollout, rewards_of
from harbor_gym.config import AgentEpisodeConfig, TerminalEnvConfig
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.episode._harbor_patches import create_trial
from harbor_gym.episode.diagnostics import read_services
from harbor_gym.episode.grading.account import RewardAccount
from harbor_gym.episode.grading.guard import GradingGuard
from harbor_gym.episode.task import require_variables
from harbor_gym.errors import UnexpectedError
from harbor_gym.gateway import Gateway, Session, SessionLimits
from harbor_gym.outcomes import losing_one_episode
from harbor_gym.pool import shared_pool
from harbor_gym.rollout import clocked, run_episode
from harbor_gym.sandboxes import environment_config
from harbor_gym.sequences import merge
from harbor_gym.stragglers import EpisodeClock
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.types import ChatCodec, EndReason, Rollout, Sampler


class Player(Protocol):
    """Plays a task."""

    async def play(self, task: TaskConfig, path: Path, clock: EpisodeClock) -> Rollout:
        """Play a task once.

        Args:
            task: Harbor's configuration of the task.
            path: The task's directory on this machine.
            clock: The episode's clock.

        Raises:
            HarborGymError: The task or the configuration is wrong, which no retry can repair.
        """
        ...


@contextmanager
def clocked_session(gateway: Gateway, clock: EpisodeClock, *, name: str, limits: SessionLimits) -> Generator[Session]:
    """Yield an open session that counts its answers with an episode's clock, and ends at the batch's deadline."""
    session = gateway.open_session(name=name, limits=limits, sampler=clocked(gateway.sampler, clock))
    timer: asyncio.TimerHandle | None = None
    if clock.ends_at is not None:  # the agent may be running a command, and make no request
        timer = asyncio.get_running_loop().call_at(clock.ends_at, session.end, EndReason.BATCH_DEADLINE)
    try:
        yield session
    finally:
        if timer is not None:
            timer.cancel()
        gateway.close_session(session)


@dataclass(frozen=True)
class EnvPlayer:
    """Plays with :func:`harbor_gym.run_episode`."""

    sampler: Sampler
    """Samples the policy's messages."""

    codec: ChatCodec
    """Writes the chat as tokens."""

    limits: SessionLimits
    """The budgets in tokens."""

    config: TerminalEnvConfig
    """The sandbox, the budgets and the reward; ``task_dir`` is replaced."""

    pool_size: int | None = None
    """Sandboxes that a warm pool keeps ready for each task; None starts one per episode."""

    async def play(self, task: TaskConfig, path: Path, clock: EpisodeClock) -> Rollout:
        """See :meth:`Player.play`."""
        started = time.monotonic()
        config = self.config.model_copy(update={"task_dir": path})
        pool = None if self.pool_size is None else shared_pool(config, size=self.pool_size)
        env = TokenTerminalEnv(
            AsyncTerminalGymEnv(config, pool=pool),
            self.codec,
            max_tokens=self.limits.max_answer_tokens,
            max_context_tokens=self.limits.max_context_tokens,
        )
        rollout = await run_episode(env, clocked(self.sampler, clock))
        steps = rollout.transitions
        last = steps[-1].info["metrics"] if steps else {}
        turns = sum("summary" not in step.info for step in steps)
        return replace(
            rollout,
            task_name=path.name,
            trial_name=TrialConfig(task=task).trial_name,
            segments=merge(steps),
            metrics={**last, "turns": float(turns), "time/total_sec": time.monotonic() - started},
        )


@dataclass(frozen=True)
class TrialPlayer:
    """Plays Harbor trials whose agents call sessions of one gateway."""

    gateway: Gateway
    """The open gateway."""

    agent: AgentConfig
    """The agent, without an address."""

    in_sandbox: bool
    """Whether the agent runs in the sandbox."""

    config: AgentEpisodeConfig
    """The sandbox, its grading, and the source of the tokens."""

    limits: SessionLimits
    """The budgets of each session."""

    account: RewardAccount
    """Computes the reward of a verdict."""

    trials_dir: Path
    """Folder of the trials' folders."""

    async def play(self, task: TaskConfig, path: Path, clock: EpisodeClock) -> Rollout:
        """See :meth:`Player.play`."""
        started = time.monotonic()
        own = self.config
        environment = environment_config(own.sandbox, options=own.sandbox_options)
        config = TrialConfig(task=task, trials_dir=self.trials_dir, environment=environment)
        trial: Trial | None = None
        session: Session | None = None
        try:
            with clocked_session(self.gateway, clock, name=config.trial_name, limits=self.limits) as session:
                config.agent = self._agent_config(session)
                trial = await create_trial(config, path)
                require_variables(trial.task)
                attach(trial, self.gateway, session, in_sandbox=self.in_sandbox)
                guard = GradingGuard(
                    trial,
                    verify_paths=own.verify_paths,
                    keep_processes=own.keep_agent_processes,
                    ambiguous_failures=own.ambiguous_failures,
                )
                with losing_one_episode(f"trial {config.trial_name}", lambda: bool(session.calls)):
                    result = await _run(trial, guard)
            with losing_one_episode(f"trial {config.trial_name}"):
                printed = await asyncio.to_thread(read_services, trial.paths.trial_dir)
                return await self._finished(session, result, guard, printed, path.name, started)
        except UnexpectedError as exc:
            assert session is not None
            return lost_rollout(session, exc, task_name=path.name, started=started, tokens=self.config.tokens)
        finally:
            if trial is not None:
                forget_loggers(trial.logger)

    async def _finished(
        self,
        session: Session,
        result: TrialResult,
        guard: GradingGuard,
        printed: Mapping[str, str],
        task_name: str,
        started: float,
    ) -> Rollout:
        breakage = await guard.policy_failure(result, self.account.choose)
        rewards = rewards_of(result) if breakage is None else guard.rewards_without_verdict()
        missing, is_inside = guard.missing_protections, self.in_sandbox
        grading = Grading(rewards, breakage, missing, is_agent_inside=is_inside, service_output=printed)
        return finished_rollout(
            session, result, grading, self.account, task_name=task_name, started=started, tokens=self.config.tokens
        )

    def _agent_config(self, session: Session) -> AgentConfig:
        model = self.gateway.model or "policy"
        agent = point_at_session(self.agent, session, model=model, in_sandbox=self.in_sandbox, limits=self.limits)
        if self.config.tokens == "details":
            agent = agent.model_copy(update={"kwargs": {**agent.kwargs, "collect_rollout_details": True}})
        return agent


async def _run(trial: Trial, guard: GradingGuard) -> TrialResult:
    """Run a trial; return its result also if it fails after its verdict."""
    try:
        return await trial.run()
    except Exception as exc:  # the boundary to foreign code
        if (result := guard.graded_before(exc)) is None:
            raise
        return result
