"""Try to be rewarded without doing the task: plant files, leave a process behind, and stop.

This runs as an episode of ours, so that what protects the verdict of an episode is part of what is tried. Under
``harbor run`` alone, some of these tricks work on tasks that are safe here.
"""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from harbor_gym.checking.verdict import CheckPlan
from harbor_gym.errors import SandboxLostError
from harbor_gym.rewards import scalar_reward

if TYPE_CHECKING:
    from harbor.models.task.task import Task

    from harbor_gym.episode import AgentPhase

_SCRIPTS = Path(__file__).parent / "forgeries"
_PLANTING_TIMEOUT_SEC = 60
_EXPECTED_END = "planted"


def trick_names() -> list[str]:
    """Return the names of all tricks."""
    return sorted(path.stem for path in _SCRIPTS.glob("*.sh") if path.stem != "common")


async def forge_reward(task_dir: Path, tricks: list[str], plan: CheckPlan) -> float:
    """Return the reward for playing tricks in every agent phase, as the policy's user, and doing nothing else.

    Args:
        task_dir: The directory of a well-formed task.
        tricks: Which ones, of :func:`trick_names`.
        plan: The sandbox and where to keep the trial's folder.

    Raises:
        TaskError: The sandbox does not take this task.
        SandboxError: The sandbox did not start, went away, or ran no command of the policy's user.
        VerifierError: There was no verdict, or no single reward in it.
    """
    from harbor_gym.episode import Episode
    from harbor_gym.episode.task import load_task

    task: Task = await load_task(task_dir)
    episode = Episode(task, plan.environment, trials_dir=plan.trials_dir, stop_timeout_sec=plan.stop_timeout_sec)
    try:
        phase: AgentPhase | None = await episode.start()
        rewards: dict[str, float] = {}
        while phase is not None:
            await _plant(phase, tricks)
            end = await episode.end_phase()
            phase, rewards = end.next_phase, dict(end.episode_rewards or end.rewards)
        return scalar_reward(rewards)
    finally:
        await episode.close()


async def _plant(phase: AgentPhase, tricks: list[str]) -> None:
    from harbor_gym.episode.episode import run_in_phase

    script = "\n".join(map(_read_script, ["common", *tricks]))
    command = f"bash -c {shlex.quote(script)} </dev/null; echo {_EXPECTED_END}"
    planting = phase.environment.exec(command, user=phase.user, timeout_sec=_PLANTING_TIMEOUT_SEC)
    result = await run_in_phase(phase, planting)
    if _EXPECTED_END not in (result.stdout or ""):
        raise SandboxLostError(f"the forger's commands did not run: {(result.stderr or result.stdout or '').strip()}")


@functools.cache
def _read_script(name: str) -> str:
    return (_SCRIPTS / f"{name}.sh").read_text()
