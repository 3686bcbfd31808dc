"""Play a task on Harbor's server: a job of one rollout, whose agent reaches its session through the relay."""

import asyncio
import functools
import logging
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harbor.models.task.config import VerifierEnvironmentMode
from harbor.models.task.task import Task
from harbor.models.trial.config import AgentConfig, TaskConfig
from harbor.models.trial.result import TrialResult

from harbor_gym._runtime.harbor_versions import graded_after_refusal
from harbor_gym._runtime.shielded import shielded
from harbor_gym.adapters.harbor.players import clocked_session
from harbor_gym.adapters.harbor.results import Grading, finished_rollout, lost_rollout, rewards_of
from harbor_gym.adapters.harbor.server import HarborServer, ServerJobs, server_environment
from harbor_gym.config import AgentEpisodeConfig
from harbor_gym.episode.failures import SandboxFinding, policy_failure
from harbor_gym.episode.grading.account import RewardAccount
from harbor_gym.episode.task import declared_verify_paths, grades_in_shared_sandbox
from harbor_gym.errors import SandboxError, UnexpectedError
from harbor_gym.gateway import Gateway, Session, SessionLimits
from harbor_gym.gateway.agents import relayed_agent_config
from harbor_gym.gateway.relay import RelayAddress, RelayLink, relayed
from harbor_gym.outcomes import losing_one_episode
from harbor_gym.stragglers import EpisodeClock
from harbor_gym.types import Rollout

_NO_LIMIT_TOKENS = 1_000_000

_END_SEC = 5.0
"""Time for an agent to end by itself after its requests are refused, before the server ends it."""

_UNGUARDED = (
    "Harbor's server grades without a clean-up: what the policy left running goes on, what it broke is not found"
)
_NO_VIEW = "Harbor's server grades without a pristine view: the task's verify_paths count for nothing there"

logger = logging.getLogger(__name__)


def missing_protections(task: Task) -> tuple[str, ...]:
    """Return a sentence for each protection that a task's grading on a server lacks; a missing view is logged once.

    Raises:
        TaskError: The task's ``verify_paths`` are not a list of paths for a pristine view.
    """
    declared = declared_verify_paths(task)
    if not any(grades_in_shared_sandbox(task, step) for step in task.config.steps or [None]):
        return ()
    if declared is None:
        return (_UNGUARDED,)
    note_missing_view()
    return (_UNGUARDED, _NO_VIEW)


@functools.cache
def note_missing_view() -> None:
    """Log, once per process, that a server grades without a pristine view."""
    logger.warning(_NO_VIEW)


@dataclass(frozen=True)
class ServerPlayer:
    """Plays rollouts on Harbor's server, whose agents call sessions of one gateway."""

    server: HarborServer
    """The server."""

    jobs: ServerJobs
    """The client for its jobs."""

    gateway: Gateway
    """The open gateway."""

    agent: AgentConfig
    """The agent, without an address."""

    config: AgentEpisodeConfig
    """The sandbox, the treatment of ambiguous failures, the source of the tokens, and a folder for fetched trials."""

    limits: SessionLimits
    """The budgets of each session."""

    account: RewardAccount
    """Computes the reward of a verdict."""

    async def play(self, task: TaskConfig, path: Path, clock: EpisodeClock) -> Rollout:
        """See :meth:`harbor_gym.adapters.harbor.players.Player.play`."""
        name = f"{path.name}__{uuid.uuid4().hex[:7]}"
        async with self.server.slots:
            with clocked_session(self.gateway, clock, name=name, limits=self.limits) as session:
                return await self._play(task, path, session, clock)

    async def _play(self, task: TaskConfig, path: Path, session: Session, clock: EpisodeClock) -> Rollout:
        started, name = time.monotonic(), session.name
        read = await asyncio.to_thread(Task, path)
        missing = missing_protections(read)
        relay = RelayAddress(self.server.url.rstrip("/"), uuid.uuid4().hex, self.server.headers)
        reconnects = 0
        try:
            async with relayed(self.gateway, session, relay) as link:
                await link.wait_connected(self.server.lost_after_sec)
                try:
                    agent = self._agent(read, clock)
                    with losing_one_episode(f"trial {name}", lambda: bool(session.calls)):
                        result = await self._run(self._job(task, name, agent), relay.session_id, link)
                finally:
                    reconnects = link.reconnects
            self.gateway.close_session(session)
            with losing_one_episode(f"trial {name}"):
                grading = self._grading(result, missing)
                rollout = finished_rollout(
                    session,
                    result,
                    grading,
                    self.account,
                    task_name=path.name,
                    started=started,
                    tokens=self.config.tokens,
                )
        except (SandboxError, UnexpectedError) as exc:
            rollout = lost_rollout(session, exc, task_name=path.name, started=started, tokens=self.config.tokens)
        return replace(rollout, metrics={**rollout.metrics, "gateway/reconnects": float(reconnects)})

    async def _run(self, job: dict[str, Any], session_id: str, link: RelayLink) -> TrialResult:
        """Run a job of one rollout to its end. Cancelling this waits until the server has stopped the sandbox."""
        submitting = asyncio.ensure_future(self.jobs.submit(job, session_id))
        try:
            job_id = await shielded(submitting)
            link.rollout_id = str((await self.jobs.rollout(job_id)).id)
            detail = await self.jobs.finished(job_id, lambda: link.reconnects > 0)
            if self.config.trials_dir is not None:
                await self.jobs.fetch(detail, self.config.trials_dir / detail.result.trial_name)
        except BaseException:
            if submitting.done() and not submitting.cancelled() and submitting.exception() is None:
                await shielded(self.jobs.cancel(submitting.result()))
            raise
        return detail.result

    def _agent(self, task: Task, clock: EpisodeClock) -> AgentConfig:
        """Return the agent with a time limit, by which the server ends an agent that makes no requests."""
        limits = self.limits
        agent = relayed_agent_config(
            self.agent,
            self.gateway.model or "policy",
            max_context_tokens=limits.max_context_tokens or _NO_LIMIT_TOKENS,
            max_answer_tokens=limits.max_answer_tokens or _NO_LIMIT_TOKENS,
        )
        if self.config.tokens == "details":
            agent = agent.model_copy(update={"kwargs": {**agent.kwargs, "collect_rollout_details": True}})
        now = asyncio.get_running_loop().time()
        left = [limits.time_limit_sec, None if clock.ends_at is None else max(0.0, clock.ends_at - now)]
        longest = [sec + _END_SEC for sec in left if sec is not None]
        if not longest:
            return agent
        times = {"max_timeout_sec": min([*longest, agent.max_timeout_sec or math.inf])}
        own = [agent.override_timeout_sec, task.config.agent.timeout_sec]
        own += [step.agent.timeout_sec for step in task.config.steps or []]
        if not any(own):  # max_timeout_sec only shortens a time limit
            times["override_timeout_sec"] = times["max_timeout_sec"]
        return agent.model_copy(update=times)

    def _job(self, task: TaskConfig, name: str, agent: AgentConfig) -> dict[str, Any]:
        # By default Harbor redacts variables in a dumped configuration; the server needs them.
        environment = server_environment(self.config.sandbox, self.config.sandbox_options)
        as_sent: dict[str, Any] = {"mode": "json", "context": {"redact_sensitive_env": False}}
        return {
            "job_name": name,
            "tasks": [task.model_dump(mode="json")],
            "agents": [agent.model_dump(**as_sent)],
            "environment": environment.model_dump(**as_sent),
            "n_concurrent_trials": 1,
            "retry": {"max_retries": 0},  # a session is one attempt
            "override_error_policy": graded_after_refusal(),
        }

    def _grading(self, result: TrialResult, missing: Sequence[str]) -> Grading:
        """Return the server's grading; of the sandbox only the trial's record is known."""
        finding = SandboxFinding(is_shared=result.verifier_environment_mode is VerifierEnvironmentMode.SHARED)
        breakage = policy_failure(result, finding, self.config.ambiguous_failures)
        rewards = {} if breakage is not None else rewards_of(result)
        # The relay itself refuses requests with status 429 if there are too many.
        return Grading(rewards, breakage, missing, may_lack_requests=True)
