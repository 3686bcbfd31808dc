"""Play an episode of a task with a function in the policy's place."""

from __future__ import annotations

import asyncio
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
    from harbor_gym.episode import AgentPhase, Episode

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
    verify_paths: VerifyPaths = "off",
    ambiguous_failures: AmbiguousFailures = "zero",
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
        trials_dir=plan.trials_dir,
        stop_timeout_sec=plan.stop_timeout_sec,
        verify_paths=verify_paths,
        ambiguous_failures=ambiguous_failures,
    )
    try:
        return await _Player(episode, plan).play(work)
    finally:
        await episode.close()


class _Player:
    """One running episode, and the sums over its phases."""

    def __init__(self, episode: Episode, plan: CheckPlan) -> None:
        self._episode = episode
        self._plan = plan
        self._keys: set[str] = set()
        self._stopped = 0
        self._is_broken = False
        self._agent_sec = self._verify_sec = self._stop_sec = 0.0

    async def play(self, work: Work) -> Played:
        started = time.monotonic()
        phase: AgentPhase | None = await self._episode.start()
        start_sec = time.monotonic() - started
        sandbox = phase.environment
        rewards: dict[str, float] = {}
        while phase is not None:
            phase, rewards = await self._play_phase(phase, work)
        return Played(
            # Work that breaks the sandbox beyond grading has failed.
            reward=self._plan.scalar(rewards) if rewards or not self._is_broken else 0.0,
            keys=frozenset(self._keys),
            phases=PhaseSeconds(start_sec, self._agent_sec, self._verify_sec, self._stop_sec),
            output=await self._output(),
            stopped_processes=self._stopped,
            supports_view=isinstance(sandbox, SupportsVerifierView),
            services=sandbox.services_note if isinstance(sandbox, ReportsServices) else None,
        )

    async def _play_phase(self, phase: AgentPhase, work: Work) -> tuple[AgentPhase | None, dict[str, float]]:
        begun = time.monotonic()
        await work(self._episode, phase)
        worked = time.monotonic()
        end = await self._episode.end_phase()
        self._agent_sec += worked - begun
        self._verify_sec += end.verifier_sec
        self._stop_sec += max(0.0, time.monotonic() - worked - end.verifier_sec)
        self._stopped += end.stopped_processes
        self._keys.update(end.rewards)
        self._is_broken = end.breakage is not None
        return end.next_phase, dict(end.episode_rewards)

    async def _output(self) -> str:
        from harbor_gym.episode.diagnostics import read_diagnostics

        assert self._episode.trial_dir is not None
        diagnostics = await asyncio.to_thread(read_diagnostics, self._episode.trial_dir)
        return last_lines(diagnostics.get("verifier_output", ""))


def last_lines(text: str) -> str:
    """Return at most the last ten lines of a text, with each unprintable character replaced by a space."""
    lines = text.splitlines()[-_OUTPUT_LINES:]
    return "\n".join("".join(char if char.isprintable() else " " for char in line).rstrip() for line in lines)
