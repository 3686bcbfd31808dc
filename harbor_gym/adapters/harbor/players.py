"""What plays one task: our own loop, or a Harbor trial whose agent speaks to a session."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from harbor_gym._runtime.loggers import forget_loggers
from harbor_gym.adapters.harbor.agents import attach, point_at_session
from harbor_gym.adapters.harbor.results import (
    details_sequences,
    end_reason_of,
    reward_of,
    rewards_of,
    segment_sequence,
    step_rewards_of,
    with_outcome,
)
from harbor_gym.adapters.harbor.rollout import TokenRollout
from harbor_gym.config import AmbiguousFailures, TerminalEnvConfig
from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.env import AsyncTerminalGymEnv
from harbor_gym.episode.grading.account import RewardAccount
from harbor_gym.episode.grading.guard import GradingGuard
from harbor_gym.episode.task import require_variables
from harbor_gym.errors import AgentFailedError, HarborGymError
from harbor_gym.gateway import CallKind, Gateway, Session, SessionLimits
from harbor_gym.rollout import run_episode
from harbor_gym.sequences import flatten
from harbor_gym.tokens import TokenTerminalEnv
from harbor_gym.types import ChatCodec, EndReason, Sampler, TokenSequence


class Player(Protocol):
    """What plays one task."""

    async def play(self, task: TaskConfig, path: Path) -> TokenRollout:
        """Play a task once.

        Args:
            task: Harbor's configuration of it.
            path: Its directory on this machine.

        Raises:
            HarborGymError: What no retry can repair.
        """
        ...


@dataclass(frozen=True)
class EnvPlayer:
    """Our own loop, :func:`harbor_gym.run_episode`."""

    sampler: Sampler
    """Samples the policy's messages."""

    codec: ChatCodec
    """Writes the chat as tokens."""

    limits: SessionLimits
    """The budgets in tokens."""

    settings: Mapping[str, Any]
    """Fields of ``TerminalEnvConfig`` but for the task."""

    async def play(self, task: TaskConfig, path: Path) -> TokenRollout:
        """Play a task once."""
        started = time.monotonic()
        config = TerminalEnvConfig(task_dir=path, **self.settings)
        env = TokenTerminalEnv(
            AsyncTerminalGymEnv(config),
            self.codec,
            max_tokens=self.limits.max_answer_tokens,
            max_context_tokens=self.limits.max_context_tokens,
        )
        rollout = await run_episode(env, self.sampler)
        steps = rollout.transitions
        last = steps[-1].info["metrics"] if steps else {}
        return TokenRollout(
            task_name=path.name,
            trial_name=TrialConfig(task=task).trial_name,
            reward=rollout.reward,
            end_reason=rollout.end_reason,
            error=rollout.error,
            segments=[flatten(rollout)] if steps else [],
            turns=env.transcript.turns,
            metrics={**last, "turns": float(len(steps)), "time/total_sec": time.monotonic() - started},
            rewards=rollout.rewards,
            step_rewards=rollout.step_rewards,
            missing_protections=steps[-1].info.get("missing_protections", ()) if steps else (),
        )


@dataclass(frozen=True)
class TrialPlayer:
    """Harbor trials whose agents speak to sessions of one gateway."""

    gateway: Gateway
    """The open gateway."""

    agent: AgentConfig
    """The agent, without an address."""

    in_sandbox: bool
    """Whether it runs in the sandbox."""

    environment: EnvironmentConfig
    """The sandbox."""

    limits: SessionLimits
    """The budgets of each session."""

    account: RewardAccount
    """What a verdict is worth."""

    verify_paths: VerifyPaths
    """As ``TerminalEnvConfig.verify_paths``."""

    keep_agent_processes: bool | None
    """As ``TerminalEnvConfig.keep_agent_processes``."""

    ambiguous_failures: AmbiguousFailures
    """As ``TerminalEnvConfig.ambiguous_failures``."""

    trials_dir: Path
    """Where the trials' folders are."""

    use_details: bool
    """Whether the tokens are those that the agent reports, and not the session's."""

    async def play(self, task: TaskConfig, path: Path) -> TokenRollout:
        """Play a task once."""
        started = time.monotonic()
        config = TrialConfig(task=task, trials_dir=self.trials_dir, environment=self.environment)
        session = self.gateway.open_session(name=config.trial_name, limits=self.limits)
        trial: Trial | None = None
        try:
            config.agent = self._agent_config(session)
            trial = await Trial.create(config)
            require_variables(trial.task)
            attach(trial, self.gateway, session, in_sandbox=self.in_sandbox)
            guard = GradingGuard(
                trial,
                verify_paths=self.verify_paths,
                keep_processes=self.keep_agent_processes,
                ambiguous_failures=self.ambiguous_failures,
            )
            result = await trial.run()
        finally:
            self.gateway.close_session(session)
            if trial is not None:
                forget_loggers(trial.logger)
        breakage, rewards = guard.policy_failure(result), rewards_of(result)
        if breakage is not None:
            rewards = guard.rewards_without_verdict()
        reward = session.error or reward_of(result, rewards, self.account.choose, breakage=breakage)
        segments = self._segments(session, result)
        if isinstance(segments, AgentFailedError):
            reward = reward if isinstance(reward, HarborGymError) else segments
            segments = []
        error = reward if isinstance(reward, HarborGymError) else None
        if error is not None and not error.is_infrastructure:
            raise error
        end_reason = EndReason.INFRASTRUCTURE_ERROR if error is not None else _end_reason(session, result, breakage)
        score = None if isinstance(reward, HarborGymError) else reward
        metrics = {**_metrics(session), "time/total_sec": time.monotonic() - started}
        if score is not None and self.account.is_capped(end_reason):
            score, metrics["zero_reward_on_limit"] = self.account.settle(rewards, end_reason), 1.0
        return TokenRollout(
            task_name=path.name,
            trial_name=config.trial_name,
            reward=score,
            end_reason=end_reason,
            error=error,
            segments=segments,
            turns=with_outcome(session.turns, end_reason, score, rewards, breakage, result),
            metrics=metrics,
            rewards={} if error is not None else rewards,
            step_rewards=[] if error is not None else step_rewards_of(result),
            missing_protections=guard.missing_protections,
        )

    def _agent_config(self, session: Session) -> AgentConfig:
        model = self.gateway.model or "policy"
        agent = point_at_session(self.agent, session, model=model, in_sandbox=self.in_sandbox, limits=self.limits)
        if self.use_details:
            agent = agent.model_copy(update={"kwargs": {**agent.kwargs, "collect_rollout_details": True}})
        return agent

    def _segments(self, session: Session, result: TrialResult) -> list[TokenSequence] | AgentFailedError:
        if not self.use_details:
            return [segment_sequence(segment) for segment in session.trained_segments]
        try:
            return details_sequences(result)
        except AgentFailedError as exc:
            return exc


def _end_reason(session: Session, result: TrialResult, breakage: str | None) -> EndReason:
    if breakage is not None:
        return EndReason.SANDBOX_BROKEN
    if session.end_reason is not None:
        return session.end_reason
    if session.calls and session.calls[-1].stop_reason == "length" and session.last_kind is CallKind.MAIN:
        return EndReason.MAX_TOKENS
    return end_reason_of(result)


def _metrics(session: Session) -> dict[str, float]:
    return {**session.metrics, "turns": float(sum(call.is_policy_model for call in session.calls))}
