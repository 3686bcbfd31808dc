"""Play an episode of a task with a function in the policy's place."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.verdict import PhaseSeconds
from harbor_gym.config import AmbiguousFailures
from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.sandboxes.extensions import ReportsServices, SupportsVerifierView

if TYPE_CHECKING:
    from harbor_gym.episode import AgentPhase, Episode, PhaseEnd

type Work = Callable[[Episode, AgentPhase], Awaitable[None]]
"""The work done in each agent phase of a running episode."""

_OUTPUT_LINES = 10


@dataclass(frozen=True, slots=True)
class Played:
    """The result of an episode."""

    reward: float
    """The episode's scalar; in a multi-step task combined by the task's own strategy."""

    keys: frozenset[str]
    """Names of all rewards that the verifier wrote, in any step."""

    phases: PhaseSeconds
    """Time by phase."""

    output: str
    """The last lines of the verifier's output."""

    stopped_processes: int
    """Processes that were running at the end of an agent phase and were killed before grading."""

    supports_view: bool
    """Whether the sandbox has a pristine view."""

    services: str | None
    """A sentence on how long the start waited for services of the image; None where there are none."""


async def play(
    task_dir: Path,
    work: Work,
    plan: CheckPlan,
    *,
    verify_paths: VerifyPaths,
    ambiguous_failures: AmbiguousFailures,
) -> Played:
    """Play one episode and return its result.

    Args:
        task_dir: The directory of a well-formed task.
        work: The work in place of the policy's.
        plan: The sandbox, the reward's name, and the folder for the trial.
        verify_paths: As ``TerminalEnvConfig.verify_paths``.
        ambiguous_failures: As ``TerminalEnvConfig.ambiguous_failures``.

    Raises:
        TaskError: The task is malformed, or can't run in the sandbox.
        SandboxError: The sandbox did not start or went away.
        VerifierError: There was no verdict, or no single reward in it.
    """
    from harbor_gym.episode import Episode
    from harbor_gym.episode.task import load_task

    episode = Episode(
        await load_task(task_dir),
        plan.environment,
        trials_dir=Path(plan.trials_dir),
        stop_timeout_sec=plan.stop_timeout_sec,
        verify_paths=verify_paths,
        ambiguous_failures=ambiguous_failures,
    )
    ends: list[PhaseEnd] = []
    agent_sec = 0.0
    try:
        begun = time.monotonic()
        phase: AgentPhase | None = await episode.start()
        sandbox, started = phase.environment, time.monotonic()
        while phase is not None:
            entered = time.monotonic()
            await work(episode, phase)
            agent_sec += time.monotonic() - entered
            ends.append(await episode.end_phase())
            phase = ends[-1].next_phase
        verify_sec = sum(end.verifier_sec for end in ends)
        stop_sec = max(0.0, time.monotonic() - started - agent_sec - verify_sec)
        rewards = ends[-1].episode_rewards
        return Played(
            # Work that breaks the sandbox beyond grading has failed.
            reward=plan.scalar(rewards) if rewards or ends[-1].breakage is None else 0.0,
            keys=frozenset(key for end in ends for key in end.rewards),
            phases=PhaseSeconds(started - begun, agent_sec, verify_sec, stop_sec),
            output=next((last_lines(end.verifier.output) for end in reversed(ends) if end.verifier is not None), ""),
            stopped_processes=sum(end.stopped_processes for end in ends),
            supports_view=isinstance(sandbox, SupportsVerifierView),
            services=sandbox.services_note if isinstance(sandbox, ReportsServices) else None,
        )
    finally:
        await episode.close()


def last_lines(text: str) -> str:
    """Return at most the last ten lines of a text, with each unprintable character replaced by a space."""
    lines = text.splitlines()[-_OUTPUT_LINES:]
    return "\n".join("".join(char if char.isprintable() else " " for char in line).rstrip() for line in lines)
